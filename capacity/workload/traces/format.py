"""What a trace format is: how the first line gives it away, what reads the rest, and how it is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from capacity.workload.traces.lines import TraceLines
from capacity.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a reader may be told besides the file; each format takes what it has a use for."""

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
        """Whether all of `names` are columns, in whatever case."""
        columns = [column.casefold() for column in self.columns]
        return all(name.casefold() in columns for name in names)


class JsonLines(NamedTuple):
    """The first object of a JSON file: of a line, or of the one document that it is; `rest`: the others of an array."""

    record: Mapping[str, object]
    rest: tuple[Mapping[str, object], ...] = ()


FirstLine = Table | JsonLines


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One format. A module of `formats/` with a `FORMAT`, or a table of its `tables.toml`, adds one."""

    name: str
    title: str  # as lists of formats call it
    recognises: Callable[[FirstLine], bool]
    read: Callable[[TraceLines, FirstLine, TraceOptions], Workload]
    needed: tuple[str, ...] = ()  # columns or keys that a refusal of an unknown file names
    tabular: bool = False
    arrays: bool = False  # its objects may also stand in one JSON array
    spreads_ticks: bool = False  # it has a coarse clock in some files, whose ticks it can spread
