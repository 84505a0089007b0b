"""The report as one self-contained HTML file, and as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from capacity.base.html import list_html, page_html, table_html
from capacity.report.layout import printed
from capacity_validate.comparison_page import comparison_tables
from capacity_validate.findings import ON_HOST
from capacity_validate.report_data import ValidationReport
from capacity_validate.review_page import class_table, parity_chart

_STYLE = """
body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2733;line-height:1.45}
table{border-collapse:collapse;margin:.8rem 0;font-size:.9rem}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #dde3ea}
th:first-child,td:first-child,.text{text-align:left}
.verdict{font-size:1.15rem;padding:.8rem 1rem;border-left:5px solid #2a7f62;background:#f2f8f5}
.failed{border-color:#b3402e;background:#fbf3f1}
details{margin:.6rem 0}
"""


def write_html(report: ValidationReport, path: Path) -> None:
    """Tables, a roofline and a parity plot; opens without a network."""
    path.write_text(to_html(report), encoding="utf-8")


def to_html(report: ValidationReport) -> str:
    mark = "verdict" if report.exit_code == 0 else "verdict failed"
    parts = [
        f"<h1>Validation of the step model: {escape(report.environment['device'])}</h1>",
        f'<p class="{mark}">{escape(report.verdict)}</p>',
        _facts(report),
        "<h2>How wrong before, how wrong after</h2>",
        class_table(report.classes) if report.classes else "",
        figures_html(report),
        _section("Whole model and serving", _serving_tables(report)),
        _section("A real engine on the same device", _engine(report)),
        _section("Techniques", _findings(report)),
        _section("What calibration moved", _constants(report)),
        _section("Error bands of the calibrated profile", _bands(report)),
        _section("Memory", _memory(report)),
        _section("Not timed", _not_timed(report)),
        "<h2>Every case</h2><details><summary>show</summary>",
        _table(
            (
                "case",
                "role",
                "measured",
                "by",
                "spread",
                "TFLOP/s",
                "GB/s",
                "of roof",
                "predicted before",
                "error",
                "predicted after",
                "error",
            ),
            _case_rows(report),
        ),
        "</details>",
    ]
    title = f"capacity validate: {report.environment['device']}"
    return page_html(title, "\n".join(part for part in parts if part), style=_STYLE)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of numbers to the right, of words to the left; empty without rows."""
    shown = [[str(value) for value in row] for row in rows]
    if not shown:
        return ""
    columns = ("" if all(map(_is_number, cells)) else ' class="text"' for cells in zip(*shown, strict=True))
    return table_html(head, shown, scope="", columns=columns)


def _is_number(text: str) -> bool:
    """With or without a unit."""
    return not text or (text.lstrip("+-")[:1].isdecimal() and len(text.split()) <= 2)


def number(value: float) -> str:
    """Whole numbers in full, others to four digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _facts(report: ValidationReport) -> str:
    facts = report.environment["facts"]
    shown = [
        ("date", report.environment["date"]),
        ("campaign", f"{report.campaign}, {report.seconds:.0f} s, {len(report.cases)} cases timed"),
        ("profile", report.profile),
        ("torch", report.environment["torch"]),
        (
            "driver, CUDA",
            f"{facts['driver_version']}, {facts['cuda_version']}" if facts["driver_version"] else "none",
        ),
        ("memory", f"{facts['memory_total_bytes'] / 2**30:.1f} GiB"),
        ("basis", "measured on this device; held-out cases were not seen by the fit"),
    ]
    return _table(("", ""), shown) + (list_html(report.remarks) if report.remarks else "")


def _case_rows(report: ValidationReport) -> list[tuple[object, ...]]:
    def predicted(seconds: float | None) -> str:
        return "" if seconds is None else duration(seconds)

    return [
        (
            r.id,
            r.role,
            duration(r.measured_s),
            r.how,
            percent(r.spread),
            f"{r.flops_per_s / 1e12:.4g}" if r.flops else "",
            f"{r.bytes_per_s / 1e9:.4g}" if r.bytes else "",
            percent(r.roof_fraction),
            predicted(r.before_s),
            signed(r.error_before),
            predicted(r.after_s),
            signed(r.error_after),
        )
        for r in report.cases
    ]


def _serving_tables(report: ValidationReport) -> str:
    rows = [
        (
            f"run {number}: {s.requests} requests at {s.rate_per_s:.2f}/s",
            f"{duration(s.measured_ttft_s)} / {duration(s.simulated_ttft_s)} ({signed(s.ttft_error)})",
            f"{duration(s.measured_tpot_s)} / {duration(s.simulated_tpot_s)} ({signed(s.tpot_error)})",
            f"{s.equal_steps} of {s.steps}",
            percent(s.step_error_median),
        )
        for number, s in enumerate(report.serving, start=1)
    ]
    speculation = [
        (
            f"k = {r.draft_tokens}, agreement {r.agreement:g}",
            f"{r.accepted_length:.2f} / {r.expected_length:.2f}",
            f"{r.measured_speedup:.2f} / {r.predicted_speedup:.2f}",
            f"{r.equal_tokens} of {r.tokens}",
        )
        for r in report.speculation
    ]
    note = ""
    if report.extrapolation:
        e = report.extrapolation
        note = (
            f"<p>All {e.layers:.0f} layers, extrapolated from two depths: decode step {duration(e.measured_s)}, "
            f"predicted {duration(e.predicted_s)} ({signed(e.error)}).</p>"
        )
    return (
        _table(
            (
                "serving",
                "mean TTFT measured / simulated",
                "mean TPOT measured / simulated",
                "same schedule",
                "step error",
            ),
            rows,
        )
        + _table(
            (
                "speculative decoding",
                "accepted length / formula",
                "speed-up measured, launched kernel by kernel / predicted",
                "greedy tokens equal",
            ),
            speculation,
        )
        + note
    )


def _engine(report: ValidationReport) -> str:
    if report.engine is None:
        return ""
    rows = [
        (Path(run.path).name, row.name, number(row.measured), "" if row.predicted is None else number(row.predicted),
         signed(row.error))
        for run in report.engine.runs
        for row in run.metrics
    ]  # fmt: skip
    note = f"<p>{escape(report.engine.model)}, {escape(report.engine.engine)}. {escape(report.engine.verdict)}</p>"
    return note + _table(("run", "metric", "measured", "predicted", "error"), rows)


def _findings(report: ValidationReport) -> str:
    rows = [
        (
            "holds" if f.passed else "FAILS",
            f.name,
            f.device or "measured device",
            number(f.value),
            number(f.limit),
            f.detail,
        )
        for f in report.findings
    ]
    return _table(("", "what", "on", "value", "limit", "detail"), rows)


def _constants(report: ValidationReport) -> str:
    rows = [
        (c.family, name, f"{before:.4g}", f"{after:.4g}", f"{c.rows} cases")
        for c in report.constants
        for name, (before, after) in c.moved.items()
    ]
    refused = [(r.family, r.reason) for r in report.refused]
    return _table(("kernel", "constant", "before", "after", ""), rows) + _table(("not moved", "why"), refused)


def _bands(report: ValidationReport) -> str:
    rows = [(regime, signed(low), signed(high)) for regime, (low, high) in report.bands.items()]
    table = _table(("steps of", "from", "to"), rows)
    note = "<p>Nine of ten steps that no fit saw lie within, measured over predicted.</p>"
    return table and note + table


def _memory(report: ValidationReport) -> str:
    rows = [
        (name.replace("_", " "), f"{value / 2**20:,.1f} MiB" if name.endswith("bytes") else f"{value:,.0f}")
        for name, value in report.memory.items()
    ]
    return _table(("", ""), rows)


def _not_timed(report: ValidationReport) -> str:
    rows: list[tuple[object, ...]] = [(case.id, case.status, case.note) for case in report.not_timed]
    if report.left_out:
        rows.append((f"{len(report.left_out)} cases", "budget", "left out: the budget was spent"))
    return _table(("case", "status", "why"), rows)


def summary_lines(report: ValidationReport, folder: Path | str | None = None) -> list[str]:
    """What a terminal shows: errors by class, the runs, and one sentence at the end."""
    lines = [f"{'class':<44}{'cases':>6}{'before':>10}{'after':>10}   (median error of held-out cases)"]
    for c in report.classes:
        lines.append(f"{c.family:<44}{c.cases:>6}{percent(c.before_median):>10}{percent(c.after_median):>10}")
    for s in report.serving:
        lines.append(
            f"serving {s.requests} requests at {s.rate_per_s:.2f}/s: TTFT {duration(s.measured_ttft_s)} measured, "
            f"{signed(s.ttft_error)} simulated; TPOT {duration(s.measured_tpot_s)}, {signed(s.tpot_error)}; "
            f"{s.equal_steps} of {s.steps} steps scheduled alike"
        )
    for r in report.speculation:
        lines.append(
            f"speculative decoding k={r.draft_tokens}, agreement {r.agreement:g}: accepted length "
            f"{r.accepted_length:.2f} ({r.expected_length:.2f} by formula), speed-up {r.measured_speedup:.2f} "
            f"({r.predicted_speedup:.2f} predicted)"
        )
    for regime, (low, high) in report.bands.items():
        lines.append(
            f"error band of {regime} steps: {signed(low)} to {signed(high)} (nine of ten that no fit saw)"
        )
    if report.engine is not None:
        lines += printed(comparison_tables(report.engine)).splitlines()
    held = sum(f.passed for f in report.findings)
    on_host = sum(f.device == ON_HOST for f in report.findings)
    where = (
        ""
        if report.environment.get("kind") == "cpu"
        else f", {on_host} of them checked on the host's CPU only"
    )
    lines.append(f"techniques: {held} of {len(report.findings)} hold{where}")
    lines += [f"not timed: {case.id}: {case.status}: {case.note}" for case in report.not_timed]
    if report.left_out:
        lines.append(f"left out for want of time: {len(report.left_out)} cases")
    lines += [f"note: {remark}" for remark in report.remarks]
    if folder is not None:
        profile = f", {report.profile.partition('@')[0]}@mine.toml" if report.constants else ""
        lines.append(f"written: {folder}/report.html, report.json{profile}")
    lines.append(report.verdict)
    return lines


def figures_html(report: ValidationReport) -> str:
    """Roofline and parity; plotly's script is in the page, once."""
    try:
        import plotly.io
    except ImportError:
        return "<p>No figures: plotly is not installed.</p>"
    roofline = _roofline(report)
    figures = [] if roofline is None else [roofline]
    if any(row.role == "held out" for row in report.cases):
        figures.append(parity_chart(report.cases, report.environment["device"]).figure)
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
