"""Metrics that charts show for each load, such as TTFT, throughput and price; each metric has its own chart."""

from typing import Any, NamedTuple

from capacity.answers.load_point import ORDERS, LoadPoint
from capacity.answers.records import Quantity
from capacity.report.display import STANDARD
from capacity.report.figures.drawing import text_with_interval
from capacity.report.views.units import COUNT, USD_0, Unit, name_units

BAND_OPACITY = 0.18


class Figure(NamedTuple):
    """A metric of a load: its `name` in file names, its `field` in a `LoadPoint`, its title and its unit."""

    name: str
    field: str
    title: str
    unit: Unit = COUNT

    @property
    def axis(self) -> str:
        """Return the axis title with a placeholder for the reader's unit: `TTFT, {time}`."""
        return f"{self.title}, {{time}}" if self.unit.follows == "time" else self.title

    @property
    def label(self) -> str:
        """Return the axis title in standard units: `TTFT, ms`."""
        return name_units(self.axis)

    def value_of(self, point: LoadPoint) -> Any:
        """Return this metric of a point; None if the point does not have it."""
        return getattr(point, self.field)

    def text(self, quantity: Quantity) -> str:
        """Return a value with its interval as text, without its unit."""
        return text_with_interval(quantity, self.unit.scale_for(STANDARD))


TIME = Unit(follows="time")
FIGURES = {
    "ttft": Figure("ttft", "ttft_s", "TTFT", TIME),
    "tpot": Figure("tpot", "tpot_s", "TPOT", TIME),
    "throughput": Figure("throughput", "output_tokens_per_s", "Output tokens/s"),
    "price": Figure("price", "usd_per_million_output_tokens", "$ per 1M output tokens", USD_0),
}
BARS = {
    name: Figure(
        name,
        order.field,
        order.words[0].upper() + order.words[1:],
        USD_0 if order.words[0] == "$" else FIGURES[name].unit if name in FIGURES else COUNT,
    )
    for name, order in ORDERS.items()
}


def translucent_colour(hex_colour: str) -> str:
    """Return a translucent colour for areas behind lines."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND_OPACITY})"
