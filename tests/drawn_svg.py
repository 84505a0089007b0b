"""Figures drawn as static pictures, and what stands where in them."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go

from capacity.report.figures.chart import layout
from capacity.report.figures.svg_figure import svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(figure: Any, **words: Any) -> ElementTree.Element:
    return ElementTree.fromstring(svg(figure, title=words.pop("title", "A title"), **words))


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(found.itertext()) for found in root.iter(f"{SVG}text")]


def places(root: ElementTree.Element) -> list[tuple[float, float]]:
    """Centres of round points."""
    return [(float(found.attrib["cx"]), float(found.attrib["cy"])) for found in root.iter(f"{SVG}circle")]


def bars(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, width and height of filled bars, as they were given."""
    return [
        tuple(float(found.attrib[name]) for name in ("x", "y", "width", "height"))  # type: ignore[misc]
        for found in root.iter(f"{SVG}rect")
        if found.find(f"{SVG}title") is not None
    ]


def points(x: Any, y: Any, **more: Any) -> Any:
    figure = go.Figure()
    figure.add_scatter(x=x, y=y, mode="markers", marker={"color": "#123456"}, **more)
    return layout(figure, x="across", y="up")
