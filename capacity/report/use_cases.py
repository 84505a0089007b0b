"""Use cases as text: the values of each use case, and their sources."""

from collections.abc import Sequence

from capacity.answers.listings import UseCaseListing
from capacity.base.latency_metrics import METRICS
from capacity.deployment import Traffic
from capacity.deployment.use_cases import Sourced, find_use_case
from capacity.report.display import phrase
from capacity.report.layout import render_text
from capacity.report.tables import render_listing
from capacity.report.views import units
from capacity.report.views.layout import draw_table
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Table
from capacity.workload import parse_slos

FROM_USER = "you"
VARIES = Unit(significant=6)
VALUES = (
    Column("name", "name"),
    Column("prompt", "input_len", units.COUNT),
    Column("CV", "input_len_cv", VARIES),
    Column("output", "output_len", units.COUNT),
    Column("CV", "output_len_cv", VARIES),
    Column("SLO", lambda case: ", ".join(case["slo"])),
    Column("think time, s", "think_time_s", VARIES),
)
SOURCES = (Column("name", "name"), Column("value", "of"), Column("basis and source", "source"))


def render_use_cases(cases: Sequence[UseCaseListing], format: str) -> str:
    """Return use cases as JSON, as CSV, or as two tables: the values of all use cases, and the sources of each."""
    if format != "table":
        return render_listing(cases, format, title="Use cases")
    sources = [
        {"name": "" if place else case["name"], "of": field, "source": origin}
        for case in cases
        for place, (field, origin) in enumerate(case["sources"].items())
    ]
    return render_text(
        map(draw_table, (Table("Use cases", cases, VALUES), Table("Sources", sources, SOURCES)))
    )


def assumption_rows(traffic: Traffic, slo: Sequence[str]) -> list[dict[str, object]]:
    """Return one row for each assumption about traffic and service levels: the value with its unit and origin."""
    if traffic.use_case is None:
        return []
    case = find_use_case(traffic.use_case)
    known: dict[str, tuple[str, str, Sourced]] = {
        "input_len": ("prompt", "tokens", case.input_len),
        "output_len": ("output", "tokens", case.output_len),
        "input_len_cv": ("prompt length variation", "CV", case.input_len),
        "output_len_cv": ("output length variation", "CV", case.output_len),
        "think_time_s": ("think time", "s", case.think_time_s),
    }
    own = tuple(slo) != case.slo.limits
    rows: list[dict[str, object]] = [
        {
            "what": what,
            "value": f"{getattr(traffic, field):g} {unit}",
            "from": FROM_USER if field in traffic.model_fields_set else origin.origin,
        }
        for field, (what, unit, origin) in known.items()
    ]
    rows.append(
        {"what": "target", "value": _format_levels(slo), "from": FROM_USER if own else case.slo.origin}
    )
    return rows


def _format_levels(levels: Sequence[str]) -> str:
    """Return service levels as text: `p99 TTFT 450 ms, p99 TPOT 40 ms`."""
    return ", ".join(
        f"{phrase('p{:g} ', level.percentile)}{METRICS[level.metric].label} {1e3 * level.limit_s:,.4g} ms"
        for level in parse_slos(levels)
    )
