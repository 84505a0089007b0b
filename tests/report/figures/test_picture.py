"""Figures as static pictures: what stands where, that words are text, and what is said without matplotlib."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest

from capacity.base.errors import InvalidInput
from capacity.report.figures import picture
from capacity.report.figures.chart import Chart, apply_layout
from capacity.report.sheet import Sheet

SVG = "{http://www.w3.org/2000/svg}"
RED, GREEN = "#ff0000", "#00ff00"


def drawn(figure: Any, **words: Any) -> ElementTree.Element:
    text = picture.draw_picture(figure, "svg", title=words.pop("title", "A title"), **words)
    return ElementTree.fromstring(text)


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(found.itertext()) for found in root.iter(f"{SVG}text")]


def places(root: ElementTree.Element, colour: str = RED) -> list[tuple[float, float]]:
    """Centres of the points of a colour."""
    found = (use for use in root.iter(f"{SVG}use") if f"fill: {colour}" in use.attrib["style"])
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in found]


def boxes(root: ElementTree.Element, colour: str = RED) -> list[tuple[float, float, float, float]]:
    """Left, right, head and foot of filled bars, the legend's left out."""
    found = []
    for path in root.iter(f"{SVG}path"):
        if f"fill: {colour}" in path.attrib.get("style", "") and "clip-path" in path.attrib:
            x, y = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", path.attrib["d"]), dtype=float).T
            found.append((x.min(), x.max(), y.min(), y.max()))
    return found


def points(x: Any, y: Any, **more: Any) -> Any:
    figure = go.Figure()
    figure.add_scatter(x=x, y=y, mode="markers", marker={"color": RED}, **more)
    return apply_layout(figure, x="across", y="up")


def bars(mode: str, *lengths: float, **more: Any) -> Any:
    figure = go.Figure()
    for length, colour in zip(lengths, (RED, GREEN), strict=False):
        look = {"name": f"of {length}", "marker": {"color": colour}, **more}
        figure.add_bar(orientation="h", y=["a"], x=[length], **look)
    return apply_layout(figure, x="s", y="", barmode=mode)


@pytest.mark.parametrize("packed", [True, False])
def test_points_stand_where_their_values_are(packed: bool) -> None:
    (x0, y0), (x1, y1), (x2, y2) = places(drawn(points([0, 1, 2], [0, 10, 40])))
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert (y0 - y1) * 3 == pytest.approx(y1 - y2)
    x: Any = np.array([1.0, 10.0, 100.0]) if packed else [1.0, 10.0, 100.0]
    figure = points(x, [1, 2, 3])
    figure.update_xaxes(type="log")
    root = drawn(figure)
    (x0, _), (x1, _), (x2, _) = places(root)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert {"1", "2", "5", "10", "100", "across", "up", "A title"} <= set(words(root))
    figure.update_xaxes(tickvals=[1, 100], ticktext=["least", "most"])
    assert {"least", "most"} <= set(words(drawn(figure)))


def test_bars_on_each_other_add_up_and_bars_beside_do_not() -> None:
    root = drawn(bars("stack", 1, 3))
    ((left, right, head, foot),), ((left_2, right_2, head_2, _),) = boxes(root), boxes(root, GREEN)
    assert right == left_2
    assert head == head_2
    assert right_2 - left_2 == pytest.approx(3 * (right - left))
    root = drawn(bars("group", 1, 3))
    ((left, right, head, foot),), ((left_2, right_2, _, foot_2),) = boxes(root), boxes(root, GREEN)
    assert left == left_2
    assert foot_2 == pytest.approx(head)  # the first is the lowest
    assert right_2 - left_2 == pytest.approx(3 * (right - left))
    assert foot > head


def test_categories_stand_in_the_order_that_is_given() -> None:
    figure = go.Figure()
    figure.add_bar(orientation="h", y=["a", "b"], x=[2.0, 1.0], base=[0.0, 2.0], marker={"color": RED})
    apply_layout(figure, x="s", y="", barmode="overlay")
    figure.update_yaxes(autorange="reversed")
    first, second = boxes(drawn(figure))
    assert first[1] == pytest.approx(second[0])  # from its base
    assert first[2] < second[2]  # reversed: the first name is the highest
    figure.update_yaxes(categoryarray=["b", "a", "z"])
    first, second = boxes(drawn(figure))
    assert first[2] > second[2]
    assert "z" not in words(drawn(figure))


def test_words_below_a_panel_are_turned_where_they_have_no_room() -> None:
    figure = go.Figure()
    for count, turned in ((2, 0), (12, 12)):
        names = [f"a long name,<br>number {number}" for number in range(count)]
        figure.data = []
        figure.add_bar(x=names, y=[1] * count)
        texts = list(drawn(apply_layout(figure, x="", y="")).iter(f"{SVG}text"))
        assert sum("rotate(-90" in text.attrib.get("transform", "") for text in texts) == turned


def test_whiskers_end_where_the_interval_ends() -> None:
    figure = points(
        [1.0], [10.0], error_y={"symmetric": False, "array": [10.0], "arrayminus": [5.0], "color": GREEN}
    )
    figure.add_scatter(x=[1, 1], y=[5, 20], mode="markers", marker={"color": "#0000ff"})
    root = drawn(figure)
    ends = [place[1] for place in places(root, "#0000ff")]
    whisker = next(
        path for path in root.iter(f"{SVG}path") if f"stroke: {GREEN}" in path.attrib.get("style", "")
    )
    assert [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", whisker.attrib["d"])] == pytest.approx(ends)


def test_labels_beyond_bars_are_in_sight() -> None:
    long = "a label that is as long as a label may be, and longer"
    root = drawn(bars("group", 10, text=[long], error_x={"array": [5.0], "arrayminus": [5.0]}))
    (label,) = [text for text in root.iter(f"{SVG}text") if text.text == long]
    ((_, right, _, _),) = boxes(root)
    assert right < float(label.attrib["x"]) < picture.WIDTH - 5 * len(long)
    inside = bars("stack", 1, 999, text=[long], textposition="inside")
    assert words(drawn(inside)).count(long) == 1  # the small bar has no room


def test_lines_across_and_their_notes_stand_at_their_values_and_are_in_sight() -> None:
    figure = points([1.0, 2.0], [1.0, 2.0])
    figure.add_vline(x=4.0, line={"color": GREEN, "dash": "dash", "width": 2}, annotation={"text": "limit"})
    root = drawn(figure)
    (line,) = [path for path in root.iter(f"{SVG}path") if f"stroke: {GREEN}" in path.attrib.get("style", "")]
    x = float(line.attrib["d"].split()[1])
    (x0, _), (x1, _) = places(root)
    assert x - x1 == pytest.approx(2 * (x1 - x0))
    assert x < picture.WIDTH
    assert "stroke-dasharray" in line.attrib["style"]
    assert "limit" in words(root)


def test_a_colour_scale_is_drawn_and_colours_its_points() -> None:
    figure = go.Figure()
    bar = {"title": {"text": "$ per 1M<br>output"}, "tickvals": [0, 1], "ticktext": ["cheap", "dear"]}
    marker = {
        "color": [0, 1],
        "showscale": True,
        "colorbar": bar,
        "colorscale": "Cividis",
        "cmin": 0,
        "cmax": 1,
    }
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="markers", marker=marker)
    root = drawn(apply_layout(figure, x="", y=""))
    assert len(places(root, "#00224e")) == len(places(root, "#fee838")) == 1
    assert {"$ per 1M", "output", "cheap", "dear"} <= set(words(root))


def test_the_legend_names_each_trace_once_and_hidden_ones_never() -> None:
    figure = points([1.0], [1.0], name="one")
    for name, more in (("two", {}), ("two", {}), ("three", {"showlegend": False})):
        figure.add_scatter(x=[1, 2], y=[2, 2], mode="lines", name=name, **more)
    found = words(drawn(figure))
    assert [found.count(name) for name in ("one", "two", "three")] == [1, 1, 0]
    assert "one" not in words(drawn(points([1.0], [1.0], name="one")))  # alone it needs none


def test_words_are_text_and_the_same_figure_gives_the_same_file() -> None:
    foreign = '<script>alert("$1")</script> $x_1$ \x1b[31m 模型'
    figure = points([1], [1], name=foreign)
    figure.add_bar(x=[foreign], y=[1], name=foreign, text=[foreign])
    said = {"title": foreign, "subtitle": [foreign], "alt": foreign}
    text = picture.draw_picture(apply_layout(figure, x=foreign, y=foreign), "svg", **said)  # type: ignore[arg-type]
    root = ElementTree.fromstring(text)
    assert b"<script" not in text
    assert b"\x1b" not in text
    assert sum("$x_1$" in each for each in words(root)) >= 5
    assert text == picture.draw_picture(figure, "svg", **said)  # type: ignore[arg-type]


def test_a_png_is_dark_on_white_and_twice_as_wide() -> None:
    from PIL import Image

    image = Image.open(BytesIO(picture.draw_picture(points([1], [1]), "png", title="A title"))).convert("L")
    assert image.width == 2 * picture.WIDTH
    assert image.getpixel((0, 0)) == 255
    assert sum(image.histogram()[:64]) > 200  # the words


def test_without_matplotlib_a_page_has_the_numbers_and_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chart = Chart(
        name="c", title="Latency", alt="It is 7.", figure=points([1], [1]), rows=({"ttft_ms": 7.25},)
    )
    sheet = Sheet(question="?", subject="it", answer="", charts=[chart, chart])
    assert "<svg" in sheet.html()
    monkeypatch.setattr(picture, "find_spec", lambda _: None)  # as where it is not installed
    page = sheet.html()
    assert "<svg" not in page
    assert page.count("Latency") == page.count("7.25") == 2
    assert page.count("pip install &#x27;llm-capacity[charts]&#x27;") == 1
    with pytest.raises(
        InvalidInput, match=r"^pictures need matplotlib: pip install 'llm-capacity\[charts\]'$"
    ):
        chart.svg()
