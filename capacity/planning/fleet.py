"""`fleet`: pools of different GPUs behind one router that tells requests apart by length, the threshold found.

A router by length thins the traffic: no pool acts on another, so each is planned by itself on the requests that would
reach it, exactly, and the cheapest pair of every threshold is held against one pool for all. The share of requests
beyond a limit is the mean over pools: what the fleet may miss is shared out between them, alike or with more for the
long ones. The best one is then simulated once more, all pools behind their router.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capacity.base.checked import checked
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, Traffic, build
from capacity.deployment.routers import Takes
from capacity.deployment.use_cases import levels_of
from capacity.hardware.pricing import billed_gpus, usd_per_hour
from capacity.planning.arena import Arena
from capacity.planning.bounds import Load
from capacity.planning.draws import draws
from capacity.planning.fleet_day import day_of_fleet
from capacity.planning.fleet_records import FleetPlan, FleetPool, FleetProof, Layout, Outcome, best_of
from capacity.planning.fleet_space import Split
from capacity.planning.judging import Goal
from capacity.planning.market import Market
from capacity.planning.plan import check_goal, check_search, parsed_slos
from capacity.planning.records import Plan, Ranked
from capacity.planning.remarks import ROUTED
from capacity.planning.reserve import availability_of, replicas_with_reserve
from capacity.planning.search import Progress, Snapshot, run_search
from capacity.planning.space import ROUND_ROBIN, Search
from capacity.planning.trial import Engines, try_engines

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.workload import Workload
    from capacity.workload.columns import IntArray

ROUTERS = {"prompt": "by-prompt-length", "request": "by-request-length"}
WITHIN = "least-outstanding"  # a pool, as those routers do
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98)  # of the lengths: thresholds to try
ROUND_TOKENS = 64  # those are rounded up to this
LONG_SHARES = (0.5, 0.9)  # of what the fleet may miss, given to long requests; besides alike
MOST_MISSED = 50.0  # per cent of a pool's requests: with more, a queue that grows for ever would do
NOT_OF_A_FLEET = {"routers", "serving", "alternatives", "objective"}


@documented(Search, Traffic, Cost, Split)
@checked
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
    """The cheapest fleet that meets the service levels: one pool, or a pool for short requests and one for long.

    Every threshold of `split_at` is planned, each pool from its GPUs as `plan` does, and compared with one pool for
    all. `spare_replicas` and `availability` add a reserve to each pool, which counts. `peak_to_mean` asks for the bill
    of a day. `workers` as for `plan`. Raises DoesNotFit where no engine holds the model, and InvalidInput.
    """
    from capacity.deployment.images import with_image_tokens
    from capacity.model import ModelSpec, load_model

    search_fields, traffic_fields, cost_fields, split_fields = split(options, Search, Traffic, Cost, Split)
    ways: Split = build(Split, split_fields)
    search = _search(search_fields, ways)
    traffic: Traffic = build(Traffic, traffic_fields)
    cost: Cost = build(Cost, cost_fields)
    check_search(search, cost)
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    goal = Goal(slos=parsed_slos(levels_of(slo, traffic)), goodput_target=search.goodput_target)
    workloads = draws(with_image_tokens(traffic, spec), workload, search.replications)
    check_goal(goal.slos, workloads[0])
    if any(each.is_closed_loop for each in workloads):
        raise InvalidInput(
            "a fleet is planned for requests that come by the clock: leave out --concurrency and closed sessions"
        )
    planner = _Planner(
        model=spec,
        workloads=workloads,
        goal=goal,
        search=search,
        ways=ways,
        cost=cost,
        profiles=profiles,
        workers=workers,
        progress=progress,
    )
    return planner.planned()


def _search(fields: Mapping[str, Any], ways: Split) -> Search:
    """The space of each pool. Raises InvalidInput for what a fleet has no choice of."""
    if wrong := sorted(name for name in NOT_OF_A_FLEET & set(fields) if name != "objective"):
        raise InvalidInput(
            f"--{wrong[0]} is no choice here: a fleet's router goes by length, and within a pool to the fewest "
            "outstanding (to one pool in turn, too); its pools are aggregated; leave it out"
        )
    asked = dict(fields)
    if "gpus" not in asked:
        both = (*ways.short_gpus, *ways.long_gpus)
        if both:
            asked["gpus"] = tuple(dict.fromkeys(both))
    search: Search = build(Search, asked)
    if search.objective not in ("cost", "gpus"):
        raise InvalidInput(f"--objective {search.objective} is not one of a fleet: cost or gpus")
    fixed = {"serving": ("aggregated",), "alternatives": False}
    return search.model_copy(update=fixed)


@dataclass(kw_only=True)
class _Planner:
    """One model and one traffic, planned layout by layout."""

    model: ModelSpec
    workloads: Sequence[Workload]
    goal: Goal
    search: Search
    ways: Split
    cost: Cost
    profiles: str | Path | None
    workers: int
    progress: Progress | None
    started_s: float = field(default_factory=time.monotonic)
    layouts: list[Layout] = field(default_factory=list)
    goals: dict[int | None, tuple[Goal, ...]] = field(default_factory=dict)  # of the pools, by threshold
    prices: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    ended: bool = False  # by hand
    runs_left: int = 1

    def planned(self) -> FleetPlan:
        thresholds = self.ways.split_at or usual_thresholds(self._lengths(self.workloads[0]))
        ways_each = 1 if self.ways.slo_of == "pool" else 1 + len(LONG_SHARES)
        self.runs_left = 2 + 2 * ways_each * len(thresholds)
        for threshold in (None, *thresholds):
            self.layouts.append(self._layout(threshold))
        best, proof = self._proved(self._arena(self.workloads, self.goal))
        layouts = tuple(self.layouts)
        search, ways, goal, first = self.search, self.ways, self.goal, self.workloads[0]
        day = None
        if best is not None and ways.peak_to_mean is not None:
            sides = zip(self._parts(best.threshold_tokens), self.goals[best.threshold_tokens], strict=True)
            arenas = [self._arena(part, goal_of_pool) for part, goal_of_pool in sides]
            day = day_of_fleet(best, arenas, search, ways, self.cost)
        return FleetPlan(
            model=self.model.name,
            workload=first.name,
            requests=len(first),
            requests_per_s=first.offered_per_s,
            slos=tuple(str(slo) for slo in goal.slos),
            objective=search.objective,
            confidence=search.confidence,
            split_by=ways.split_by,
            router=ROUTERS[ways.split_by] if best is None else self._router(best),
            layouts=layouts,
            proof=proof,
            day=day,
            replica_availability=replica_availability(ways),
            proved=all(layout.proved for layout in layouts),
            elapsed_s=time.monotonic() - self.started_s,
            prices=tuple(self.prices.values()),
            warnings=(*self._owed_less(best), *self.warnings, *first.notices),
        )

    def _lengths(self, workload: Workload) -> IntArray:
        return lengths_of(workload, self.ways.split_by)

    def _parts(self, threshold: int | None) -> list[list[Workload]]:
        """The traffic of each pool, all draws of it."""
        return parts_of(self.workloads, threshold, self.ways.split_by)

    def _arena(self, workloads: Sequence[Workload], goal: Goal) -> Arena:
        return Arena(model=self.model, workloads=workloads, goal=goal, profiles=self.profiles)

    def _layout(self, threshold: int | None) -> Layout:
        """The cheapest pools with this threshold between them; less, where they cannot be the best."""
        parts = self._parts(threshold)
        first: Layout | None = None
        for goals in self._goals(parts):
            layout = self._pools(threshold, parts, goals)
            better = first is None or best_of([first, layout]) is layout
            if better:
                self.goals[threshold] = goals
            first = layout if better else first
            if layout.outcome == "not reached":
                break
        assert first is not None
        return first

    def _goals(self, parts: Sequence[Sequence[Workload]]) -> list[tuple[Goal, ...]]:
        """What each pool must keep so that the fleet keeps its levels, in every way that is tried."""
        if len(parts) == 1:
            return [(self.goal,)]
        if self.ways.slo_of == "pool":
            return [(self.goal, self.goal)]
        short, long = (len(part[0]) for part in parts)
        return goals_of_pools(self.goal, long / (short + long))

    def _pools(
        self, threshold: int | None, parts: Sequence[Sequence[Workload]], goals: Sequence[Goal]
    ) -> Layout:
        """The cheapest pools that keep these goals."""
        found, proved = list[FleetPool](), True
        leader = best_of([*self.layouts])

        def layout(outcome: Outcome, reason: str | None = None) -> Layout:
            pools = tuple(found) if outcome == "planned" else ()
            return Layout(
                threshold_tokens=threshold,
                outcome=outcome,
                reason=reason,
                pools=pools,
                objective=sum(map(self._objective, pools)) if pools else None,
                proved=proved,
            )

        for place, (part, goal) in enumerate(zip(parts, goals, strict=True)):
            last = place == len(parts) - 1
            name = "all" if len(parts) == 1 else ("long" if last else "short")
            try:
                plan = self._cheapest(part, goal, name, threshold)
            except DoesNotFit as error:
                if threshold is None:
                    raise
                return layout("no answer", f"{name} requests: {error}")
            if plan is None:
                proved = False
                return layout("not reached", "the time limit, or you, ended the search before")
            proved = proved and plan.proved
            if plan.best is None:
                why = "; ".join(f"{miss.slo}: {miss.best} on {miss.candidate}" for miss in plan.misses)
                return layout("no answer", f"{name} requests: {why or 'nothing meets the SLO'}")
            found.append(self._pool(name, None if last else threshold, part, plan.best))
            spent = sum(map(self._objective, found))
            if not last and leader is not None and spent >= (leader.objective or 0.0):
                return layout(
                    "cannot be cheaper", f"the pool for {name} requests alone costs as much as the best"
                )
        return layout("planned")

    def _cheapest(
        self, part: Sequence[Workload], goal: Goal, name: str, threshold: int | None
    ) -> Plan | None:
        """The plan of one pool, of all requests behind each router by itself: what a percentile of few requests needs
        does not fall evenly with replicas, and a search over both could end with the dearer."""
        best: Plan | None = None
        for router in (WITHIN, ROUND_ROBIN) if name == "all" else (WITHIN,):
            plan = self._plan(part, goal, name, threshold, router)
            if plan is None:
                return best
            better = best is None or best.best is None
            if better or (plan.best and best and best.best and plan.best.objective < best.best.objective):
                best = plan
        return best

    def _plan(
        self, part: Sequence[Workload], goal: Goal, name: str, threshold: int | None, router: str
    ) -> Plan | None:
        """The plan of one pool; None where there is no time for it."""
        limit = self.search.time_limit_s or None
        search = self._space(name).model_copy(update={"routers": (router,)})
        runs = max(self.runs_left, 1)
        self.runs_left -= 1
        if self.ended:
            return None
        if limit is not None:
            left = self.started_s + limit - time.monotonic()
            if left <= 0:
                return None
            search = search.model_copy(update={"time_limit_s": left / runs})
        market = Market.of(search, self.cost, [str(self.profiles)] if self.profiles else [])
        stage = f"{name} requests" + ("" if threshold is None else f", split at {threshold:,} tokens")

        def told(snapshot: Snapshot) -> None:
            if self.progress is not None:
                self.progress(replace(snapshot, stage=stage))

        plan = run_search(
            self._arena(part, goal), search, Load.of(part), market, workers=self.workers, progress=told
        )
        self.ended = plan.ended == "interrupted"
        self.prices |= {gpu: price.quoted for gpu, price in market.quotes.items() if price is not None}
        self.warnings |= dict.fromkeys(text for text in plan.warnings if text != ROUTED)
        return plan

    def _space(self, name: str) -> Search:
        """What a pool is chosen from."""
        gpus = {"short": self.ways.short_gpus, "long": self.ways.long_gpus}.get(name) or self.search.gpus
        return self.search.model_copy(update={"gpus": gpus})

    def _pool(self, name: str, up_to: int | None, part: Sequence[Workload], answer: Ranked) -> FleetPool:
        """The answer for one pool, with its reserve."""
        candidate, requests = answer.candidate, len(part[0])
        up = replica_availability(self.ways)
        replicas = replicas_with_reserve(
            candidate.replicas,
            spare=self.ways.spare_replicas,
            availability=1.0 if up is None else up,
            target=self.ways.availability,
        )
        gpus = candidate.pool.num_gpus * replicas
        price = Market.of(
            self._space(name).model_copy(update={"gpus": (candidate.pool.gpu,)}),
            self.cost,
            [str(self.profiles)] if self.profiles else [],
        ).quotes[candidate.pool.gpu]
        billed = gpus if price is None else billed_gpus(price, gpus)
        return FleetPool(
            label=name,
            up_to_tokens=up_to,
            request_share=requests / len(self.workloads[0]),
            requests_per_s=part[0].offered_per_s,
            input_tokens=part[0].mean_prompt_tokens,
            output_tokens=float(part[0].output_tokens.mean()),
            pool=candidate.pool,
            router=candidate.router,
            replicas=candidate.replicas,
            spare_replicas=replicas - candidate.replicas,
            num_gpus=gpus,
            billed_gpus=billed,
            usd_per_hour=None if price is None else usd_per_hour(price, billed),
            prefill_share=None if answer.cost is None else answer.cost.prefill_share,
            levels=answer.trial.levels,
            confidence=answer.confidence,
            launch=tuple(replace(line, replicas=replicas) for line in answer.launch),
        )

    def _owed_less(self, best: Layout | None) -> tuple[str, ...]:
        """That a pool's requests are within the levels more rarely than all together."""
        if best is None or len(best.pools) == 1:
            return ()
        goals = self.goals[best.threshold_tokens]
        most = [max(goal.may_miss(slo) for slo in goal.slos) for goal in goals]
        return tuple(
            f"{share:.0%} of the {pool.label} requests may be beyond the levels, which all requests keep together "
            "(--slo-of pool asks it of each pool)"
            for share, pool, goal in zip(most, best.pools, goals, strict=True)
            if goal != self.goal and share > max(map(self.goal.may_miss, self.goal.slos))
        )

    def _router(self, layout: Layout) -> str:
        """What stands before all pools: that of the only one, or one that goes by length."""
        return ROUTERS[self.ways.split_by] if len(layout.pools) > 1 else layout.pools[0].router

    def _objective(self, pool: FleetPool) -> float:
        return float(pool.num_gpus) if self.search.objective == "gpus" else pool.usd_per_hour or 0.0

    def _proved(self, whole: Arena) -> tuple[Layout | None, FleetProof | None]:
        """The best layout whose pools meet the levels together; those before it are out."""
        while (best := best_of(self.layouts)) is not None:
            proof = self._proof(best, whole)
            if proof.met:
                return best, proof
            missed = replace(
                best, outcome="no answer", reason="all pools together miss the SLO", objective=None
            )
            self.layouts[self.layouts.index(best)] = missed
        return None, None

    def _proof(self, best: Layout, whole: Arena) -> FleetProof:
        """All pools behind their router, on all requests, at the confidence that was asked for."""
        engines = [
            Engines(
                resolved=whole.resolved(pool.pool),
                replicas=pool.replicas,
                made=replace(
                    whole.setup(pool.pool, self.search.confidence), takes=Takes(place, pool.up_to_tokens)
                ),
            )
            for place, pool in enumerate(best.pools)
        ]
        router = self._router(best)
        trial = try_engines(engines, self.workloads, self.goal, router=router, give_up=False)
        return FleetProof(requests=trial.requests, met=trial.met, levels=trial.levels)


def goals_of_pools(goal: Goal, long_share: float) -> list[tuple[Goal, ...]]:
    """Goals of the pool for short requests and of that for long, so that what either may miss adds up to what the
    fleet may miss: alike, and with more of it for the long ones. `long_share`: of the requests."""
    ways: list[tuple[Goal, ...]] = [(goal, goal)]
    for of_long in LONG_SHARES:
        if of_long > long_share:
            factors = (1 - of_long) / (1 - long_share), of_long / long_share
            ways.append(tuple(_allowing(goal, factor) for factor in factors))
    return ways


def _allowing(goal: Goal, factor: float) -> Goal:
    """So many times the misses; levels of gaps between tokens, kept at few percentiles, stay as they are."""

    def percentile(before: float) -> float:
        return round(100 - min((100 - before) * factor, MOST_MISSED), 4)

    slos = tuple(
        slo
        if slo.percentile is None or slo.metric == "itl"
        else replace(slo, percentile=percentile(slo.percentile))
        for slo in goal.slos
    )
    return Goal(slos=slos, goodput_target=percentile(100 * goal.goodput_target) / 100)


def replica_availability(ways: Split) -> float | None:
    """The share of time in which one replica is there; None where nobody says. Raises InvalidInput."""
    mean_s = ways.mean_time_between_failures_s
    if mean_s is None:
        if ways.availability is not None:
            raise InvalidInput(
                "--availability needs --mtbf and --recovery: how often and how long a replica is gone"
            )
        return None
    if ways.recovery_s is None:
        raise InvalidInput("--mtbf needs --recovery: how long until a replica is replaced?")
    return availability_of(mean_s, ways.recovery_s)


def lengths_of(workload: Workload, split_by: str) -> IntArray:
    """What the router tells requests apart by, tokens of each."""
    return workload.prompt_tokens if split_by == "prompt" else workload.asked_tokens


def usual_thresholds(lengths: IntArray) -> tuple[int, ...]:
    """Thresholds at quantiles of the lengths, rounded up; none that leaves one side empty."""
    at = {-(-int(np.quantile(lengths, share)) // ROUND_TOKENS) * ROUND_TOKENS for share in QUANTILES}
    return tuple(sorted(tokens for tokens in at if lengths.min() <= tokens < lengths.max()))


def parts_of(workloads: Sequence[Workload], threshold: int | None, split_by: str) -> list[list[Workload]]:
    """The requests of each pool, every draw of them: up to the threshold, and above; a side without any is left out.

    Raises InvalidInput where a side has requests in some draws only.
    """
    if threshold is None:
        return [list(workloads)]
    short = [lengths_of(workload, split_by) <= threshold for workload in workloads]
    sides = []
    for rows in (short, [~each for each in short]):
        counts = [int(each.sum()) for each in rows]
        if min(counts) == 0 < max(counts):
            raise InvalidInput(
                f"a threshold of {threshold:,} tokens leaves a pool without requests in some draws of the traffic: "
                "give more (--num-prompts), or another --split-at"
            )
        if min(counts):
            sides.append([_part(w, np.flatnonzero(each)) for w, each in zip(workloads, rows, strict=True)])
    return sides


def _part(workload: Workload, rows: IntArray) -> Workload:
    """Some requests, of which as large a share comes in the long run."""
    asked = workload.asked_per_s
    return replace(
        workload.take(rows), asked_per_s=None if asked is None else asked * len(rows) / len(workload)
    )
