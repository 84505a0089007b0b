"""The axis of a picture: from values to pixels, and where its ticks stand and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TICKS = 6
ROOM = 0.04  # beyond the outermost values, of their span


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`low` and `high` are values, their base-10 logarithms on a logarithmic axis, places from 0 of `names` on one of
    categories; `pixels` is where they stand, `span` from the first pixel of the panel to its last."""

    low: float
    high: float
    pixels: tuple[float, float]
    span: tuple[float, float]
    logarithmic: bool = False
    names: tuple[str, ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()  # on the scale of `low`, and the words
    places: Mapping[str, int] = field(default_factory=dict)

    def scaled(self, value: Any) -> float | None:
        """A value on the scale of `low`; None for what cannot be drawn."""
        if isinstance(value, str) or self.names:
            return self.places.get(str(value))
        number = float(value)
        if not math.isfinite(number) or (self.logarithmic and number <= 0):
            return None
        return math.log10(number) if self.logarithmic else number

    def pixel(self, scaled: float) -> float:
        """Where it stands, in pixels."""
        begin, end = self.pixels
        return begin + (scaled - self.low) / (self.high - self.low) * (end - begin)

    def at(self, value: Any) -> float | None:
        """Where a value stands; None for what cannot be drawn."""
        scaled = self.scaled(value)
        return None if scaled is None else self.pixel(scaled)

    @property
    def slot(self) -> float:
        """Pixels of one category, or of one unit."""
        return abs(self.pixels[1] - self.pixels[0]) / (self.high - self.low)


def axis_of(
    layout: Mapping[str, Any],
    values: Sequence[Any],
    pixels: tuple[float, float],
    *,
    from_zero: bool,
    tight: bool = False,
) -> Axis:
    """The axis of this layout over the values that are drawn on it; `from_zero`: 0 is among them.

    `tight`: no room beyond the outermost.
    """
    if any(isinstance(value, str) for value in values):
        return _categories(layout, [str(value) for value in values], pixels)
    logarithmic = layout.get("type") == "log"
    numbers = [float(value) for value in values if math.isfinite(float(value))]
    if logarithmic:
        numbers = [math.log10(number) for number in numbers if number > 0]
    elif from_zero or layout.get("rangemode") == "tozero":
        numbers.append(0.0)
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if logarithmic or low else (0.0, 1.0)
    room = 0.0 if tight else ROOM * (high - low)
    low, high = (low if low == 0 else low - room), (high if high == 0 else high + room)
    given = layout.get("range")
    if given is not None and None not in tuple(given):
        low, high = (float(end) for end in given)
    return Axis(
        low=low,
        high=high,
        pixels=_turned(layout, pixels),
        span=pixels,
        logarithmic=logarithmic,
        ticks=_ticks(layout, low, high, logarithmic=logarithmic),
    )


def _categories(layout: Mapping[str, Any], values: Sequence[str], pixels: tuple[float, float]) -> Axis:
    found = dict.fromkeys(values)
    ordered = [str(name) for name in _or_empty(layout.get("categoryarray")) if str(name) in found]
    names = tuple(dict.fromkeys([*ordered, *found]))
    hidden = layout.get("showticklabels") is False
    return Axis(
        low=-0.5,
        high=len(names) - 0.5,
        pixels=_turned(layout, pixels),
        span=pixels,
        names=names,
        ticks=() if hidden else tuple((float(place), name) for place, name in enumerate(names)),
        places={name: place for place, name in enumerate(names)},
    )


def _turned(layout: Mapping[str, Any], pixels: tuple[float, float]) -> tuple[float, float]:
    return (pixels[1], pixels[0]) if layout.get("autorange") == "reversed" else pixels


def _ticks(
    layout: Mapping[str, Any], low: float, high: float, *, logarithmic: bool
) -> tuple[tuple[float, str], ...]:
    if layout.get("showticklabels") is False:
        return ()
    least, most = min(low, high), max(low, high)
    form = str(layout.get("tickformat") or "")
    values = [float(value) for value in _or_empty(layout.get("tickvals"))]
    if not values:
        values = _powers(least, most) if logarithmic else _round(least, most, layout.get("dtick"))
    words = [str(text) for text in _or_empty(layout.get("ticktext"))] or [_said(v, form) for v in values]
    scaled = [math.log10(value) if logarithmic else value for value in values]
    room = 1e-9 * (most - least)
    return tuple(
        (place, text)
        for place, text in zip(scaled, words, strict=False)
        if least - room <= place <= most + room
    )


def _powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten; over more than three powers, 1 alone."""
    first, last = math.floor(low), math.ceil(high)
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]


def _round(low: float, high: float, every: Any) -> list[float]:
    raw = (high - low) / TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = float(every) if every else next(size * m for m in (1, 2, 5, 10) if size * m >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{step * place:.12g}") for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _said(value: float, form: str) -> str:
    """A tick's words: `tickformat` is Python's where it ends with `%`; else as many digits as it takes."""
    if form.endswith("%"):
        return format(value, form)
    return f"{value:,.10g}"


def _or_empty(values: Any) -> Sequence[Any]:
    return () if values is None else tuple(values)
