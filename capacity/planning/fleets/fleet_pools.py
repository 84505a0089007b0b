"""Pools of a fleet: the requests in a range of lengths, their SLO, and the cheapest engines that meet it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.base.record import make_from
from capacity.hardware.pricing import billed_gpus, usd_per_hour
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet_records import FleetPool, Outcome
from capacity.planning.fleets.fleet_space import Split
from capacity.planning.search.plan_answer import find_conditional, run_search
from capacity.planning.search.plan_notes import ROUTER_NOTE
from capacity.planning.search.plan_request import Market, PlanRequest
from capacity.planning.search.snapshot import Progress, Snapshot
from capacity.planning.space import ROUND_ROBIN

if TYPE_CHECKING:
    from capacity.planning.records import Conditional, Plan, Ranked
    from capacity.workload import Workload
    from capacity.workload.columns import IntArray

QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98)  # quantiles of the lengths to try as thresholds
ROUND_TOKENS = 64  # thresholds are rounded up to a multiple
# fractions of the permitted misses for the longest requests, in addition to equal goals
LONG_SHARES = (0.5, 0.9)
# percent of a pool's requests that may miss: above it, even a queue that grows without bound could pass
MAX_MISSED_PERCENT = 50.0
POOL_ROUTER = "least-outstanding"  # router within a pool, as in the routers by length
NOT_EVALUATED = "not evaluated before the search was stopped"


class Span(NamedTuple):
    """Range of request lengths in tokens: more than `above` and at most `up_to`; None means no limit."""

    above: int | None = None
    up_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Result of planning one pool: its requests, its goal, and the pool or the reason why no pool was found."""

    span: Span
    part: Sequence[Workload]
    goal: Goal
    outcome: Outcome
    reason: str | None = None
    pool: FleetPool | None = None
    objective: float = math.inf
    least: float = math.inf  # the objective without the reserve
    proved: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(kw_only=True)
class PoolPlanner:
    """Planner of pools; plans each pair of a length range and an SLO goal once, in 1/`runs_left` of the remaining
    time."""

    asked: PlanRequest
    ways: Split
    workers: int = 1
    progress: Progress | None = None
    runs_left: int = 1
    started_s: float = field(default_factory=time.monotonic)
    prices: dict[str, None] = field(default_factory=dict)
    ended: bool = False  # interrupted by the user
    _sides: dict[tuple[Span, Goal], PoolPlan] = field(default_factory=dict, repr=False)

    def side(self, span: Span, goal: Goal) -> PoolPlan:
        """Return the plan of the cheapest pool that meets `goal` for the requests of `span`.

        Raises DoesNotFit if the span covers all requests and the model does not fit.
        """
        known = self._sides.get((span, goal))
        if known is None:
            known = self._sides[span, goal] = self._side(span, goal)
        return known

    def share(self, span: Span) -> float:
        """Return the fraction of requests with lengths in the span; 0 if a traffic sample has no such request."""
        part = part_of(self.asked.workloads, span, self.ways.split_by)
        return len(part[0]) / len(self.asked.workloads[0]) if part else 0.0

    @property
    def sides(self) -> tuple[PoolPlan, ...]:
        return tuple(self._sides.values())

    def lowest_cost(self) -> float:
        """Return a lower bound on a pool's objective: one replica and its spare replicas, with one GPU each."""
        gpus = self.ways.with_reserve(1)
        if self.asked.search.objective == "gpus":
            return float(gpus)
        wide = dict.fromkeys((*self.asked.search.gpus, *self.ways.short_gpus, *self.ways.long_gpus))
        quotes = self._market(tuple(wide)).quotes.values()
        return min((usd_per_hour(price, billed_gpus(price, gpus)) for price in quotes if price), default=0.0)

    def _side(self, span: Span, goal: Goal) -> PoolPlan:
        part = part_of(self.asked.workloads, span, self.ways.split_by)
        side = PoolPlan(span=span, part=part, goal=goal, outcome="no answer")
        if not part:
            return replace(side, reason="the pool has no requests in some samples of the traffic")
        name = name_of(span)
        try:
            plan = self._cheapest(side)
        except DoesNotFit as error:
            if span == Span():
                raise
            return replace(side, reason=f"{name} requests: {error}")
        if plan is None:
            return replace(side, outcome="not reached", reason=NOT_EVALUATED, proved=False)
        side = replace(side, warnings=tuple(text for text in plan.warnings if text != ROUTER_NOTE))
        if plan.best is None:
            why = "; ".join(f"{miss.slo}: {miss.best} on {miss.candidate}" for miss in plan.misses)
            reason = f"{name} requests: {why or 'nothing meets the SLO'}"
            return replace(side, reason=reason, proved=plan.proved)
        pool = self._pool(side, plan.best)
        return replace(
            side,
            outcome="planned",
            pool=pool,
            objective=pool.objective(self.asked.search.objective),
            least=plan.best.objective,
            proved=plan.proved,
        )

    def conditional(self, side: PoolPlan) -> tuple[Conditional, ...]:
        """Return alternatives to this pool that have a lower objective but lose quality or use drafts not measured for
        the model. The objectives include spare replicas."""
        asked = self._request(side, POOL_ROUTER if side.pool is None else side.pool.router, runs=1)
        if asked is None or not side.part:
            return ()
        found: list[Conditional] = []
        progress = self._progress(side.span)
        for each in find_conditional(asked, least=side.least, workers=self.workers, progress=progress):
            objective = self._pool(side, each.answer).objective(asked.search.objective)
            if objective < side.objective:
                found.append(replace(each, answer=replace(each.answer, objective=objective)))
        return tuple(found)

    def _cheapest(self, side: PoolPlan) -> Plan | None:
        """Return the plan with the lowest objective; a pool for all requests is planned with each router separately.

        If few requests determine a percentile, it may get worse with more replicas, so one search over both routers
        could return the more expensive plan.
        """
        best: Plan | None = None
        for router in (POOL_ROUTER, ROUND_ROBIN) if side.span == Span() else (POOL_ROUTER,):
            plan = self._plan(side, router)
            if plan is None:
                return best
            better = best is None or best.best is None
            if better or (plan.best and best and best.best and plan.best.objective < best.best.objective):
                best = plan
        return best

    def _plan(self, side: PoolPlan, router: str) -> Plan | None:
        """Return the plan of one pool behind `router`; None if no time remains."""
        asked = self._request(side, router, runs=max(self.runs_left, 1))
        self.runs_left -= 1
        if asked is None:
            return None
        progress = self._progress(side.span)
        plan = run_search(asked, workers=self.workers, progress=progress, explain=False)
        self.ended = plan.ended == "interrupted"
        self.prices |= dict.fromkeys(plan.prices)
        return plan

    def _request(self, side: PoolPlan, router: str, *, runs: int) -> PlanRequest | None:
        """Return the input of `plan` for one pool, with 1/`runs` of the remaining time; None if no time remains."""
        own = {"short": self.ways.short_gpus, "long": self.ways.long_gpus}.get(name_of(side.span))
        update: dict[str, object] = {"routers": (router,), "gpus": own or self.asked.search.gpus}
        if limit_s := self.asked.search.time_limit_s:
            update["time_limit_s"] = left_s = (self.started_s + limit_s - time.monotonic()) / runs
            if left_s <= 0:
                return None
        if self.ended:
            return None
        search = self.asked.search.model_copy(update=update)
        return replace(self.asked, workloads=side.part, goal=side.goal, search=search)

    def _market(self, gpus: tuple[str, ...]) -> Market:
        search = self.asked.search.model_copy(update={"gpus": gpus})
        return replace(self.asked, search=search).market()

    def _progress(self, span: Span) -> Progress:
        limits = " and ".join(f"{tokens:,}" for tokens in span if tokens is not None)
        stage = f"{name_of(span)} requests" + (f", split at {limits} tokens" if limits else "")

        def report(snapshot: Snapshot) -> None:
            if self.progress is not None:
                self.progress(replace(snapshot, stage=stage))

        return report

    def _pool(self, side: PoolPlan, answer: Ranked) -> FleetPool:
        """Return the pool record of a planned deployment, with its spare replicas added."""
        candidate, first = answer.candidate, side.part[0]
        replicas = self.ways.with_reserve(candidate.replicas)
        gpus = candidate.pool.num_gpus * replicas
        price = self._market((candidate.pool.gpu,)).quotes[candidate.pool.gpu]
        billed = gpus if price is None else billed_gpus(price, gpus)
        return make_from(
            FleetPool,
            candidate,
            answer.trial,
            answer,
            label=name_of(side.span),
            up_to_tokens=side.span.up_to,
            request_share=len(first) / len(self.asked.workloads[0]),
            requests_per_s=first.offered_per_s,
            input_tokens=first.mean_prompt_tokens,
            output_tokens=float(first.output_tokens.mean()),
            spare_replicas=replicas - candidate.replicas,
            num_gpus=gpus,
            billed_gpus=billed,
            usd_per_hour=None if price is None else usd_per_hour(price, billed),
            prefill_share=None if answer.cost is None else answer.cost.prefill_share,
            launch=tuple(replace(line, replicas=replicas) for line in answer.launch),
        )


def name_of(span: Span) -> str:
    """Return the pool's label, from the range of its request lengths: all, short, middle or long."""
    if span == Span():
        return "all"
    return "short" if span.above is None else ("long" if span.up_to is None else "middle")


def lengths_of(workload: Workload, split_by: str) -> IntArray:
    """Return the tokens of each request that the router compares with the thresholds: those of the prompt, or with
    `split_by` request also the requested output tokens."""
    return workload.prompt_tokens if split_by == "prompt" else workload.requested_tokens


def usual_thresholds(lengths: IntArray) -> tuple[int, ...]:
    """Return thresholds at quantiles of the lengths, rounded up, without those that leave a pool without requests."""
    at = {-(-int(np.quantile(lengths, share)) // ROUND_TOKENS) * ROUND_TOKENS for share in QUANTILES}
    return tuple(sorted(tokens for tokens in at if lengths.min() <= tokens < lengths.max()))


def spans_of(workloads: Sequence[Workload], threshold: int, split_by: str) -> tuple[Span, ...]:
    """Return the ranges of request lengths up to the threshold and above it; one range if either has no requests.

    Raises InvalidInput if a range has requests in only some of the traffic samples.
    """
    spans = (Span(up_to=threshold), Span(above=threshold))
    for span in spans:
        counts = [len(_rows_within(lengths_of(workload, split_by), span)) for workload in workloads]
        if max(counts) == 0:
            return (Span(),)
        if min(counts) == 0:
            raise InvalidInput(
                f"a threshold of {threshold:,} tokens leaves a pool without requests in some samples of the traffic: "
                "increase --num-prompts, or change --split-at"
            )
    return spans


def part_of(workloads: Sequence[Workload], span: Span, split_by: str) -> list[Workload]:
    """Return the requests with lengths in the span, one workload per traffic sample; empty if a sample has none."""
    if span == Span():
        return list(workloads)
    rows = [_rows_within(lengths_of(workload, split_by), span) for workload in workloads]
    return [_part(w, each) for w, each in zip(workloads, rows, strict=True)] if all(map(len, rows)) else []


def _rows_within(lengths: IntArray, span: Span) -> IntArray:
    above = lengths > (-1 if span.above is None else span.above)
    return np.flatnonzero(above if span.up_to is None else above & (lengths <= span.up_to))


def _part(workload: Workload, rows: IntArray) -> Workload:
    """Return the workload of the requests at these indices, with the request rate reduced to their fraction."""
    asked = workload.asked_per_s
    return replace(
        workload.select(rows), asked_per_s=None if asked is None else asked * len(rows) / len(workload)
    )


def goals_of_pools(goal: Goal, long_share: float) -> list[tuple[Goal, Goal]]:
    """Return pairs of goals: one for every pool of shorter requests, and one for the pool of the longest requests.

    In each pair, the permitted misses add up to those of the fleet, divided equally or with more for the longest
    requests. `long_share` is the fraction of requests in the pool of the longest.
    """
    ways = [(goal, goal)]
    for of_long in LONG_SHARES:
        if of_long > long_share:
            factors = (1 - of_long) / (1 - long_share), of_long / long_share
            ways.append(
                (_scale_permitted_misses(goal, factors[0]), _scale_permitted_misses(goal, factors[1]))
            )
    return ways


def _scale_permitted_misses(goal: Goal, factor: float) -> Goal:
    """Return the goal with the fraction of permitted misses multiplied by `factor`.

    SLOs on gaps between tokens stay the same because runs record only a few percentiles of gaps.
    """

    def percentile(before: float) -> float:
        return round(100 - min((100 - before) * factor, MAX_MISSED_PERCENT), 4)

    slos = tuple(
        slo
        if slo.percentile is None or not slo.applies_to_requests
        else replace(slo, percentile=percentile(slo.percentile))
        for slo in goal.slos
    )
    return Goal(slos=slos, goodput_target=percentile(100 * goal.goodput_target) / 100)
