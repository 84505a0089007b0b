"""The figures of a load that charts draw, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capacity.answers.load_point import ORDERS, LoadPoint
from capacity.report.display import STANDARD, Units
from capacity.report.figures.drawing import whiskers as whiskers
from capacity.report.figures.drawing import with_interval as with_interval
from capacity.report.views.units import COUNT, Unit, name_units

if TYPE_CHECKING:
    from capacity.answers.records import Quantity

BAND_OPACITY = 0.18


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of merit of a load: the field of a `LoadPoint`, its title, and its `name` in those of files."""

    name: str
    field: str
    title: str
    unit: Unit = COUNT

    @property
    def axis(self) -> str:
        """`TTFT, {time}`."""
        return f"{self.title}, {{time}}" if self.unit.follows else self.title

    def label(self, units: Units = STANDARD) -> str:
        """Return `TTFT, ms`."""
        return name_units(self.axis, units)

    def scale(self, units: Units) -> float:
        """Return the factor from the answer's unit to the shown one."""
        return self.unit.scale_in(units)

    def of(self, point: LoadPoint) -> Any:
        """Return its value of a point; None where it has none."""
        return getattr(point, self.field)

    def text(self, quantity: Quantity) -> str:
        """Return a value with its interval, without its unit."""
        return with_interval(quantity, self.scale(STANDARD))


TIME = Unit(follows="time")
FIGURES = {
    of.name: of
    for of in (
        Figure(name="ttft", field="ttft_s", title="TTFT", unit=TIME),
        Figure(name="tpot", field="tpot_s", title="TPOT", unit=TIME),
        Figure(name="throughput", field="output_tokens_per_s", title="Output tokens/s"),
        Figure(name="price", field="usd_per_million_output_tokens", title="$ per 1M output tokens"),
    )
}
BARS = {
    name: Figure(
        name=name,
        field=order.field,
        title=order.words[0].upper() + order.words[1:],
        unit=FIGURES[name].unit if name in FIGURES else COUNT,
    )
    for name, order in ORDERS.items()
}


def faint(hex_colour: str) -> str:
    """Return a colour for areas behind lines."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND_OPACITY})"
