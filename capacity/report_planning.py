"""Plans, costs and curves as text: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capacity.report import _facts, _grid, _text, flattened, to_csv

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capacity.planning.records import Plan, Point, Ranked
    from capacity.planning.trial import Level, Trial

SHOWN_REJECTIONS = 6


def render(answer: Any, format: str) -> str:
    """An answer in `format`: table, json or csv (of its rows)."""
    described = answer.to_dict()
    if format == "json":
        return json.dumps(finite(described), indent=2, allow_nan=False)
    if format == "csv":
        rows = described.get("ranked") or described.get("points") or described.get("rows") or [described]
        return to_csv([flattened(row) for row in rows])
    return _text(TABLES[described["schema"].split("/")[1]](answer))


def finite(value: Any) -> Any:
    """The same with null for infinite numbers, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


def plan_tables(plan: Plan) -> list[RenderableType]:
    """The answer, how sure it is, what stands in the way, and what was turned down."""
    rate = "all at once" if plan.requests_per_s == float("inf") else f"{plan.requests_per_s:,.2f} requests/s"
    head = (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {rate}, "
        f"{plan.input_tokens:,.0f} tokens in and {plan.output_tokens:,.0f} out on average\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; least {plan.objective}"
    )
    parts: list[RenderableType] = [head]
    parts.append(_ranked_table(plan) if plan.ranked else _misses_table(plan))
    if plan.ranked:
        parts += [_levels_table(plan.ranked), _quality_table(plan.ranked)]
        parts += [
            _front_table("Fastest per user against most per GPU, of what was simulated", plan.speed_front)
        ]
        parts += [_front_table("Price against margin, of what was simulated", plan.cost_front)]
    parts.append(_rejected_table(plan))
    counts = plan.counts
    proof = (
        "nothing cheaper is in doubt"
        if plan.proved
        else f"{counts.unresolved} engines were not reached in time"
    )
    parts.append(
        f"{counts.points:,} deployments ({counts.engines:,} engines): {counts.simulated:,} simulated "
        f"({counts.simulated_fraction:.1%}), {proof}; {plan.elapsed_s:.1f} s"
        + (f", first answer after {plan.first_answer_s:.1f} s" if plan.first_answer_s is not None else "")
    )
    parts += [f"price of {price}" for price in plan.prices]
    parts.append(f"not searched: {'; '.join(plan.not_searched)}")
    return [*parts, *(f"[yellow]note:[/yellow] {warning}" for warning in plan.warnings)]


def _ranked_table(plan: Plan) -> Any:
    table = _grid(
        "Deployments that meet the SLO, best first",
        ("deployment", "left"), ("GPUs", "right"), ("$/h", "right"), ("$/month", "right"), ("$/1M out", "right"),
        ("J/token", "right"), ("busiest level", "right"), ("confidence", "right"), ("quality loss", "right"),
    )  # fmt: skip
    for number, answer in enumerate(plan.ranked, start=1):
        cost = answer.cost
        gpus = f"{answer.num_gpus}" + (
            f" of {answer.billed_gpus}" if answer.billed_gpus > answer.num_gpus else ""
        )
        confidence = f"{answer.confidence:.0%}" + ("" if answer.trial.seen == "all" else " (1 replica)")
        table.add_row(
            f"{number}. {answer.candidate.label}",
            gpus,
            "-" if cost is None else f"{cost.usd_per_hour:,.2f}",
            "-" if cost is None else f"{cost.usd_per_month:,.0f}",
            "-" if cost is None else f"{cost.usd_per_million_output_tokens:,.3f}",
            "-" if answer.joules_per_output_token is None else f"{answer.joules_per_output_token:,.1f}",
            f"{answer.trial.ratio:.0%} of limit",
            confidence,
            quality_text(answer),
        )
    return table


def quality_text(answer: Ranked) -> str:
    """The published loss: typical, and at worst."""
    quality = answer.quality
    if quality.worst_loss_fraction is None or quality.typical_loss_fraction is None:
        return "unknown"
    if not quality.worst_loss_fraction:
        return "none"
    return f"{quality.typical_loss_fraction:.1%}, up to {quality.worst_loss_fraction:.1%}"


def level_text(level: Level | None) -> str:
    """A level's value, with its interval where it has one."""
    if level is None:
        return "-"
    if level.value_s is None:
        return f"{level.good_fraction:.2%}"
    interval = (
        ""
        if level.low_s is None or level.high_s is None
        else f" ({level.low_s * 1e3:,.0f} to {level.high_s * 1e3:,.0f})"
    )
    return f"{level.value_s * 1e3:,.0f} ms{interval}"


def _levels_table(ranked: Sequence[Ranked]) -> Any:
    slos = [level.slo for level in ranked[0].trial.levels]
    columns = [(f"{slo}{when}", "right") for slo in slos for when in (", as predicted", ", at confidence")]
    table = _grid(
        "Service levels (90 % interval of sampling)", ("", "left"), *columns, ("tok/s/user", "right")
    )
    for number, answer in enumerate(ranked, start=1):
        cells = []
        for place in range(len(slos)):
            cells += [level_text(_level(answer.predicted, place)), level_text(_level(answer.trial, place))]
        speed = answer.trial.tokens_per_s_per_user
        table.add_row(f"{number}.", *cells, "-" if speed is None else f"{speed:,.1f}")
    return table


def _level(trial: Trial | None, place: int) -> Level | None:
    return None if trial is None else trial.levels[place]


def _quality_table(ranked: Sequence[Ranked]) -> Any:
    sources = {a.quality.what: a.quality.source for a in ranked if a.quality.worst_loss_fraction != 0}
    if not sources:
        return ""
    return _facts(
        "Published quality of the formats", [(what, "", source) for what, source in sources.items()]
    )


def _misses_table(plan: Plan) -> Any:
    table = _grid(
        "[red]Nothing in the space meets the SLO[/red]",
        ("part", "left"), ("limit", "right"), ("best found", "left"), ("times the limit", "right"), ("on", "left"),
    )  # fmt: skip
    for miss in plan.misses:
        factor = "-" if miss.factor == float("inf") else f"{miss.factor:,.2f}"
        table.add_row(miss.slo, miss.limit, miss.best, factor, miss.candidate)
    return table


def _front_table(title: str, points: Sequence[Point]) -> Any:
    table = _grid(
        title, ("", "left"), ("GPUs", "right"), ("$/h", "right"), ("tok/s/user", "right"), ("tok/s/GPU", "right"),
        ("worst level", "right"),
    )  # fmt: skip
    for point in points:
        table.add_row(
            point.label + ("" if point.met else " (misses the SLO)"),
            str(point.num_gpus),
            "-" if point.usd_per_hour is None else f"{point.usd_per_hour:,.2f}",
            "-" if point.tokens_per_s_per_user is None else f"{point.tokens_per_s_per_user:,.1f}",
            f"{point.tokens_per_s_per_gpu:,.0f}",
            f"{max((level.ratio for level in point.levels), default=0):.2f} of limit",
        )
    return table


def _rejected_table(plan: Plan) -> Any:
    from capacity.planning.records import KINDS

    table = _grid("Turned down", ("engines", "right"), ("why", "left"), ("for one", "left"))
    for kind, count in sorted(plan.reasons.items(), key=lambda item: -item[1]):
        example = next(rejection for rejection in plan.rejected if rejection.kind == kind)
        pool = example.pool
        name = f"{pool.gpu} TP{pool.tensor_parallel_size} {pool.quantization or ''}".strip()
        table.add_row(f"{count:,}", KINDS[kind], f"{name}: {example.reason}")
    return table


TABLES: dict[str, Any] = {"plan": plan_tables}
