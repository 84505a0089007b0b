"""Lines across, the scale of colours and the legend of a static picture."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest
from drawn_svg import SVG, drawn, places, points, words

from capacity.report.figures.chart import layout
from capacity.report.figures.svg_around import WIDTH


def test_lines_across_and_their_words_stand_at_their_values_and_are_in_sight() -> None:
    figure = points([1.0, 2.0], [1.0, 2.0])
    figure.add_vline(
        x=4.0, line={"color": "#abcdef", "dash": "dash", "width": 2}, annotation={"text": "limit"}
    )
    root = drawn(figure)
    line = next(path for path in root.iter(f"{SVG}path") if path.attrib.get("stroke") == "#abcdef")
    x = float(line.attrib["d"][1:].split(" ")[0])
    (x0, _), (x1, _) = places(root)
    assert x - x1 == pytest.approx(2 * (x1 - x0), abs=0.3)
    assert x < WIDTH
    assert line.attrib["stroke-dasharray"] == "8 6"
    assert "limit" in words(root)


def test_colours_of_a_scale_and_the_scale_itself() -> None:
    figure = go.Figure()
    scale = {"colorscale": "Cividis", "cmin": 0.0, "cmax": 1.0}
    bar = {"title": {"text": "$ per 1M"}, "tickvals": [0, 1], "ticktext": ["cheap", "dear"]}
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        mode="markers",
        marker={"color": [0, 1], "showscale": True, "colorbar": bar, **scale},
    )
    root = drawn(layout(figure, x="", y=""))
    first, last = (found.attrib["fill"] for found in root.iter(f"{SVG}circle"))
    assert first != last
    steps = [found.attrib["fill"] for found in root.iter(f"{SVG}rect") if found.attrib.get("width") == "14"]
    assert len(set(steps)) == len(steps) == 24
    assert {"$ per 1M", "cheap", "dear"} <= set(words(root))


def test_the_legend_names_each_trace_once_and_hidden_ones_never() -> None:
    figure = points([1.0], [1.0], name="one")
    figure.add_scatter(x=[1], y=[2], mode="lines", name="two")
    figure.add_scatter(x=[1], y=[2], mode="lines", name="two")
    figure.add_scatter(x=[1], y=[2], mode="lines", name="three", showlegend=False)
    found = words(drawn(figure))
    assert [found.count(name) for name in ("one", "two", "three")] == [1, 1, 0]
    assert "one" not in words(drawn(points([1.0], [1.0], name="one")))  # alone it needs none
