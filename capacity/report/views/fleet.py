"""The view of `fleet`: pools to rent, cost by length threshold, SLO headroom, spare replicas, and one day by hour."""

from collections.abc import Iterator
from functools import partial

from capacity.base.money import money_text
from capacity.planning.fleets.fleet_records import FleetDay, FleetPlan, FleetPool, FleetProof, Layout, best_of
from capacity.report.display import money_phrase, phrase
from capacity.report.plan import (
    CONDITIONAL_HEADING,
    conditional_text,
    level_text,
    question_text,
    share_of_limit,
    windows_table,
)
from capacity.report.subject import describe_answer
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit
from capacity.report.views.view import (
    Bars,
    Block,
    Column,
    CustomChart,
    Fact,
    Stack,
    Table,
    VerticalStack,
    View,
    known_facts,
    list_with_heading,
)

ONE_POOL = "one pool"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
RATE = Unit(2)
NO_INTERVAL_NOTE = "Bars have no interval: replicas are whole numbers and prices come from the price table."


def fleet_facts(plan: FleetPlan) -> list[Fact]:
    """Return the pools to rent, their cost, and the savings compared with one pool."""
    best, day = plan.best, plan.day
    if best is None:
        return [Fact("To use", "none", units.TEXT, "no fleet with one or more pools meets the SLO")]
    which = (
        "for all"
        if len(best.pools) == 1
        else f"length of a {plan.split_by}; shorter ones go to the first pool"
    )
    spare = [pool.spare_replicas for pool in best.pools]
    reserve = f"{' + '.join(map(str, spare))} replicas in reserve" if any(spare) else "no reserve"
    spent = units.value_at(day, "scaled_usd_per_day")
    note = money_phrase("{} with the peak fleet around the clock", units.value_at(day, "fixed_usd_per_day"))
    facts = [
        Fact("To use", layout_text(best), units.TEXT, f"{plan.confidence:.0%} confidence"),
        Fact("Threshold", threshold_text(best), units.TEXT, which),
        Fact("GPUs", best.num_gpus, units.COUNT, reserve),
        Fact("Per hour", best.usd_per_hour, units.usd(2), "reserve included"),
        Fact("$ per 1k requests", best.usd_per_request, units.USD_PER_1K, "at this traffic"),
        Fact("Saved", plan.saved, units.PERCENT, "compared with one pool"),
        Fact("A day", spent if note else None, units.usd(2), note),
    ]
    return known_facts(facts)


def fleet_view(plan: FleetPlan, *, detail: bool = True) -> View:
    """Return the view of `fleet`; `detail` adds the service levels of every window."""
    return View(question_text(plan), _blocks(plan, detail))


def _blocks(plan: FleetPlan, detail: bool) -> Iterator[Block]:
    best = plan.best
    early = "[yellow]not proved:[/yellow] the search ended early; cheaper fleets may exist"
    yield early * (not plan.proved)
    if best is None:
        yield f"no fleet meets the SLO (--max-pools {plan.max_pools}):"
    else:
        yield from _best_blocks(plan, best, detail)
    yield from list_with_heading(f"{CONDITIONAL_HEADING}:", _conditional_texts(plan), indent="")
    yield from _layout_blocks(plan)
    if plan.day is not None and best is not None:
        yield from _day_blocks(plan.day, best)
    yield from (f"price of {price}" for price in plan.prices)


def _best_blocks(plan: FleetPlan, best: Layout, detail: bool) -> Iterator[Block]:
    """Return the blocks on the best fleet: what to rent, routing, effect of more pools, simulation of all pools."""
    bill = money_phrase(": {}/h", best.usd_per_hour)
    per_request = best.usd_per_request
    bill += phrase(", {} per 1k requests", per_request and units.USD_PER_1K.texts(per_request)[0])
    yield f"[bold]Use {layout_text(best)}[/bold]{bill}"
    yield from _routing_lines(plan, best)
    yield from _more_pools_lines(plan, best)
    if plan.proof is not None:
        levels = ", ".join(f"{level.slo}: {level_text(level)}" for level in plan.proof.levels)
        met = "[green]met[/green]" if plan.proof.met else "[red]missed[/red]"
        yield f"SLO {met}: all pools behind the router, simulated with {plan.proof.requests:,} requests: {levels}"
        yield from _windows_blocks(plan, plan.proof, detail)
    yield phrase("each replica is available {:.3%} of the time", plan.replica_availability)
    yield _pools_table(best)
    yield _levels_chart(best)


def _routing_lines(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """Return lines that state which requests go to which pool, and the savings compared with one pool."""
    if len(best.pools) == 1:
        yield "one pool for all requests" + phrase(": no tested threshold is cheaper", plan.max_pools > 1)
        return
    what = "prompts" if plan.split_by == "prompt" else "requests"
    limits = zip(best.thresholds_tokens, ORDINALS, strict=False)
    shares = (f"of up to {tokens:,} tokens go to the {place} pool" for tokens, place in limits)
    yield f"{what} {', '.join(shares)} ({plan.router})"
    one = plan.one_pool
    if one is None or one.objective is None:
        yield "one pool for all requests does not meet the SLO"
    elif plan.saved is not None:
        yield f"{_less_text(plan.saved)} than one pool for all requests ({layout_text(one)})"


def _more_pools_lines(plan: FleetPlan, best: Layout) -> Iterator[str]:
    """Return a line on the effect of a third and of a fourth pool, if fleets with that many pools were searched."""
    fewer = [layout for layout in plan.layouts if layout.num_pools < 3]
    for layout in (each for each in plan.layouts if each.num_pools > 2):
        before, place = best_of(fewer), ORDINALS[layout.num_pools - 1]
        fewer.append(layout)
        if layout.objective is not None and before is not None and before.objective:
            less = 1 - layout.objective / before.objective
            yield f"a {place} pool saves {less:.1%} compared with at most {layout.num_pools - 1} pools"
        elif layout.objective is not None:
            yield f"the SLO is only met with a {place} pool"
        elif layout.outcome == "cannot be cheaper" and best.num_pools < layout.num_pools:
            yield f"a {place} pool saves nothing: {layout.reason}"


def _windows_blocks(plan: FleetPlan, proof: FleetProof, detail: bool) -> Iterator[Block]:
    """Return the service levels over time (the worst window of each period), if the SLO was checked by window."""
    from capacity.report.figures.planning import windows_chart

    windows = proof.windows
    if proof.window is None or not windows:
        return
    yield f"worst window: {proof.window.text}"
    yield CustomChart(partial(windows_chart, windows, subject=describe_answer(plan)), fixed=True)
    if not detail:
        yield "--detail shows the levels of every window"
        return
    yield windows_table(windows)


def layout_text(found: Layout) -> str:
    """Return the engines of all pools of a fleet: `2 x l4-24gb + 2+1 x h100-sxm-80gb TP2`."""
    return " + ".join(map(_engines_text, found.pools))


def _engines_text(pool: FleetPool) -> str:
    """Return the engines of one pool: `2+1 x h100-sxm-80gb TP2`, where +1 is a spare replica."""
    size = pool.pool.tensor_parallel_size * pool.pool.pipeline_parallel_size
    spare = phrase("+{}", pool.spare_replicas)
    return f"{pool.replicas}{spare} x {pool.pool.gpu}{phrase(' TP{1}', size > 1, size)}"


def threshold_text(layout: Layout) -> str:
    """Return the length thresholds of pools in tokens; `one pool`, or `3 pools` if 3 pools cannot meet the SLO."""
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
        Column("$/h", "usd_per_hour", units.USD_2),
        Column("levels", lambda pool: "; ".join(f"{level.slo} {level_text(level)}" for level in pool.levels)),
    ]
    return Table("Pools", best.pools, columns)


def _levels_chart(best: Layout) -> Bars:
    """Return each pool's service levels as shares of their limits, with 90 % sampling intervals."""
    levels = {f"{pool.label}, {level.slo}": level for pool in best.pools for level in pool.levels}
    return Bars(
        name="fleet_levels",
        title="Service levels of each pool",
        alt="; ".join(f"{name} {level_text(level)}" for name, level in levels.items())
        or "No service levels by pool.",
        data={"% of the limit": {name: share_of_limit(level) for name, level in levels.items()}},
        unit=units.PERCENT,
        labels="pool and level",
        axis="% of the limit",
        reference=(100.0, "limit"),
    )


def _conditional_texts(plan: FleetPlan) -> Iterator[str]:
    """Return a line for each pool and deployment that is recommended only under conditions."""
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
            "short requests",
            lambda each: each.pools[0].request_share if len(each.pools) > 1 else None,
            units.PERCENT,
        ),
        Column(
            "engines", lambda each: layout_text(each) + " *" * (each is best) or each.reason or each.outcome
        ),
        Column("GPUs", lambda each: each.num_gpus if each.pools else None, units.COUNT),
        Column("$/h", "usd_per_hour", units.USD_2),
        Column(
            "vs one pool",
            lambda each: each.objective / base - 1 if each.objective and base else None,
            units.CHANGE,
        ),
    ]
    table = Table("Tested thresholds", plan.layouts, columns)
    yield _layouts_chart(plan, table)
    yield table


def _layouts_chart(plan: FleetPlan, table: Table) -> Stack:
    """Return the chart of cost by threshold, stacked by pool: $ per hour, or GPUs if the plan minimizes GPUs."""
    best, one = plan.best, plan.one_pool
    found = [each for each in plan.layouts if each.pools]
    priced = plan.objective == "cost" and all(each.usd_per_hour is not None for each in found)
    what, measure, unit = ("GPUs", "num_gpus", units.COUNT)
    if priced:
        what, measure, unit = "$ an hour", "usd_per_hour", units.USD_0
    most = max((len(each.pools) for each in found), default=0)
    names = [
        "pool 1 (requests up to the first limit, or all)",
        *(f"pool {n} for longer requests" for n in range(2, most + 1)),
    ]
    words = "no fleet meets the service levels"
    if best is not None:
        words = f"the best is {threshold_text(best)}: {layout_text(best)}"
    return Stack(
        name="fleet_layouts",
        title=f"{what[0].upper()}{what[1:]} by threshold",
        alt=f"{len(plan.layouts)} layouts tested; {words}.",
        data=units.read_series(
            found, threshold_text, {name: f"pools.{place}.{measure}" for place, name in enumerate(names)}
        ),
        unit=unit,
        labels="threshold",
        axis=what,
        reference=(None if one is None else unit.convert(one.objective), ONE_POOL),
        note=NO_INTERVAL_NOTE,
        rows=table_records(table) if found else (),
    )


def _day_blocks(day: FleetDay, best: Layout) -> Iterator[Block]:
    """Return the replicas of each pool by hour of the day, and the savings if replicas follow the load of the day."""
    names = [f"{pool.label}: {pool.pool.gpu}" for pool in best.pools]
    replicas = {name: f"replicas.{place}" for place, name in enumerate(names)}
    columns = [
        Column("hour", "hour", units.COUNT),
        Column("requests/s", "request_rate_per_s", RATE),
        *(Column(name, path, units.COUNT) for name, path in replicas.items()),
        Column("$/h", "usd_per_hour", units.USD_2),
    ]
    table = Table("Replicas by hour of the day (simulated)", day.hours, columns)
    words = "The cost of a day was not requested."
    if day.scaled_usd_per_day is not None and day.fixed_usd_per_day:
        less = _less_text(1 - day.scaled_usd_per_day / day.fixed_usd_per_day)
        scaled, fixed = money_text(day.scaled_usd_per_day), money_text(day.fixed_usd_per_day)
        words = (
            f"{scaled} a day, {less} than {fixed} for the peak fleet around the clock; excludes the start-up time of "
            "replicas"
        )
        yield words
    yield VerticalStack(
        name="fleet_day",
        title="Replicas by hour of the day",
        alt=words,
        data=units.read_series(day.hours, "hour", replicas),
        labels="hour of the day",
        axis="replicas",
        rows=table_records(table),
    )
    yield table


def _less_text(saved: float) -> str:
    """Return a saving as text: `12.3% less`, or `no less` if it rounds to 0."""
    return f"{saved:.1%} less" if round(saved, 3) > 0 else "no less"
