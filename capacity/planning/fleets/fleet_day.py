"""A fleet that follows its day: the replicas of each pool that each hour needs, simulated, and the bill of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from capacity.hardware.pricing import billed_gpus, price_of, usd_per_hour
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationTask
from capacity.planning.fleets.fleet_records import FleetDay, FleetHour, FleetPool, Layout
from capacity.planning.load.day import HOURS, day_of
from capacity.planning.space import Candidate, Search

if TYPE_CHECKING:
    from capacity.deployment import Cost
    from capacity.planning.fleets.fleet_space import Split


def day_of_fleet(
    layout: Layout,
    arenas: Sequence[EvaluationContext],
    search: Search,
    ways: Split,
    cost: Cost,
) -> FleetDay:
    """The day whose peak the layout was planned for; `arenas` are of its pools, each with its traffic and goal.

    Each hour is its own steady load, and starting takes no time.
    """
    assert ways.peak_to_mean is not None
    shape = [rate / ways.peak_to_mean for rate in day_of(1.0, ways.peak_to_mean)]  # of the peak
    needed = [
        _by_share(pool, arena, search, sorted(set(shape)))
        for pool, arena in zip(layout.pools, arenas, strict=True)
    ]
    peak_per_s = sum(
        arena.windows[0].requests_per_s if arena.windows else pool.requests_per_s
        for pool, arena in zip(layout.pools, arenas, strict=True)
    )
    hours = []
    for hour, share in enumerate(shape):
        counts = tuple(ways.with_reserve(each[share]) for each in needed)
        bills = [_bill(pool, count, cost) for pool, count in zip(layout.pools, counts, strict=True)]
        known = [bill for bill in bills if bill is not None]
        hours.append(
            FleetHour(
                hour=hour,
                request_rate_per_s=peak_per_s * share,
                replicas=counts,
                usd_per_hour=sum(known) if len(known) == len(bills) else None,
            )
        )
    per_hour = [hour.usd_per_hour for hour in hours if hour.usd_per_hour is not None]
    fixed = layout.usd_per_hour
    return FleetDay(
        hours=tuple(hours),
        scaled_usd_per_day=sum(per_hour) if len(per_hour) == HOURS else None,
        fixed_usd_per_day=None if fixed is None else fixed * HOURS,
    )


def _by_share(
    pool: FleetPool,
    arena: EvaluationContext,
    search: Search,
    shares: Sequence[float],
) -> dict[float, int]:
    """The fewest replicas that meet the SLO at each share of the peak, the least share first; those of the peak at
    most. Fewer than a smaller load needs are not tried."""
    found: dict[float, int] = {}
    replicas = 1
    for share in shares:
        if share > 0 and share < 1:
            slowed = [each.at_rate(each.request_rate_per_s * share) for each in arena.workloads]
            slower = replace(arena, workloads=slowed)
            while replicas < pool.replicas:
                candidate = Candidate(pool=pool.pool, replicas=replicas, router=pool.router)
                if slower.run(EvaluationTask(candidate=candidate, confidence=search.confidence)).met:
                    break
                replicas += 1
        elif share >= 1:
            replicas = pool.replicas
        found[share] = replicas
    return found


def _bill(pool: FleetPool, replicas: int, cost: Cost) -> float | None:
    price = price_of(pool.pool.gpu, cost)
    return None if price is None else usd_per_hour(price, billed_gpus(price, pool.pool.num_gpus * replicas))
