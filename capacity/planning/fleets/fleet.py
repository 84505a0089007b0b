"""`fleet`: find the cheapest pools behind a router that splits requests by length, and its thresholds.

Pools behind such a router do not affect each other. Each pool is planned separately on exactly the requests that the
router sends to it. The cheapest pools for every threshold are compared with one pool for all requests. The misses
permitted in the fleet are the sum of those permitted in the pools, so they are divided between the pools, equally or
with more for the longest requests. The best fleet is then simulated again with all pools behind the router.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.quantity import sum_if_known
from capacity.base.record import make_from
from capacity.deployment import Cost, Traffic, build
from capacity.deployment.routing import PoolLimits
from capacity.hardware.pricing import billed_gpus, find_price_for_cost, usd_per_hour
from capacity.model import ModelSpec
from capacity.planning.evaluation.evaluate import EngineGroup, evaluate_engines
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest
from capacity.planning.fleets.fleet_layouts import Layouts
from capacity.planning.fleets.fleet_pools import PoolPlanner, lengths_of, usual_thresholds
from capacity.planning.fleets.fleet_records import (
    FleetDay,
    FleetHour,
    FleetPlan,
    FleetPool,
    FleetProof,
    Layout,
)
from capacity.planning.fleets.fleet_space import Split
from capacity.planning.load.day import HOURS, day_of
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.search.snapshot import Progress
from capacity.planning.space import Candidate, Search
from capacity.workload import Workload

if TYPE_CHECKING:
    from capacity.planning.records import Conditional
    from capacity.workload.windows import Window


ROUTERS = {"prompt": "by-prompt-length", "request": "by-request-length"}
UNSUPPORTED_SEARCH_FIELDS = {"routers", "serving", "alternatives", "objective"}


@document_options(Search, Traffic, Cost, Split)
@validate_arguments
def fleet(
    model: str | Path | ModelSpec,
    *,
    slo: Sequence[str] | str = (),
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> FleetPlan:
    """Find the cheapest fleet that meets the SLO: one pool, or separate pools for short and long requests.

    Every threshold of `split_at` is planned, each pool on its GPUs as in `plan`, and compared with one pool for all
    requests; with `max_pools` above 2, all combinations of several thresholds as well. For traffic longer than
    `slo_window`, each pool must meet the SLO in its own busiest window, as in `plan`, and all pools together in the
    busiest window of all requests. `spare_replicas` and `availability` add spare replicas to each pool, included in
    the cost. `peak_to_mean` adds the bill of a day. `workers` processes simulate in parallel, as in `plan`. Raises
    DoesNotFit if the model fits no engine, and InvalidInput.
    """
    search, traffic, cost, split_fields = split(options, Search, Traffic, Cost, Split)
    ways: Split = build(Split, split_fields)
    _check_pools(ways)
    request = PlanRequest.build(
        model,
        _search(search, ways),
        build(Traffic, traffic),
        build(Cost, cost),
        slo=slo,
        workload=workload,
        profiles=profiles,
        download=download,
    )
    asked = replace(request, steady=None)
    if any(each.is_closed_loop for each in asked.workloads):
        raise InvalidInput("a fleet needs open-loop arrivals: leave out --concurrency and sessions")
    pools = PoolPlanner(asked=asked, ways=ways, workers=workers, progress=progress)
    thresholds = ways.split_at or usual_thresholds(lengths_of(asked.workloads[0], ways.split_by))
    layouts = Layouts(pools=pools, thresholds=thresholds)
    layouts.try_layouts(ways.max_pools)
    context = asked.context()
    best, proof = _best_proved(layouts, context)
    return _plan(layouts, context.windows, best, proof)


def _check_pools(ways: Split) -> None:
    """Raise InvalidInput if `max_pools` is 1 and a setting applies only to several pools."""
    if ways.max_pools > 1:
        return
    ways_out = {"split_at": "leave it out", "short_gpus": "give --gpus", "long_gpus": "give --gpus"}
    if unused := next((name for name in ways_out if getattr(ways, name)), None):
        raise InvalidInput(
            f"--{unused.replace('_', '-')} needs several pools, but --max-pools is 1: {ways_out[unused]}, or give "
            "--max-pools 2"
        )


def _search(fields: Mapping[str, Any], ways: Split) -> Search:
    """Return the search space that all pools share. Raises InvalidInput for settings that a fleet does not support."""
    if wrong := sorted(name for name in UNSUPPORTED_SEARCH_FIELDS & set(fields) if name != "objective"):
        raise InvalidInput(
            f"--{wrong[0]} is fixed in a fleet, which routes by request length and serves aggregated (prefill and "
            "decode on the same GPUs): leave it out"
        )
    if fields.get("grid_region") is not None:
        raise InvalidInput(
            "--grid-region is not supported by fleet, which computes no carbon emissions: leave it out"
        )
    both = tuple(dict.fromkeys((*ways.short_gpus, *ways.long_gpus)))
    search: Search = build(Search, {"gpus": both, **fields})
    if search.objective not in ("cost", "gpus"):
        raise InvalidInput(f"--objective {search.objective} is not supported by fleet: use cost or gpus")
    return search.model_copy(update={"serving": ("aggregated",), "alternatives": False})


def _plan(
    layouts: Layouts, windows: "Sequence[Window]", best: Layout | None, proof: FleetProof | None
) -> FleetPlan:
    pools, asked, ways = layouts.pools, layouts.pools.asked, layouts.pools.ways
    first = asked.workloads[0]
    return make_from(
        FleetPlan,
        asked.search,
        ways,
        model=asked.model.name,
        workload=first.name,
        requests=len(first),
        requests_per_s=first.offered_per_s,
        slos=tuple(str(slo) for slo in asked.goal.slos),
        slo_window=asked.search.slo_window if windows else "trace",
        busiest_window=windows[0] if windows else None,
        router=ROUTERS[ways.split_by] if best is None else _router(best, ways),
        layouts=tuple(layouts.tried),
        conditional=_conditional(layouts, best),
        proof=proof,
        day=_day(layouts, best),
        proved=all(layout.proved for layout in layouts.tried),
        elapsed_s=time.monotonic() - pools.started_s,
        prices=tuple(pools.prices),
        warnings=_warnings(layouts, best),
    )


def _conditional(layouts: Layouts, best: Layout | None) -> "dict[str, tuple[Conditional, ...]]":
    """Return, by pool label, cheaper alternatives to each pool of the best layout that lose quality or use drafts not
    measured for the model. Without a best layout, they are alternatives to one pool for all requests.
    """
    sides = layouts.sides.get(() if best is None else best.thresholds_tokens, ())
    labels = ["all"] if best is None else [pool.label for pool in best.pools]
    return {
        label: found
        for label, side in zip(labels, sides, strict=False)
        if (found := layouts.pools.conditional(side))
    }


def _day(layouts: Layouts, best: Layout | None) -> FleetDay | None:
    """Return the bill of a day whose peak is the planned load; None without `peak_to_mean` or without a best layout.

    Each hour is planned as a separate steady load; starting replicas is assumed to take no time.
    """
    asked, ways = layouts.pools.asked, layouts.pools.ways
    if best is None or ways.peak_to_mean is None:
        return None
    shares = [rate / ways.peak_to_mean for rate in day_of(1.0, ways.peak_to_mean)]  # fractions of the peak
    sides = layouts.sides[best.thresholds_tokens]
    arenas = [replace(asked, workloads=side.part, goal=side.goal).context() for side in sides]
    both = list(zip(best.pools, arenas, strict=True))
    needed = [_replicas_by_share(*each, asked.search.confidence, sorted(set(shares))) for each in both]
    peak_per_s = sum(
        context.windows[0].requests_per_s if context.windows else pool.requests_per_s
        for pool, context in both
    )
    prices = [find_price_for_cost(pool.pool.gpu, asked.cost) for pool in best.pools]
    hours = []
    for hour, share in enumerate(shares):
        counts = tuple(ways.with_reserve(each[share]) for each in needed)
        bills = [
            None if price is None else usd_per_hour(price, billed_gpus(price, pool.pool.num_gpus * count))
            for pool, price, count in zip(best.pools, prices, counts, strict=True)
        ]
        rate, usd = peak_per_s * share, sum_if_known(bills)
        hours.append(FleetHour(hour=hour, request_rate_per_s=rate, replicas=counts, usd_per_hour=usd))
    fixed = best.usd_per_hour
    return FleetDay(
        hours=tuple(hours),
        scaled_usd_per_day=sum_if_known([hour.usd_per_hour for hour in hours]),
        fixed_usd_per_day=None if fixed is None else fixed * HOURS,
    )


def _warnings(layouts: Layouts, best: Layout | None) -> tuple[str, ...]:
    """Return notes about the best fleet's pools; if no fleet meets the SLO, about all pools tried."""
    sides = layouts.pools.sides if best is None else layouts.sides[best.thresholds_tokens]
    asked = layouts.pools.asked
    rarely = []  # pools whose permitted misses exceed those of all requests together
    for pool, side in zip([] if best is None else best.pools, sides, strict=best is not None):
        share = max(side.goal.may_miss(slo) for slo in side.goal.slos)
        if side.goal != asked.goal and share > max(map(asked.goal.may_miss, asked.goal.slos)):
            rarely.append(
                f"Up to {share:.0%} of the {pool.label} requests may exceed the limits, which apply to all requests "
                "together. Use --slo-of pool to apply them to each pool."
            )
    of_pools = (text for side in sides for text in side.warnings)
    return tuple(dict.fromkeys((*rarely, *of_pools, *asked.workloads[0].notices)))


def _router(layout: Layout, ways: Split) -> str:
    """Return the router of the fleet: by length for several pools, otherwise the router within the only pool."""
    return ROUTERS[ways.split_by] if len(layout.pools) > 1 else layout.pools[0].router


def _best_proved(layouts: Layouts, context: EvaluationContext) -> tuple[Layout | None, FleetProof | None]:
    """Return the best layout whose pools together meet the SLO, and the simulation that shows it; reject layouts that
    miss the SLO."""
    while (best := layouts.best) is not None:
        proof = _proof(best, layouts.pools, context)
        if proof.met:
            return best, proof
        layouts.reject(best, "all pools together miss the SLO")
    return None, None


def _proof(best: Layout, pools: PoolPlanner, context: EvaluationContext) -> FleetProof:
    """Simulate all pools behind their router on all requests, with step times at the requested confidence."""
    asked = pools.asked
    engines = []
    for place, pool in enumerate(best.pools):
        made = replace(
            context.setup(pool.pool, asked.search.confidence), takes=PoolLimits(place, pool.up_to_tokens)
        )
        engines.append(
            EngineGroup(resolved=context.resolve_pool(pool.pool), replicas=pool.replicas, made=made)
        )
    router = _router(best, pools.ways)
    trial = evaluate_engines(engines, context.workloads, asked.goal, router=router, give_up=False)
    trial = context.evaluate_whole(engines, trial, asked.goal, router=router)
    return make_from(FleetProof, trial, requests=sum(map(len, asked.workloads)))


def _replicas_by_share(
    pool: FleetPool, context: EvaluationContext, confidence: float, shares: Sequence[float]
) -> dict[float, int]:
    """Return the fewest replicas that meet the SLO at each load in `shares`, given as fractions of the peak load.

    `shares` must be ascending, because the search starts from the replicas of the previous load. The result is at most
    the replicas of the pool at the peak.
    """
    found: dict[float, int] = {}
    replicas = 1
    for share in shares:
        if share > 0 and share < 1:
            slowed = [each.set_rate(each.request_rate_per_s * share) for each in context.workloads]
            slower = replace(context, workloads=slowed)
            while replicas < pool.replicas:
                candidate = Candidate(pool=pool.pool, replicas=replicas, router=pool.router)
                if slower.run(EvaluationRequest(candidate=candidate, confidence=confidence)).met:
                    break
                replicas += 1
        elif share >= 1:
            replicas = pool.replicas
        found[share] = replicas
    return found
