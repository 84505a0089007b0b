"""The report as one self-contained HTML file, and as lines for a terminal."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.html import list_html, page_html, table_html
from capacity.report.layout import render_text
from capacity.report.tables_html import parts_html
from capacity.report.views.layout import draw_table
from capacity.report.views.layout import view_parts as view_parts
from capacity.report.views.units import COUNT, TEXT, Unit
from capacity.report.views.view import Block, Column, Table, View
from capacity_validate.cases import ON_HOST
from capacity_validate.comparison import comparison_view
from capacity_validate.report_data import ServingComparison, ValidationReport
from capacity_validate.review import CLASSES, parity_chart

_STYLE = """
caption{text-align:left;font-weight:600;padding:.3rem 0}
.verdict{font-size:1.15rem;padding:.8rem 1rem;border-left:5px solid #2a7f62;background:#f2f8f5}
.failed{border-color:#b3402e;background:#fbf3f1}
"""


def to_html(report: ValidationReport) -> str:
    """Return the report as an HTML page with tables, a roofline and a parity plot; it loads nothing from a network."""
    mark = "verdict" if report.exit_code == 0 else "verdict failed"
    cases = parts_html([draw_table(Table("", report.cases, CASES))])
    engine = (
        "" if report.engine is None else parts_html(view_parts(comparison_view(report.engine), report.engine))
    )
    parts = [
        f"<h1>Validation of the step model: {escape(report.environment['device'])}</h1>",
        f'<p class="{mark}">{escape(report.verdict)}</p>',
        _facts_html(report),
        parts_html(view_parts(View("", [_class_table(report)]), report)),
        figures_html(report),
        engine and f"<h2>A real engine on the same device</h2>{engine}",
        parts_html(view_parts(_view(report), report)),
        f"<h2>All cases</h2><details><summary>show</summary>{cases}</details>",
    ]
    title = f"capacity validate: {report.environment['device']}"
    return page_html(title, "\n".join(part for part in parts if part), style=_STYLE)


def format_signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _facts_html(report: ValidationReport) -> str:
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
    return table_html(None, shown.items()) + list_html(report.remarks)


PERCENT, FOUR = Unit(1, 100, " %", none=""), Unit(significant=4, none="")
SIGNED = Unit(1, 100, " %", sign="+", none="")
TIME = Unit(none="", text=duration)
NUMBER = Unit(
    show=lambda number, _: (f"{number.value:{',.0f' if float(number.value).is_integer() else '.4g'}}", "")
)


def _both_means(metric: str) -> Callable[[tuple[int, ServingComparison]], str]:
    """Return a function that formats a serving run's mean `metric`: measured / simulated (error)."""

    def find(run: tuple[int, ServingComparison]) -> str:
        measured, simulated, error = (
            getattr(run[1], name)
            for name in (f"measured_{metric}_s", f"simulated_{metric}_s", f"{metric}_error")
        )
        return f"{duration(measured)} / {duration(simulated)} ({format_signed(error)})"

    return find


CASES = [
    Column("case", "id"),
    Column("role", "role"),
    Column("measured", "measured_s", TIME),
    Column("timed by", "how"),
    Column("spread", "spread", PERCENT),
    Column("TFLOP/s", lambda r: r.flops_per_s / 1e12 if r.flops else None, FOUR),
    Column("GB/s", lambda r: r.bytes_per_s / 1e9 if r.bytes else None, FOUR),
    Column("fraction of roof", "roof_fraction", PERCENT),
    Column("predicted before", "before_s", TIME),
    Column("error before", "error_before", SIGNED),
    Column("predicted after", "after_s", TIME),
    Column("error after", "error_after", SIGNED),
]
SERVING = [
    Column("serving", lambda run: f"run {run[0]}: {run[1].requests} requests at {run[1].rate_per_s:.2f}/s"),
    Column("mean TTFT measured / simulated", _both_means("ttft")),
    Column("mean TPOT measured / simulated", _both_means("tpot")),
    Column("same schedule", lambda run: f"{run[1].equal_steps} of {run[1].steps}"),
    Column("step error", "1.step_error_median", PERCENT),
]
SPECULATION = [
    Column("speculative decoding", lambda r: f"k = {r.draft_tokens}, agreement {r.agreement:g}"),
    Column("accepted length / formula", lambda r: f"{r.accepted_length:.2f} / {r.expected_length:.2f}"),
    Column(
        "speed-up: measured (kernels launched one by one) / predicted",
        lambda r: f"{r.measured_speedup:.2f} / {r.predicted_speedup:.2f}",
    ),
    Column("greedy tokens equal", lambda r: f"{r.equal_tokens} of {r.tokens}"),
]
FINDINGS = [
    Column("", lambda f: "passed" if f.passed else "[red]FAILED[/red]"),
    Column("check", "name"),
    Column("device", lambda f: f.device or "measured device"),
    Column("value", "value", NUMBER),
    Column("limit", "limit", NUMBER),
    Column("detail", "detail"),
]
CONSTANTS = [
    Column("kernel", "0"),
    Column("constant", "1"),
    Column("before", "2", FOUR),
    Column("after", "3", FOUR),
    Column("cases", "4", COUNT),
]


def _class_table(report: ValidationReport) -> Table:
    return Table("Errors before and after calibration", report.classes, CLASSES)


def _run_blocks(report: ValidationReport) -> list[Block]:
    bands = [(regime, *ends) for regime, ends in report.bands.items()]
    return [
        Table("Whole model and serving", list(enumerate(report.serving, start=1)), SERVING),
        Table("Speculative decoding", report.speculation, SPECULATION),
        Table(
            "Error bands of the calibrated profile: 90 % intervals of measured / predicted - 1",
            bands,
            [Column("phase", "0"), Column("from", "1", SIGNED), Column("to", "2", SIGNED)],
        ),
    ]


def _view(report: ValidationReport) -> View:
    """Return the tables below the charts: whole-model runs, technique checks, constants, memory, untimed cases."""
    moved = [(c.family, name, *ends, c.rows) for c in report.constants for name, ends in c.moved.items()]
    memory = [
        (name.replace("_", " "), f"{value / 2**20:,.1f} MiB" if name.endswith("bytes") else f"{value:,.0f}")
        for name, value in report.memory.items()
    ]
    missing = [(case.id, str(case.status), case.note) for case in report.not_timed]
    if report.left_out:
        missing.append((f"{len(report.left_out)} cases", "budget", "omitted: the budget was spent"))
    extrapolated = [
        f"All {found.layers:.0f} layers, extrapolated from two depths: decode step {duration(found.measured_s)}, "
        f"predicted {duration(found.predicted_s)} ({format_signed(found.error)})."
        for found in (report.extrapolation,)
        if found is not None
    ]
    blocks: list[Block] = [
        *_run_blocks(report),
        *extrapolated,
        Table("Checks of inference techniques and memory", report.findings, FINDINGS),
        Table("Calibrated constants", moved, CONSTANTS),
        Table(
            "Constants not changed", report.refused, [Column("kernel", "family"), Column("reason", "reason")]
        ),
        Table("Memory", memory, [Column("part", "0"), Column("amount", "1", TEXT)]),
        Table("Not timed", missing, [Column("case", "0"), Column("status", "1"), Column("reason", "2")]),
    ]
    return View("", blocks)


def summary_lines(report: ValidationReport, folder: Path | str | None = None) -> list[str]:
    """Return the terminal summary: errors by kind of case, results of whole-model runs, notes, and the verdict."""
    tables = View("", [_class_table(report), *_run_blocks(report)])
    lines = render_text(view_parts(tables, report)).splitlines()
    if report.engine is not None:
        lines += render_text(view_parts(comparison_view(report.engine), report.engine)).splitlines()
    held = sum(f.passed for f in report.findings)
    on_host = sum(f.device == ON_HOST for f in report.findings)
    on_cpu = report.environment.get("kind") == "cpu"
    where = "" if on_cpu else f", {on_host} of them checked only on the host's CPU"
    lines.append(f"inference techniques: {held} of {len(report.findings)} checks passed{where}")
    lines += [f"not timed: {case.id}: {case.status}: {case.note}" for case in report.not_timed]
    if report.left_out:
        lines.append(f"omitted because the budget was spent: {len(report.left_out)} cases")
    lines += [f"note: {remark}" for remark in report.remarks]
    if folder is not None:
        profile = f", {report.profile.partition('@')[0]}@mine.toml" if report.constants else ""
        lines.append(f"written: {folder}/report.html, report.json{profile}")
    lines.append(report.verdict)
    return lines


def figures_html(report: ValidationReport) -> str:
    """Return the roofline and parity charts as HTML; plotly's script is included only once."""
    import plotly.io

    roofline = _roofline(report)
    figures = [] if roofline is None else [roofline]
    if any(row.role == "held out" for row in report.cases):
        figures.append(parity_chart(report.cases, report.environment["device"]).figure)
    return "".join(
        plotly.io.to_html(figure, full_html=False, include_plotlyjs=position == 0)
        for position, figure in enumerate(figures)
    )


def _roofline(report: ValidationReport) -> Any:
    """Return a chart of measured FLOP/s against arithmetic intensity, with the profile's roofs; None without cases."""
    from plotly import express

    rows = [r for r in report.cases if r.flops > 0 and r.bytes > 0]
    if not rows:
        return None
    intensities = [row.flops / row.bytes for row in rows]
    figure = express.scatter(
        x=intensities,
        y=[row.flops_per_s for row in rows],
        color=[row.family for row in rows],
        hover_name=[row.id for row in rows],
        labels={"x": "FLOP per byte", "y": "FLOP/s", "color": ""},
        title="Roofline: measured kernels and the profile's roofs",
        log_x=True,
        log_y=True,
        height=520,
    )
    span = np.geomspace(min(intensities) / 3, max(intensities) * 10, 51)
    for name in sorted({row.family.split("/")[1] for row in rows} & set(report.roofs)):
        roof = np.minimum(report.roofs[name], span * report.roofs["hbm_bytes_per_s"])
        figure.add_scatter(x=span, y=roof, mode="lines", name=f"roof {name}")
    return figure
