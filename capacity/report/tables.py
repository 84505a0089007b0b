"""Answers as text: a table for people, JSON and CSV for programs. The one way from any record to what is printed.

The tables of an answer stand in the module that `TABLES` names; it is imported when such an answer is printed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from capacity.base.record import AnswerRecord
from capacity.base.rows import flattened, to_csv
from capacity.report.layout import GIB, Part, grid, printed

TABLES = {
    "fit": "capacity.report.answers:fit_tables",
    "estimate": "capacity.report.answers:estimate_tables",
    "explain": "capacity.report.answers:explain_tables",
    "fit-comparison": "capacity.report.fit_comparison:fit_comparison_tables",
    "engine-comparison": "capacity.report.engine_comparison:engine_comparison_tables",
    "gpu-support": "capacity.report.gpu_support:gpu_support_tables",
    "gpu-comparison": "capacity.report.gpu_comparison:gpu_comparison_tables",
    "frontier": "capacity.report.frontier:frontier_tables",
    "load-sweep": "capacity.report.load_sweep:load_sweep_tables",
    "simulation": "capacity.report.simulation:simulation_tables",
    "plan": "capacity.report.plan:plan_tables",
    "fleet": "capacity.report.fleet:fleet_tables",
    "cost": "capacity.report.cost:bill_tables",
    "cascade": "capacity.report.cascade:cascade_tables",
    "curve": "capacity.report.curve:curve_tables",
    "diff": "capacity.report.comparisons:diff_tables",
    "tornado": "capacity.report.comparisons:tornado_tables",
    "advice": "capacity.report.comparisons:advice_tables",
    "stack": "capacity.report.stack:stack_tables",
    "swept": "capacity.report.sweep:swept_tables",
}  # by the name of the answer's schema
SUMMARIES = {
    "estimate": "capacity.report.answers:estimate_summary",
    "simulation": "capacity.report.simulation:simulation_summary",
    "plan": "capacity.report.plan_summary:plan_summary",
    "fleet": "capacity.report.fleet:fleet_summary",
}  # one screen, of answers whose tables take more
SHEETS = {
    "estimate": "capacity.report.answers:estimate_sheet",
    "simulation": "capacity.report.simulation:simulation_sheet",
}  # on a page, whose charts have the rest
PAGES = {
    "plan": "capacity.report.plan_html:plan_html",
    "curve": "capacity.report.plan_html:curve_html",
}  # of their own; of the others pages hold their tables
Tables = Callable[[Any], list[Part]]


def schema_name(answer: AnswerRecord) -> str:
    """`fit` of `capacity/fit/v1`."""
    return answer.SCHEMA.split("/")[1]


def render(
    answer: AnswerRecord,
    format: str,
    *,
    tables: Tables | None = None,
    detail: bool = True,
    command: str | None = None,
    python: str | None = None,
) -> str:
    """An answer in `format`: table (by `tables`, else by `TABLES`), json, csv (its rows, or the record where it has
    none), or html, a page to print with the `command` or the `python` that asks again. Without `detail`, a table is one
    screen."""
    name = schema_name(answer)
    if format == "table":
        return printed((tables or _drawn_by(name, {} if detail else SUMMARIES))(answer))
    if format == "html":
        if name in PAGES and tables is None:
            return str(resolve_name(PAGES[name])(answer, command=command))
        from capacity.report.sheet import answer_html

        parts = (tables or _drawn_by(name, SHEETS))(answer)
        return answer_html(answer, parts, command=command, python=python)
    if format == "json":
        return json.dumps(finite(answer.to_dict()), indent=2, allow_nan=False)
    return to_csv(answer.to_rows())


def _drawn_by(name: str, instead: Mapping[str, str]) -> Tables:
    """What draws answers of this name: of `instead`, of `TABLES`, or a technique's own."""
    where = {**TABLES, **instead}.get(name)
    if where is None:
        from capacity.report.techniques import tables_of

        return tables_of(name)
    return resolve_name(where)  # type: ignore[no-any-return]


def finite(value: object) -> object:
    """The same with null for infinite numbers, which JSON has no word for; a NaN is left to be refused."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


# heading, key of the flattened record, and what it is divided by
COLUMNS = {
    "Models": (
        ("params, B", "total_params", 1e9),
        ("active, B", "active_params", 1e9),
        ("KV KiB/token, 16 bit", "kv_bytes_per_token", 1024),
    ),
    "GPUs": (
        ("GiB", "memory_bytes", GIB),
        ("HBM TB/s", "hbm_bytes_per_s", 1e12),
        ("BF16 TFLOP/s", "dense_flops_per_s.bf16", 1e12),
        ("FP8", "dense_flops_per_s.fp8", 1e12),
        ("FP4", "dense_flops_per_s.fp4", 1e12),
        ("link GB/s", "link_bytes_per_s", 1e9),
        ("TDP W", "tdp_watts", 1),
    ),
}


def listing(rows: Sequence[Mapping[str, object]], format: str, *, title: str) -> str:
    """A list of records as JSON, CSV, or a table of `COLUMNS[title]`."""
    if format == "json":
        return json.dumps(list(rows), indent=2)
    flat = [flattened(row) for row in rows]
    if format == "csv":
        return to_csv(flat)
    columns = COLUMNS[title]
    table = grid(title, ("name", "left"), *((heading, "right") for heading, _, _ in columns))
    table.columns[0].no_wrap = True
    for row in flat:
        cells = ((row.get(key), scale) for _, key, scale in columns)
        table.add_row(row["name"], *("-" if v is None else f"{v / scale:,.5g}" for v, scale in cells))
    return printed([table])
