"""The figures of a validation report: kernels under their roofs, and predicted against measured."""

from __future__ import annotations

import math
from typing import Any

from capacity_validate.report_data import ValidationReport


def figures_html(report: ValidationReport) -> str:
    """Roofline and parity; plotly's script is in the page, once."""
    try:
        import plotly.io
    except ImportError:
        return "<p>No figures: plotly is not installed.</p>"
    figures = [figure for figure in (_roofline(report), _parity(report)) if figure is not None]
    return "".join(
        plotly.io.to_html(figure, full_html=False, include_plotlyjs=position == 0)
        for position, figure in enumerate(figures)
    )


def _roofline(report: ValidationReport) -> Any:
    """Achieved FLOP/s by arithmetic intensity, under the profile's roofs."""
    from plotly.graph_objects import Figure, Scatter

    rows = [r for r in report.cases if r.flops > 0 and r.bytes > 0]
    if not rows:
        return None
    figure = Figure()
    kernels = {row.family.split("/")[1] for row in rows}
    intensities = [row.flops / row.bytes for row in rows]
    low, high = math.log10(min(intensities)) - 0.5, math.log10(max(intensities)) + 1.0
    span = [10 ** (low + (high - low) * i / 50) for i in range(51)]
    for name in sorted(kernels & set(report.roofs)):
        roof = [min(report.roofs[name], x * report.roofs["hbm_bytes_per_s"]) for x in span]
        figure.add_trace(Scatter(x=span, y=roof, mode="lines", name=f"roof {name}"))
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        figure.add_trace(
            Scatter(
                x=[r.flops / r.bytes for r in own],
                y=[r.flops / r.measured_s for r in own],
                mode="markers",
                name=family,
                text=[r.id for r in own],
            )
        )
    figure.update_xaxes(type="log", title="FLOP per byte")
    figure.update_yaxes(type="log", title="FLOP/s")
    figure.update_layout(title="Roofline: measured kernels under the profile's roofs", height=520)
    return figure


def _parity(report: ValidationReport) -> Any:
    """Predicted against measured, held-out cases, before and after."""
    from plotly.graph_objects import Figure, Scatter

    rows = [r for r in report.cases if r.role == "held out"]
    if not rows:
        return None
    figure = Figure()
    for label, values in (
        ("before", [(r.measured_s, r.before_s, r.id) for r in rows if r.before_s]),
        ("after", [(r.measured_s, r.after_s, r.id) for r in rows if r.after_s]),
    ):
        x, y, text = zip(*values, strict=True) if values else ((), (), ())
        figure.add_trace(Scatter(x=x, y=y, text=text, mode="markers", name=label))
    ends = [min(r.measured_s for r in rows), max(r.measured_s for r in rows)]
    figure.add_trace(Scatter(x=ends, y=ends, mode="lines", name="exact", line={"color": "#889"}))
    figure.update_xaxes(type="log", title="measured, s")
    figure.update_yaxes(type="log", title="predicted, s")
    figure.update_layout(title="Held-out cases: predicted against measured", height=520)
    return figure
