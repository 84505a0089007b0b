"""Figures as static pictures: axes, panels, and that everything in them is text."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from drawn_svg import SVG, drawn, places, points, words
from plotly.subplots import make_subplots

from capacity.report.figures.chart import layout
from capacity.report.figures.svg_around import WIDTH
from capacity.report.figures.svg_figure import svg


def test_points_stand_where_their_values_are() -> None:
    root = drawn(points([0, 1, 2], [0, 10, 40]))
    (x0, y0), (x1, y1), (x2, y2) = places(root)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert (y0 - y1) * 3 == pytest.approx(y1 - y2, abs=0.3)
    assert {"across", "up", "A title"} <= set(words(root))


@pytest.mark.parametrize("packed", [True, False])
def test_a_logarithmic_axis_has_equal_steps_for_equal_factors(packed: bool) -> None:
    import numpy as np

    x: Any = np.array([1.0, 10.0, 100.0]) if packed else [1.0, 10.0, 100.0]
    figure = points(x, [1, 2, 3])
    figure.update_xaxes(type="log")
    root = drawn(figure)
    (x0, _), (x1, _), (x2, _) = places(root)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert {"1", "2", "5", "10", "20", "50", "100"} <= set(words(root))
    chosen = points(x, [1, 2, 3])
    chosen.update_xaxes(type="log", tickvals=[1, 100], ticktext=["least", "most"])
    assert {"least", "most"} <= set(words(drawn(chosen)))
    assert "10" not in words(drawn(chosen))


def test_panels_stand_where_their_domains_are_and_share_an_axis() -> None:
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=["upper", "lower"])
    for row, last in ((1, 10), (2, 5)):
        figure.add_scatter(x=[0, last], y=[0, 1], mode="markers", marker={"color": "#123456"}, row=row, col=1)
    layout(figure, x="", y="", height=400)
    (a, ya), (b, _), (c, yc), (d, _) = places(drawn(figure))
    assert (a, ya < yc) == (c, True)
    assert d - c == pytest.approx((b - a) / 2, abs=0.11)
    assert {"upper", "lower"} <= set(words(drawn(figure)))


def test_nothing_of_a_name_is_markup_and_the_page_is_white() -> None:
    foreign = '</text><script>alert(1)</script>"&'
    figure = points([1.0], [1.0], name=foreign, text=[foreign], hovertemplate="%{text}")
    figure.add_scatter(x=[1.0], y=[foreign], mode="lines", name=foreign)
    text = svg(figure, title=foreign, subtitle=[foreign], alt=foreign)
    root = ElementTree.fromstring(text)
    assert not [found for found in root.iter() if found.tag.endswith("script")]
    assert "<script" not in text
    background = next(root.iter(f"{SVG}rect"))
    assert (background.attrib["fill"], background.attrib["width"]) == ("#ffffff", str(WIDTH))


def test_what_moves_is_left_out() -> None:
    figure = points([0.0, 1.0], [0.0, 1.0])
    figure.add_annotation(text="stays", x=0.5, y=1, xref="paper", yref="paper")
    stays = figure.layout.annotations[0].to_plotly_json()
    moves = {**stays, "text": "at 1 s"}
    figure.update_layout(
        annotations=[stays, moves], shapes=[{"type": "line", "x0": 9.0, "x1": 9.0, "y0": 0, "y1": 1}]
    )
    figure.frames = [
        {"layout": {"annotations": [stays, {**moves, "text": f"at {n} s"}], "shapes": []}} for n in (1, 2)
    ]
    shown = words(drawn(figure))
    assert "stays" in shown
    assert "at 1 s" not in shown
    assert "8" not in shown  # the line that moves spans no axis
