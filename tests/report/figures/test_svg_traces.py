"""Points, bars and whiskers of a static picture stand where their values are."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest
from drawn_svg import SVG, bars, drawn, places, points

from capacity.report.figures.chart import layout


def test_bars_on_each_other_add_up_and_bars_beside_do_not() -> None:
    figure = go.Figure()
    for length in (1, 3):
        figure.add_bar(orientation="h", y=["a"], x=[length], name=str(length), marker={"color": "#123456"})
    layout(figure, x="s", y="", barmode="stack")
    (left, top, wide, high), (left_2, top_2, wide_2, high_2) = bars(drawn(figure))
    assert left + wide == pytest.approx(left_2, abs=0.11)
    assert wide_2 == pytest.approx(3 * wide, abs=0.3)
    assert (top, high) == (top_2, high_2)
    figure.update_layout(barmode="group")
    (left, top, wide, high), (left_2, top_2, wide_2, _) = bars(drawn(figure))
    assert left == left_2
    assert top_2 + high == pytest.approx(top, abs=0.11)  # the first is the lowest
    assert wide_2 == pytest.approx(3 * wide, abs=0.3)


def test_bars_from_a_base_stand_behind_each_other_in_time() -> None:
    figure = go.Figure()
    figure.add_bar(orientation="h", y=["a", "b"], x=[2.0, 1.0], base=[0.0, 2.0], marker={"color": "#123456"})
    layout(figure, x="s", y="", barmode="overlay")
    figure.update_yaxes(autorange="reversed")
    first, second = bars(drawn(figure))
    assert first[0] + first[2] == pytest.approx(second[0], abs=0.11)
    assert first[1] < second[1]  # reversed: the first name is the highest
    figure.update_yaxes(autorange=None)
    first, second = bars(drawn(figure))
    assert first[1] > second[1]


def test_whiskers_end_where_the_interval_ends() -> None:
    figure = points([1.0], [10.0], error_y={"symmetric": False, "array": [10.0], "arrayminus": [5.0]})
    figure.add_scatter(x=[1, 1], y=[5, 20], mode="markers", marker={"color": "#654321"})
    root = drawn(figure)
    _, (_, low), (_, high) = places(root)
    ends = [re.findall(r"[MV][\d.]+ ?([\d.]*)", path.attrib["d"]) for path in root.iter(f"{SVG}path")]
    whisker = next(path.attrib["d"] for path in root.iter(f"{SVG}path") if "m-4 0h8" in path.attrib["d"])
    assert ends
    assert re.findall(r"M[\d.]+ ([\d.]+)h8m-4 0V([\d.]+)", whisker) == [(f"{low:.1f}", f"{high:.1f}")]


def test_words_of_a_bar_stand_beyond_its_whisker() -> None:
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=["a"],
        x=[10.0],
        text=["10 (5 to 20)"],
        error_x={"symmetric": False, "array": [10.0], "arrayminus": [5.0]},
    )
    root = drawn(layout(figure, x="", y=""))
    words = next(text for text in root.iter(f"{SVG}text") if text.text == "10 (5 to 20)")
    whisker = next(path.attrib["d"] for path in root.iter(f"{SVG}path") if "m0 -4H" in path.attrib["d"])
    assert float(words.attrib["x"]) > float(whisker.partition("H")[2].partition("m")[0])
