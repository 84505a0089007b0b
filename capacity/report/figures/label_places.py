"""Where short labels of points go, so that none lies on another or on a mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PLOT_PX = (
    290,
    330,
)  # width and height of the smallest plot, that of a phone: what is free there is free everywhere
MARK_PX, LETTER_PX, LINE_PX = 16, 8, 14


class _Box(NamedTuple):
    left: float
    right: float
    low: float
    high: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.low < other.high
            and other.low < self.high
        )


POSITIONS = {  # as plotly calls them: steps from the mark to the label's middle, aside and up
    "top center": (0, 1),
    "bottom center": (0, -1),
    "middle right": (1, 0),
    "middle left": (-1, 0),
    "top right": (1, 1),
    "top left": (-1, 1),
    "bottom right": (1, -1),
    "bottom left": (-1, -1),
}


def label_places(
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[str | None]:
    """For each point a plotly `textposition` whose label lies on no mark and no other; None where all is taken."""
    spots = [(PLOT_PX[0] * _share(x, x_range), PLOT_PX[1] * _share(y, y_range)) for x, y in points]
    marks = [_around(x, y, MARK_PX, MARK_PX) for x, y in spots]
    taken: list[_Box] = []
    places: list[str | None] = []
    for number, ((x, y), label) in enumerate(zip(spots, labels, strict=True)):
        wide = LETTER_PX * len(label)
        others = [*taken, *marks[:number], *marks[number + 1 :]]
        found = None
        for position, (aside, up) in POSITIONS.items():
            box = _around(x + aside * (MARK_PX + wide) / 2, y + up * (MARK_PX + LINE_PX) / 2, wide, LINE_PX)
            if not any(box.meets(other) for other in others):
                taken.append(box)
                found = position
                break
        places.append(found)
    return places


def _share(value: float, of: tuple[float, float]) -> float:
    return (value - of[0]) / (of[1] - of[0]) if of[1] > of[0] else 0.5


def _around(x: float, y: float, wide: float, high: float) -> _Box:
    return _Box(x - wide / 2, x + wide / 2, y - high / 2, y + high / 2)
