"""Interface of a trace format: its name, its reader, and a test whether a file has the format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from capacity.workload.traces.lines import TraceLines
from capacity.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of trace readers; each format ignores those that do not apply to it."""

    name: str
    limit: int | None = None
    block_tokens: int | None = None
    seconds_per_unit: float | None = None
    spread_ticks: bool = False
    concurrent_sessions: int | None = None


class Table(NamedTuple):
    """The first line of a table: its column names."""

    columns: tuple[str, ...]
    delimiter: str

    def has(self, names: tuple[str, ...]) -> bool:
        """Return whether all of `names` are columns, ignoring case."""
        columns = [column.casefold() for column in self.columns]
        return all(name.casefold() in columns for name in names)


class JsonLines(NamedTuple):
    """The first JSON object of a file. If the file is one JSON array, `rest` has the other objects."""

    record: Mapping[str, object]
    rest: tuple[Mapping[str, object], ...] = ()


FirstLine = Table | JsonLines


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One trace format. A new format is a module with a `FORMAT` in `formats/`, or a table in `tables.toml`."""

    name: str
    title: str  # name in lists of formats
    recognises: Callable[[FirstLine], bool]
    read: Callable[[TraceLines, FirstLine, TraceOptions], Workload]
    needed: tuple[str, ...] = ()  # columns or keys named in the error for an unknown file
    tabular: bool = False
    arrays: bool = False  # its objects may also be in one JSON array
    spreads_ticks: bool = False  # some files have a coarse clock, and the reader can spread its ticks
