"""The report as one self-contained HTML file, and as lines for a terminal."""

import math
from html import escape
from pathlib import Path
from typing import Any

from capacity.base.html import list_html, page_html, records_html, table_html
from capacity.report.layout import printed
from capacity.report.views.layout import parts
from capacity_validate.comparison_page import comparison_view, metric_rows
from capacity_validate.findings import ON_HOST
from capacity_validate.report_data import ValidationReport
from capacity_validate.review import class_table, parity_chart

_STYLE = """
.verdict{font-size:1.15rem;padding:.8rem 1rem;border-left:5px solid #2a7f62;background:#f2f8f5}
.failed{border-color:#b3402e;background:#fbf3f1}
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
        class_table(report.classes),
        figures_html(report),
        _section("Whole model and serving", _serving_tables(report)),
        _section("A real engine on the same device", _engine(report)),
        _section("Techniques", _findings(report)),
        _section("What calibration moved", _constants(report)),
        _section("Error bands of the calibrated profile", _bands(report)),
        _section("Memory", _memory(report)),
        _section("Not timed", _not_timed(report)),
        f"<h2>Every case</h2><details><summary>show</summary>{_cases(report)}</details>",
    ]
    title = f"capacity validate: {report.environment['device']}"
    return page_html(title, "\n".join(part for part in parts if part), style=_STYLE)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def number(value: float) -> str:
    """Whole numbers in full, others to four digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _facts(report: ValidationReport) -> str:
    facts, environment = report.environment["facts"], report.environment
    driver = facts["driver_version"]
    shown = {
        "date": environment["date"],
        "campaign": f"{report.campaign}, {report.seconds:.0f} s, {len(report.cases)} cases timed",
        "profile": report.profile,
        "torch": environment["torch"],
        "driver, CUDA": f"{driver}, {facts['cuda_version']}" if driver else "none",
        "memory": f"{facts['memory_total_bytes'] / 2**30:.1f} GiB",
        "basis": "measured on this device; held-out cases were not seen by the fit",
    }
    return table_html(None, shown.items()) + (list_html(report.remarks) if report.remarks else "")


def _cases(report: ValidationReport) -> str:
    return records_html(
        [
            {
                "case": r.id,
                "role": r.role,
                "measured": duration(r.measured_s),
                "by": r.how,
                "spread": percent(r.spread),
                "TFLOP/s": f"{r.flops_per_s / 1e12:.4g}" if r.flops else "",
                "GB/s": f"{r.bytes_per_s / 1e9:.4g}" if r.bytes else "",
                "of roof": percent(r.roof_fraction),
                "predicted before": duration(r.before_s),
                "error before": signed(r.error_before),
                "predicted after": duration(r.after_s),
                "error after": signed(r.error_after),
            }
            for r in report.cases
        ]
    )


def _serving_tables(report: ValidationReport) -> str:
    serving = [
        {
            "serving": f"run {number}: {s.requests} requests at {s.rate_per_s:.2f}/s",
            "mean TTFT measured / simulated": f"{duration(s.measured_ttft_s)} / {duration(s.simulated_ttft_s)} "
            f"({signed(s.ttft_error)})",
            "mean TPOT measured / simulated": f"{duration(s.measured_tpot_s)} / {duration(s.simulated_tpot_s)} "
            f"({signed(s.tpot_error)})",
            "same schedule": f"{s.equal_steps} of {s.steps}",
            "step error": percent(s.step_error_median),
        }
        for number, s in enumerate(report.serving, start=1)
    ]
    speculation = [
        {
            "speculative decoding": f"k = {r.draft_tokens}, agreement {r.agreement:g}",
            "accepted length / formula": f"{r.accepted_length:.2f} / {r.expected_length:.2f}",
            "speed-up measured, launched kernel by kernel / predicted": f"{r.measured_speedup:.2f} / "
            f"{r.predicted_speedup:.2f}",
            "greedy tokens equal": f"{r.equal_tokens} of {r.tokens}",
        }
        for r in report.speculation
    ]
    note = ""
    if (e := report.extrapolation) is not None:
        note = (
            f"<p>All {e.layers:.0f} layers, extrapolated from two depths: decode step {duration(e.measured_s)}, "
            f"predicted {duration(e.predicted_s)} ({signed(e.error)}).</p>"
        )
    return records_html(serving) + records_html(speculation) + note


def _engine(report: ValidationReport) -> str:
    if report.engine is None:
        return ""
    rows = [
        {"run": Path(run.path).name, "metric": row.pop(""), **row}
        for run in report.engine.runs
        for row in metric_rows(run.metrics)
    ]
    note = f"<p>{escape(report.engine.model)}, {escape(report.engine.engine)}. {escape(report.engine.verdict)}</p>"
    return note + records_html(rows)


def _findings(report: ValidationReport) -> str:
    return records_html(
        [
            {
                "": "holds" if f.passed else "FAILS",
                "what": f.name,
                "on": f.device or "measured device",
                "value": number(f.value),
                "limit": number(f.limit),
                "detail": f.detail,
            }
            for f in report.findings
        ]
    )


def _constants(report: ValidationReport) -> str:
    moved = [
        {
            "kernel": c.family,
            "constant": name,
            "before": f"{before:.4g}",
            "after": f"{after:.4g}",
            "cases": c.rows,
        }
        for c in report.constants
        for name, (before, after) in c.moved.items()
    ]
    refused = [{"not moved": r.family, "why": r.reason} for r in report.refused]
    return records_html(moved) + records_html(refused)


def _bands(report: ValidationReport) -> str:
    rows = [
        {"steps of": regime, "from": signed(low), "to": signed(high)}
        for regime, (low, high) in report.bands.items()
    ]
    note = "<p>Nine of ten steps that no fit saw lie within, measured over predicted.</p>"
    return note + records_html(rows) if rows else ""


def _memory(report: ValidationReport) -> str:
    shown = [
        (name.replace("_", " "), f"{value / 2**20:,.1f} MiB" if name.endswith("bytes") else f"{value:,.0f}")
        for name, value in report.memory.items()
    ]
    return table_html(None, shown) if shown else ""


def _not_timed(report: ValidationReport) -> str:
    rows = [{"case": case.id, "status": str(case.status), "why": case.note} for case in report.not_timed]
    if report.left_out:
        why = "left out: the budget was spent"
        rows.append({"case": f"{len(report.left_out)} cases", "status": "budget", "why": why})
    return records_html(rows)


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
        lines += printed(parts(comparison_view(report.engine), report.engine)).splitlines()
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
