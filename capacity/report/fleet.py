"""What `fleet` answers, as tables: the pools to rent, what each threshold would cost, the reserve and the day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.planning.fleets.fleet_records import best_of
from capacity.report.display import shown
from capacity.report.layout import Part, listed, notes
from capacity.report.plan import CONDITIONAL, conditional_text, level_text, window_line, windows_table

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level
    from capacity.planning.fleets.fleet_records import FleetDay, FleetPlan, FleetPool, Layout

ONE_POOL = "one pool"
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def fleet_summary(plan: FleetPlan) -> list[Part]:
    """What `fleet_tables` has without the levels of every window."""
    parts = fleet_tables(plan, detail=False)
    windowed = plan.proof is not None and plan.proof.windows
    return [*parts, "--detail has the levels of every window"] if windowed else parts


def fleet_tables(plan: FleetPlan, *, detail: bool = True) -> list[Part]:
    """The fleet, what it saves over one pool, every threshold that was tried, and what of it is simulated."""
    best = plan.best
    parts: list[Part] = [_header(plan)]
    if not plan.proved:
        parts.append("[yellow]not proved:[/yellow] the search ended early; cheaper fleets may exist")
    if best is None:
        parts.append(f"nothing meets the SLO, neither one pool nor {_many(plan.max_pools)}:")
    else:
        parts += ["\n".join(_answer(plan, best)), _pools_table(best)]
    if detail and plan.proof is not None:
        parts.append(windows_table(plan.proof.windows))
    if plan.conditional:
        parts.append("\n".join([f"{CONDITIONAL}:", *(f"  {text}" for text in fleet_conditional_texts(plan))]))
    parts.append(_layouts_table(plan))
    if plan.day is not None and best is not None:
        parts.append(_day_text(plan.day, best))
    return [
        *parts,
        *(f"price of {price}" for price in plan.prices),
        *notes(plan.warnings),
    ]


def fleet_conditional_texts(plan: FleetPlan) -> list[str]:
    """The deployments that are not recommended, by pool, a line each."""
    pools = {} if plan.best is None else {pool.label: pool for pool in plan.best.pools}
    return [
        f"{label} requests, "
        + conditional_text(
            plan.objective, pools[label].objective(plan.objective) if label in pools else None, each
        )
        for label, found in plan.conditional.items()
        for each in found
    ]


def _header(plan: FleetPlan) -> str:
    rate = plan.requests_per_s
    arriving = "all at once" if rate == float("inf") else f"{rate:,.2f} requests/s"
    return (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {arriving}\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; least {plan.objective}"
        f"{window_line(plan)}"
    )


def _answer(plan: FleetPlan, best: Layout) -> Iterator[str]:
    names = layout_text(best)
    bill = "" if best.usd_per_hour is None else f": ${best.usd_per_hour:,.2f}/h"
    if best.usd_per_request is not None:
        bill += f", ${best.usd_per_request * 1e3:,.4f} per 1k requests"
    yield f"\n[bold]Rent {names}[/bold]{bill}"
    yield from (f"  {line}" for line in routed(plan, best))
    if plan.proof is not None:
        levels = ", ".join(f"{level.slo}: {level_text(level)}" for level in plan.proof.levels)
        met = "[green]met[/green]" if plan.proof.met else "[red]missed[/red]"
        yield f"  all pools behind the router, simulated on {plan.proof.requests:,} requests: {met}; {levels}"
        if plan.proof.window is not None:
            yield f"  worst window: {plan.proof.window.text}"
    if plan.replica_availability is not None:
        yield f"  each replica is there {plan.replica_availability:.3%} of the time"


def routed(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """Which requests go where, what that saves over one pool, and what more pools would buy."""
    yield from _routes(plan, best)
    yield from _more_pools(plan, best)


def _routes(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """Which requests go where, and what that saves over one pool."""
    if len(best.pools) == 1:
        tried = plan.max_pools > 1
        yield "one pool for all" + (": no threshold that was tried is cheaper" if tried else "")
        return
    what = "prompts" if plan.split_by == "prompt" else "requests"
    limits = zip(best.thresholds_tokens, PLACES, strict=False)
    (first, *others) = [f"of up to {tokens:,} tokens go to the {place}" for tokens, place in limits]
    others = [text.replace(" tokens go", "") for text in others]
    yield f"{what} {', '.join([first, *others])} ({plan.router})"
    one = plan.one_pool
    if one is None or one.objective is None:
        yield "one pool for all does not meet the SLO"
    elif plan.saved is not None:
        yield f"{_less_text(plan.saved)} than one pool for all ({layout_text(one)})"


def _more_pools(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """What a third pool buys, and a fourth, where they were looked for."""
    fewer = [layout for layout in plan.layouts if layout.num_pools < 3]
    for layout in (each for each in plan.layouts if each.num_pools > 2):
        before, place = best_of(fewer), PLACES[layout.num_pools - 1]
        fewer.append(layout)
        if layout.objective is not None and before is not None and before.objective:
            less = 1 - layout.objective / before.objective
            yield f"a {place} pool saves {less:.1%} over {_many(layout.num_pools - 1)}"
        elif layout.objective is not None:
            yield f"with a {place} pool the SLO is met: with fewer it is not"
        elif layout.outcome == "cannot be cheaper" and best.num_pools < layout.num_pools:
            yield f"a {place} pool buys nothing: {layout.reason}"


def _many(most_pools: int) -> str:
    return {1: "more", 2: "two"}.get(most_pools, f"up to {most_pools}")


def layout_text(found: Layout) -> str:
    """The engines of all its pools: `2 x l4-24gb + 2+1 x h100-sxm-80gb TP2`."""
    return " + ".join(map(engines_text, found.pools))


def engines_text(pool: FleetPool) -> str:
    """`2+1 x h100-sxm-80gb TP2`, where one stands in reserve."""
    size = pool.pool.tensor_parallel_size * pool.pool.pipeline_parallel_size
    spare = f"+{pool.spare_replicas}" if pool.spare_replicas else ""
    return f"{pool.replicas}{spare} x {pool.pool.gpu}" + (f" TP{size}" if size > 1 else "")


def _pools_table(best: Layout) -> Part:
    return listed(
        "Pools",
        best.pools,
        ("pool", "left", lambda pool: pool.label),
        ("engines", "left", engines_text),
        ("requests", "right", lambda pool: f"{pool.request_share:.1%}"),
        ("requests/s", "right", lambda pool: f"{pool.requests_per_s:,.2f}"),
        ("tokens in", "right", lambda pool: f"{pool.input_tokens:,.0f}"),
        ("out", "right", lambda pool: f"{pool.output_tokens:,.0f}"),
        ("$/h", "right", lambda pool: shown(pool.usd_per_hour, ",.2f")),
        ("levels", "left", lambda pool: "; ".join(map(_level, pool.levels))),
    )


def _level(level: Level) -> str:
    return f"{level.slo} {level_text(level)}"


def _layouts_table(plan: FleetPlan) -> Part:
    best, one = plan.best, plan.one_pool
    base = None if one is None else one.objective

    def against(layout: Layout) -> str:
        if layout.objective is None or not base:
            return "-"
        return f"{layout.objective / base - 1:+.1%}"

    def engines(layout: Layout) -> str:
        if not layout.pools:
            return layout.reason or layout.outcome
        return layout_text(layout) + (" *" if layout is best else "")

    return listed(
        "Thresholds that were tried",
        plan.layouts,
        ("tokens", "right", thresholds_text),
        ("short", "right", lambda each: f"{each.pools[0].request_share:.1%}" if len(each.pools) > 1 else "-"),
        ("engines", "left", engines),
        ("GPUs", "right", lambda each: f"{each.num_gpus}" if each.pools else "-"),
        ("$/h", "right", lambda each: shown(each.usd_per_hour, ",.2f")),
        ("to one pool", "right", against),
    )


def thresholds_text(layout: Layout, *, between: str = " ", unit: str = "") -> str:
    """`1,344`, `1,024 4,096` of three pools, or `one pool`; where none was found, how many pools were tried."""
    if layout.num_pools == 1:
        return ONE_POOL
    tokens = between.join(f"{each:,}" for each in layout.thresholds_tokens)
    return tokens + unit if tokens else f"{layout.num_pools} pools"


def _day_text(day: FleetDay, best: Layout) -> str:
    """Replicas by the hour of each pool, and what following the day saves."""
    lines = ["Replicas by the hour of a day, from midnight, each number simulated:"]
    for place, pool in enumerate(best.pools):
        counts = " ".join(str(hour.replicas[place]) for hour in day.hours)
        lines.append(f"  {pool.label} ({pool.pool.gpu}): {counts}")
    if day.scaled_usd_per_day is not None and day.fixed_usd_per_day:
        less = 1 - day.scaled_usd_per_day / day.fixed_usd_per_day
        lines.append(
            f"  ${day.scaled_usd_per_day:,.2f} a day, {_less_text(less)} than ${day.fixed_usd_per_day:,.2f} "
            "of the peak's fleet around the clock; starting replicas is not in it"
        )
    return "\n".join(lines)


def _less_text(saved: float) -> str:
    """`12.3% less`, or `no less` of what is not seen with so many digits."""
    return f"{saved:.1%} less" if round(saved, 3) > 0 else "no less"
