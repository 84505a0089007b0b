"""Read values of an answer by their paths, and convert them to text."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capacity.base.money import convert_amounts, display_currency
from capacity.base.quantity import Quantity
from capacity.report.display import (
    STANDARD,
    Units,
    phrase,
    rate_and_interval,
    round_like,
    seconds_and_interval,
    text_and_interval,
    time_and_interval,
)
from capacity.report.layout import token_count_text

Path = str | Callable[[Any], Any]
"""A dotted path into a record (`kinds.mha_bytes_per_token`), or a function of the record."""


def value_at(record: Any, path: Path) -> Any:
    """Return the value at a path in a record; None if a value on the path is None, or a list has no such index."""
    if not isinstance(path, str):
        return path(record)
    for name in filter(None, path.split(".")):
        if record is None:
            return None
        if isinstance(record, Mapping):
            record = record.get(int(name) if name.isdigit() else name)
        elif name.isdigit():
            record = next(iter(record[int(name) :]), None)
        else:
            record = getattr(record, name)
    return record


def read_rows(records: Iterable[Any], paths: Mapping[str, Path]) -> list[Mapping[str, Any]]:
    """Return one dict for each record: the value at each path, by the name of the path."""
    return [{name: value_at(record, path) for name, path in paths.items()} for record in records]


def read_series(
    records: Collection[Any], label: Path, paths: Mapping[str, Path]
) -> dict[str, dict[Any, Any]]:
    """Return the data of a chart: for each name of a path a dict from the records' labels to the values at the path."""
    return {
        name: {value_at(record, label): value_at(record, path) for record in records}
        for name, path in paths.items()
    }


def read_curves(
    sides: Iterable[Any], name: Path, records: Path, *, x: Path, y: Path
) -> dict[Any, dict[Any, Any]]:
    """Return the data of a chart with a curve for each side: a dict from the side's `name` to the values `y` by `x` of
    its `records`; points without a value are left out."""
    return {
        value_at(side, name): {
            value_at(record, x): value
            for record in value_at(side, records)
            if (value := value_at(record, y)) is not None
        }
        for side in sides
    }


def group_by(records: Iterable[Any], path: Path) -> dict[Any, list[Any]]:
    """Return the records by their value at the path, in order."""
    groups: dict[Any, list[Any]] = {}
    for record in records:
        groups.setdefault(value_at(record, path), []).append(record)
    return groups


def read_columns(records: Collection[Any], **paths: Path) -> dict[str, list[Any]]:
    """Return the values at each path as a list: `x`, `y`, `text` and other keyword arguments of a plotly trace."""
    return {name: [value_at(record, path) for record in records] for name, path in paths.items()}


def join_names(path: str, none: str = "", separator: str = ", ") -> Callable[[Any], str]:
    """Return a function that joins the names at `path` in a record, and returns the text `none` if there are none."""
    return lambda record: separator.join(value_at(record, path)) or none


def mark_if(path: Path, flag: Path, mark: str) -> Callable[[Any], str]:
    """Return a function that returns the text at `path`, followed by `mark` if the value at `flag` is true."""
    return lambda record: value_at(record, path) + mark * bool(value_at(record, flag))


def mark_unless(path: Path, flag: Path, mark: str) -> Callable[[Any], str]:
    """Return a function that returns the text at `path`, followed by `mark` if the value at `flag` is false."""
    return lambda record: value_at(record, path) + mark * (not value_at(record, flag))


@dataclass(frozen=True, slots=True)
class Unit:
    """Display format of a number: the number times `scale`, with `digits` decimals and the suffix `after`.

    `left`: left-aligned. `text`: a function that returns the number as text instead, without interval. `show`: a
    function that returns number and interval as texts instead. `follows`: `time`, `memory` or `money` if the reader
    chooses the unit. A heading then contains `{time}`, `{memory}` or `$`, and `digits` applies to ms and GiB.
    `symbol`: the currency's symbol precedes the number. `significant`: number of significant digits. `bare`: the
    interval limits the digits but is not shown. `fixed`: no interval limits the digits.
    """

    digits: int = 0
    scale: float = 1.0
    after: str = ""
    sign: str = ""
    none: str = "-"
    left: bool = False
    bare: bool = False
    fixed: bool = False
    significant: int = 0
    follows: str = ""
    symbol: bool = False
    text: Callable[[float], str] | None = None
    show: Callable[[Quantity, Units], tuple[str, str]] | None = None

    def texts(self, value: Any, units: Units = STANDARD) -> tuple[str, str]:
        """Return a value and its interval as texts; the interval is empty if there is none."""
        if isinstance(value, bool):
            return ("yes" if value else "no"), ""
        if not isinstance(value, (int, float, Quantity)):
            return self.none if value is None else str(value), ""
        number = value if isinstance(value, Quantity) else Quantity(value=value)
        if self.text:
            return self.text(number.value), ""
        if self.show:
            text, within = self.show(number, units)
        else:
            text, within = self.texts_of_scaled(number.scale(self.scale_for(units)), units)
        return text, "" if self.bare else within

    def texts_of_scaled(self, number: Quantity, units: Units = STANDARD) -> tuple[str, str]:
        """Return a number that is already in the reader's unit, and its interval, as texts."""
        symbol = display_currency().symbol if self.symbol else ""
        if self.significant:
            return f"{symbol}{round_like(number.value, digits=self.significant):,.12g}", ""
        digits = self.digits_for(units)
        if self.fixed:
            ends = (end for end in (number.value, number.low, number.high) if end is not None)
            text, *within = (f"{symbol}{end:,.{digits}f}" for end in ends)
            return text, " to ".join(within)
        text, interval = text_and_interval(number, 1, digits, self.after, sign=self.sign)
        return f"{symbol}{text}", interval

    def text_with_interval(self, value: Any, units: Units = STANDARD) -> str:
        """Return a value with its interval in brackets."""
        text, within = self.texts(value, units)
        return text + phrase(" ({})", within)

    def scale_for(self, units: Units) -> float:
        """Return the factor by which a value of the record is multiplied for display."""
        scales = {"time": units.convert_seconds(1), "memory": units.convert_bytes(1)}
        if self.follows == "money":
            return self.scale / display_currency().rate
        return scales.get(self.follows, self.scale)

    def convert(self, value: float | None, units: Units = STANDARD) -> float | None:
        """Return a number of a record in the reader's unit; None for None."""
        return None if value is None else value * self.scale_for(units)

    def reader_unit(self, units: Units) -> str:
        """Return the reader's unit of time or memory (`follows`); empty if this unit is fixed."""
        return {"time": units.time, "memory": units.memory}.get(self.follows, "")

    def digits_for(self, units: Units) -> int:
        """Return the number of decimals; a time in s is as precise as in ms."""
        return self.digits + 3 * (self.follows == "time" and units.time == "s")


usd = partial(Unit, follows="money", symbol=True)
"""Make the unit of amounts in $, with the decimals that the interval supports, else `digits`."""
dollars = partial(usd, fixed=True)
"""Make the unit of amounts in $ with `digits` decimals; the interval does not limit them."""


def time_with_interval(name: str) -> Callable[[Any], Quantity | None]:
    """Return a function that takes a record and returns its time `name`, with the interval in its `intervals_s`."""

    def find(record: Any) -> Quantity | None:
        seconds = getattr(record, name)
        low, high = record.intervals_s.get(name, (None, None))
        return None if seconds is None else Quantity(value=seconds, low=low, high=high)

    return find


def name_units(heading: str, units: Units = STANDARD) -> str:
    """Return a heading in which `{time}`, `{memory}` and `$` are replaced by the reader's units."""
    return convert_amounts(heading.replace("{time}", units.time).replace("{memory}", units.memory))


COUNT = Unit()
TIMES = Unit(2)
WORDS, TEXT = Unit(left=True), Unit()
TOKENS = Unit(none="no limit", text=token_count_text)
MS, MS_1, MS_0 = (Unit(digits, follows="time") for digits in (2, 1, 0))
GIB = Unit(2, follows="memory")
NUM_TOKENS = Unit(after=" tokens")
KIB = Unit(1, 1 / 1024)
SECONDS = Unit(2)
TENTHS = Unit(1)
PERCENT, PERCENT_0, CHANGE = Unit(1, 100, "%"), Unit(0, 100, "%"), Unit(1, 100, "%", sign="+")
USD_0, USD_2, USD_3, USD_6 = (
    Unit(digits, follows="money") for digits in (0, 2, 3, 6)
)  # below a $ in the heading
USD = usd(3)
USD_PER_1K = usd(4, 1e3)  # from $ for one
USD_PER_MILLION = replace(USD, bare=True)
# figures followed by their unit
LATENCY = Unit(follows="time", show=time_and_interval)
DURATION = Unit(show=lambda number, _: seconds_and_interval(number))
RATE = Unit(show=lambda number, _: rate_and_interval(number))
MEMORY = Unit(follows="memory", show=lambda number, units: (units.memory_text(number.value), ""))
BARE_LATENCY, BARE_RATE = (replace(unit, bare=True) for unit in (LATENCY, RATE))
