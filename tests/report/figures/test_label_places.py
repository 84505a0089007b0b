"""Labels of points: none on a mark, none on another label, and none where all is taken."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from capacity.report.figures.planning import LETTER_PX, LINE_PX, MARK_PX, PLOT_PX, POSITIONS, label_places

UNIT = {"x_range": (0.0, 1.0), "y_range": (0.0, 1.0)}
SHARES = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=12))
def test_no_label_lies_on_another_or_on_a_mark(points: list[tuple[float, float]]) -> None:
    labels = [str(number) for number in range(1, len(points) + 1)]
    places = label_places(points, labels, **UNIT)
    middles = []
    for (x, y), label, place in zip(points, labels, places, strict=True):
        if place is None:
            continue
        aside, up = POSITIONS[place]
        wide = LETTER_PX * len(label)
        at = (
            PLOT_PX[0] * x + aside * (MARK_PX + wide) / 2,
            PLOT_PX[1] * y + up * (MARK_PX + LINE_PX) / 2,
        )
        middles.append((*at, wide))
        for other in points:
            if other != (x, y):
                apart_x = abs(at[0] - PLOT_PX[0] * other[0]) >= (wide + MARK_PX) / 2 - 1e-6
                apart_y = abs(at[1] - PLOT_PX[1] * other[1]) >= (LINE_PX + MARK_PX) / 2 - 1e-6
                assert apart_x or apart_y
    for (ax, ay, aw), (bx, by, bw) in combinations(middles, 2):
        assert abs(ax - bx) >= (aw + bw) / 2 - 1e-6 or abs(ay - by) >= LINE_PX - 1e-6


def test_what_has_room_is_named_above_and_a_neighbour_elsewhere() -> None:
    assert label_places([(0.2, 0.2), (0.8, 0.8)], ["1", "2"], **UNIT) == ["top center"] * 2
    close = label_places([(0.5, 0.5), (0.5, 0.5 + MARK_PX / PLOT_PX[1])], ["1", "2"], **UNIT)
    assert close[0] != "top center"
    assert close[1] == "top center"


def test_where_all_is_taken_no_label_is_drawn() -> None:
    crowd = [(0.5 + 0.03 * math.cos(angle), 0.5 + 0.03 * math.sin(angle)) for angle in range(40)]
    assert None in label_places(crowd, ["100"] * len(crowd), **UNIT)
    assert label_places([(3.0, 3.0)], ["1"], x_range=(3.0, 3.0), y_range=(3.0, 3.0)) == ["top center"]
