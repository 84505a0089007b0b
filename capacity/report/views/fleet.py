"""A fleet: the pools to rent, what each threshold would cost, how near the limits are, the reserve and the day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.base.quantity import Quantity
from capacity.planning.fleets.fleet_records import best_of
from capacity.report.plan import (
    CONDITIONAL,
    conditional_text,
    level_text,
    question_text,
    windows_table,
)
from capacity.report.subject import subject_of
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit
from capacity.report.views.view import Bars, Block, Column, Fact, OwnChart, Stack, Table, UprightStack, View

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level
    from capacity.planning.fleets.fleet_records import (
        FleetDay,
        FleetPlan,
        FleetPool,
        FleetProof,
        Layout,
    )

ONE_POOL = "one pool"
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
RATE = Unit(2)
CHANGE = Unit(1, 100, "%", sign="+")
WHOLE = "Replicas are whole and prices those of the table: bars have no interval of their own."


def fleet_facts(plan: FleetPlan) -> list[Fact]:
    """Return what to rent, what it costs, and what that saves."""
    best, day = plan.best, plan.day
    if best is None:
        return [Fact("To rent", "nothing", units.TEXT, "neither one pool nor several meets the SLO")]
    which = "for all" if len(best.pools) == 1 else f"of a {plan.split_by}, the shorter to the first pool"
    spare = [pool.spare_replicas for pool in best.pools]
    reserve = f"{' + '.join(map(str, spare))} replicas in reserve" if any(spare) else "no reserve"
    facts = [
        Fact("To rent", layout_text(best), units.TEXT, f"{plan.confidence:.0%} sure"),
        Fact("Threshold", threshold_text(best), units.TEXT, which),
        Fact("GPUs", best.num_gpus, units.COUNT, reserve),
        Fact("Per hour", best.usd_per_hour, units.usd(2), "reserve included"),
        Fact("$ per 1k requests", best.usd_per_request, units.USD_PER_1K, "as they come"),
        Fact("Saved", plan.saved, units.PERCENT, "of one pool for all"),
    ]
    if day is not None and day.fixed_usd_per_day is not None:
        note = f"${day.fixed_usd_per_day:,.2f} with the peak's fleet around the clock"
        facts.append(Fact("A day", day.scaled_usd_per_day, units.usd(2), note))
    return [fact for fact in facts if fact.value is not None]


def fleet_view(plan: FleetPlan, *, detail: bool = True) -> View:
    """Return what `fleet` shows, with `detail` the levels of every window."""
    return View(question_text(plan), _blocks(plan, detail))


def _blocks(plan: FleetPlan, detail: bool) -> Iterator[Block]:
    best = plan.best
    if not plan.proved:
        yield "[yellow]not proved:[/yellow] the search ended early; cheaper fleets may exist"
    if best is None:
        yield f"nothing meets the SLO, neither one pool nor {_pool_count(plan.max_pools)}:"
    else:
        yield from _answer(plan, best, detail)
    if plan.conditional:
        yield f"{CONDITIONAL}:"
        yield from _conditional_texts(plan)
    yield from _layout_blocks(plan)
    if plan.day is not None and best is not None:
        yield from _day_blocks(plan.day, best)
    yield from (f"price of {price}" for price in plan.prices)


def _answer(plan: FleetPlan, best: Layout, detail: bool) -> Iterator[Block]:
    """What to rent, which requests go where, what more pools would buy, and how all of it was proved."""
    bill = "" if best.usd_per_hour is None else f": ${best.usd_per_hour:,.2f}/h"
    if best.usd_per_request is not None:
        bill += f", {units.USD_PER_1K.texts(best.usd_per_request)[0]} per 1k requests"
    yield f"[bold]Rent {layout_text(best)}[/bold]{bill}"
    yield from _routes(plan, best)
    yield from _more_pools(plan, best)
    if plan.proof is not None:
        levels = ", ".join(f"{level.slo}: {level_text(level)}" for level in plan.proof.levels)
        met = "[green]met[/green]" if plan.proof.met else "[red]missed[/red]"
        yield f"{met}: all pools behind the router, simulated on {plan.proof.requests:,} requests: {levels}"
        yield from _windows_blocks(plan, plan.proof, detail)
    if plan.replica_availability is not None:
        yield f"each replica is there {plan.replica_availability:.3%} of the time"
    yield _pools_table(best)
    yield _levels_chart(best)


def _routes(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """Which requests go where, and what that saves over one pool."""
    if len(best.pools) == 1:
        tried = plan.max_pools > 1
        yield "one pool for all" + (": no threshold that was tried is cheaper" if tried else "")
        return
    what = "prompts" if plan.split_by == "prompt" else "requests"
    limits = zip(best.thresholds_tokens, PLACES, strict=False)
    shares = (f"of up to {tokens:,} tokens go to the {place}" for tokens, place in limits)
    yield f"{what} {', '.join(shares)} ({plan.router})"
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
            yield f"a {place} pool saves {less:.1%} over {_pool_count(layout.num_pools - 1)}"
        elif layout.objective is not None:
            yield f"with a {place} pool the SLO is met: with fewer it is not"
        elif layout.outcome == "cannot be cheaper" and best.num_pools < layout.num_pools:
            yield f"a {place} pool buys nothing: {layout.reason}"


def _pool_count(most_pools: int) -> str:
    return {1: "more", 2: "two"}.get(most_pools, f"up to {most_pools}")


def _windows_blocks(plan: FleetPlan, proof: FleetProof, detail: bool) -> Iterator[Block]:
    """The service levels over time, the worst window of each stretch, where requests were judged by window."""
    from capacity.report.figures.planning import windows_chart

    windows = proof.windows
    if proof.window is None or not windows:
        return
    yield f"worst window: {proof.window.text}"
    yield OwnChart(lambda _: windows_chart(windows, subject=subject_of(plan)))
    if not detail:
        yield "--detail has the levels of every window"
        return
    yield windows_table(windows)


def layout_text(found: Layout) -> str:
    """Return the engines of all its pools: `2 x l4-24gb + 2+1 x h100-sxm-80gb TP2`."""
    return " + ".join(map(_engines_text, found.pools))


def _engines_text(pool: FleetPool) -> str:
    """`2+1 x h100-sxm-80gb TP2`, where one stands in reserve."""
    size = pool.pool.tensor_parallel_size * pool.pool.pipeline_parallel_size
    spare = f"+{pool.spare_replicas}" if pool.spare_replicas else ""
    return f"{pool.replicas}{spare} x {pool.pool.gpu}" + (f" TP{size}" if size > 1 else "")


def threshold_text(layout: Layout) -> str:
    """Return `1,344 tokens`, `1,024 and 4,096 tokens`, or `one pool`; how many pools were tried where none is found."""
    if layout.num_pools == 1:
        return ONE_POOL
    tokens = " and ".join(f"{each:,}" for each in layout.thresholds_tokens)
    return f"{tokens} tokens" if tokens else f"{layout.num_pools} pools"


def _pools_table(best: Layout) -> Table:
    columns = [
        Column("pool", "label"),
        Column("engines", _engines_text),
        Column("in reserve", "spare_replicas", units.COUNT),
        Column("requests", "request_share", units.PERCENT),
        Column("requests/s", "requests_per_s", RATE),
        Column("tokens in", "input_tokens", units.COUNT),
        Column("out", "output_tokens", units.COUNT),
        Column("$/h", "usd_per_hour", RATE),
        Column("levels", lambda pool: "; ".join(f"{level.slo} {level_text(level)}" for level in pool.levels)),
    ]
    return Table("Pools", best.pools, columns)


def _levels_chart(best: Layout) -> Bars:
    """How near each pool is to the limits of its requests, with the 90 % interval of the traffic's chance."""
    levels = {f"{pool.label}, {level.slo}": level for pool in best.pools for level in pool.levels}
    return Bars(
        name="fleet_levels",
        title="How near each pool is to its limits",
        alt="; ".join(f"{name} {level_text(level)}" for name, level in levels.items())
        or "No limits of its own.",
        data={"% of the limit": {name: _share_of_limit(level) for name, level in levels.items()}},
        unit=units.PERCENT,
        labels="pool and level",
        axis="% of the limit",
        reference=(100.0, "limit"),
    )


def _share_of_limit(level: Level) -> Quantity:
    low, high = (None if end is None else end / level.limit_s for end in (level.low_s, level.high_s))
    return Quantity(value=level.ratio, low=low, high=high)


def _conditional_texts(plan: FleetPlan) -> Iterator[str]:
    """The deployments that are not recommended, by pool, a line each."""
    pools = {} if plan.best is None else {pool.label: pool for pool in plan.best.pools}
    for label, found in plan.conditional.items():
        least = pools[label].objective(plan.objective) if label in pools else None
        for each in found:
            yield f"{label} requests, {conditional_text(plan.objective, least, each)}"


def _layout_blocks(plan: FleetPlan) -> Iterator[Block]:
    best, one = plan.best, plan.one_pool
    base = None if one is None else one.objective

    columns = [
        Column("threshold", threshold_text, units.TEXT),
        Column(
            "short", lambda each: each.pools[0].request_share if len(each.pools) > 1 else None, units.PERCENT
        ),
        Column(
            "engines", lambda each: layout_text(each) + " *" * (each is best) or each.reason or each.outcome
        ),
        Column("GPUs", lambda each: each.num_gpus if each.pools else None, units.COUNT),
        Column("$/h", "usd_per_hour", RATE),
        Column(
            "to one pool", lambda each: each.objective / base - 1 if each.objective and base else None, CHANGE
        ),
    ]
    table = Table("Thresholds that were tried", plan.layouts, columns)
    yield _layouts_chart(plan, table)
    yield table


def _layouts_chart(plan: FleetPlan, table: Table) -> Stack:
    """What each threshold would cost, its pools upon each other; $ an hour, or GPUs where that is what is least."""
    best, one = plan.best, plan.one_pool
    found = {threshold_text(each): each for each in plan.layouts if each.pools}
    priced = plan.objective == "cost" and all(each.usd_per_hour is not None for each in found.values())
    what, measure = ("$ an hour", "usd_per_hour") if priced else ("GPUs", "num_gpus")
    most = max((len(each.pools) for each in found.values()), default=0)
    names = ["pool for all, or for the shortest", *(f"pool {n}, for longer ones" for n in range(2, most + 1))]
    words = "nothing meets the service levels"
    if best is not None:
        words = f"the least is {threshold_text(best)}: {layout_text(best)}"
    return Stack(
        name="fleet_layouts",
        title=f"{what[0].upper()}{what[1:]} by threshold",
        alt=f"{len(plan.layouts)} layouts were tried; {words}.",
        data={
            name: {
                threshold: getattr(each.pools[place], measure) if place < len(each.pools) else None
                for threshold, each in found.items()
            }
            for place, name in enumerate(names)
        },
        labels="threshold",
        axis=what,
        reference=(None if one is None else one.objective, ONE_POOL),
        note=WHOLE,
        rows=table_records(table) if found else (),
    )


def _day_blocks(day: FleetDay, best: Layout) -> Iterator[Block]:
    """Replicas by the hour of each pool, and what following the day saves."""
    names = [f"{pool.label}: {pool.pool.gpu}" for pool in best.pools]
    counts = [Column(name, f"replicas.{place}", units.COUNT) for place, name in enumerate(names)]
    columns = [
        Column("hour", "hour", units.COUNT),
        Column("requests/s", "request_rate_per_s", RATE),
        *counts,
        Column("$/h", "usd_per_hour", RATE),
    ]
    table = Table("Replicas by the hour of a day, from midnight, each number simulated", day.hours, columns)
    words = "No bill of a day was asked for."
    if day.scaled_usd_per_day is not None and day.fixed_usd_per_day:
        less = _less_text(1 - day.scaled_usd_per_day / day.fixed_usd_per_day)
        words = (
            f"${day.scaled_usd_per_day:,.2f} a day, {less} than ${day.fixed_usd_per_day:,.2f} of the peak's fleet "
            "around the clock; starting replicas is not in it"
        )
        yield words
    yield UprightStack(
        name="fleet_day",
        title="Replicas by the hour of a day",
        alt=words,
        data={
            name: {hour.hour: hour.replicas[place] for hour in day.hours} for place, name in enumerate(names)
        },
        labels="hour of the day",
        axis="replicas",
        rows=table_records(table),
    )
    yield table


def _less_text(saved: float) -> str:
    """`12.3% less`, or `no less` of what is not seen with so many digits."""
    return f"{saved:.1%} less" if round(saved, 3) > 0 else "no less"
