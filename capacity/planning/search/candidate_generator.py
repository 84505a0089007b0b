"""Generate the candidates that need a simulation; reject all others by exact checks, then by bounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from capacity.answers.engine_setup import policy_name
from capacity.base.errors import CapacityError
from capacity.base.money import usd_text
from capacity.base.record import make_from
from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.hardware.profile import HardwareProfile
from capacity.planning.evaluation.cost_bounds import NO_DRAFTING, Drafting, Load, StepSeconds, bound_engine
from capacity.planning.evaluation.evaluation_context import EvaluationContext
from capacity.planning.evaluation.step_error import ScaledSteps
from capacity.planning.quality import quality_of
from capacity.planning.search.candidate_family import (
    CandidateFamily,
    CandidateRecord,
    Exclusion,
    Side,
    objective_of,
)
from capacity.planning.search.conditions import conditions_of
from capacity.planning.search.energy_objective import EnergyObjective, idle_per_token, planned_load
from capacity.planning.search.plan_request import Market
from capacity.planning.search.replica_search import (
    FirstTokenSearch,
    PairReplicaSearch,
    ReplicaSearch,
    UnresolvedCandidate,
)
from capacity.planning.space import (
    ROUND_ROBIN,
    Candidate,
    Role,
    Search,
    complexity_penalty,
    pairs,
    pools,
    rounded_context,
)
from capacity.pool.drafting import expected_tokens_by_position
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import EngineSetup
from capacity.simulator.schedulers import SCHEDULERS, DrawnSpeculation
from capacity.step import PS_PER_S, StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateGenerator:
    """Generator of candidates and rejections from the search space; `survey` records those examined so far."""

    context: EvaluationContext
    search: Search
    load: Load
    market: Market
    survey: CandidateRecord = field(default_factory=CandidateRecord, repr=False)
    _sides: dict[tuple[Pool, Role], Side | Exclusion] = field(default_factory=dict, repr=False)
    _first_tokens: dict[Pool, FirstTokenSearch] = field(default_factory=dict, repr=False)

    def unresolved_candidates(self) -> Iterator[UnresolvedCandidate]:
        """Yield each engine and prefill-decode pair as an unresolved candidate; reject GPUs that lack a price."""
        model, serving = self.context.model, self.search.serving
        for gpu in self.market.quotes:
            if gpu in self.market.unpriced:
                candidate = Candidate(pool=Pool(gpu=gpu), replicas=1)
                self.survey.reject(candidate, Exclusion("no price", self.market.unpriced[gpu]))
                continue
            for pool in pools(self.search, gpu, model) if "aggregated" in serving else ():
                yield self._unresolved_candidate(
                    Candidate(pool=pool, replicas=1), partial(self.replica_searches, pool)
                )
            for prefill, decode in pairs(self.search, gpu, model) if "disaggregated" in serving else ():
                candidate = Candidate(pool=decode, replicas=1, prefill=prefill, prefill_replicas=1)
                yield self._unresolved_candidate(candidate, partial(self._pair_searches, prefill, decode))

    def _unresolved_candidate(
        self, candidate: Candidate, look: Callable[[], Sequence[ReplicaSearch] | Exclusion]
    ) -> UnresolvedCandidate:
        self.survey.engines += 1
        self.survey.points += self._points(candidate)
        pool = candidate.pool
        gpus = candidate.num_gpus
        objective = objective_of(
            self.search,
            self.market.quotes[pool.gpu],
            gpus,
            lambda: idle_per_token(self._profile(pool.gpu), gpus, self.load, self._co2_g_per_kwh),
        )
        complexity = complexity_penalty(pool, disaggregated=candidate.prefill is not None)
        return UnresolvedCandidate(candidate, (objective, 0.0, complexity, 1), look, self._record_candidate)

    @property
    def _co2_g_per_kwh(self) -> float | None:
        """Return the carbon intensity if the objective is `carbon`; None for other objectives."""
        return self.search.co2_g_per_kwh if self.search.objective == "carbon" else None

    def _profile(self, gpu: str) -> HardwareProfile:
        folders = [] if self.context.profiles is None else [str(self.context.profiles)]
        return load_profile(gpu, folders)

    def _record_candidate(
        self, prospect: UnresolvedCandidate, seen: Sequence[ReplicaSearch] | Exclusion
    ) -> None:
        """Record a resolved candidate or its rejection; engines that cannot run are not counted as search space."""
        survey, candidate = self.survey, prospect.candidate
        if not isinstance(seen, Exclusion):
            survey.options += [option for contender in seen for option in contender.options]
            return
        conditions = conditions_of(self.search, self.context.model, candidate.pool)
        survey.reject(candidate, seen, recommendable=not conditions)
        if seen.kind not in ("unmeetable", "limit"):
            survey.points -= self._points(candidate)
        if seen.kind == "impossible":
            survey.engines -= 1

    def _points(self, candidate: Candidate) -> int:
        """Return the number of combinations of replicas and router (or prefill replicas) within the limits."""
        if candidate.prefill is not None:
            allowed, decode_gpus = self.most_gpus(candidate.pool.gpu), candidate.pool.num_gpus
            left = range(allowed - candidate.prefill.num_gpus, 0, -candidate.prefill.num_gpus)
            return sum(gpus // decode_gpus for gpus in left)
        most = self.most_replicas(candidate.pool)
        return min(most, 1) + max(most - 1, 0) * len(self.routers(most))

    def replica_searches(self, pool: Pool) -> Sequence[ReplicaSearch] | Exclusion:
        """Return a replica search for each router of an engine, or the reason why the engine is excluded."""
        side = self._side(pool, "both")
        if isinstance(side, Exclusion):
            return side
        most, bound_least = self.most_replicas(pool), side.bound.min_replicas
        blocked = self._exclusion_by_limit(pool, most, bound_least)
        if blocked is not None:
            return blocked
        contenders, routers = list[ReplicaSearch](), self.routers(most)
        if bound_least == 1 and ROUND_ROBIN not in routers:  # a single replica needs no router
            contenders.append(ReplicaSearch(self._candidate_family(side, least=1, most=1)))
        for router in routers:
            least = max(bound_least, 1 if router == ROUND_ROBIN else 2)
            if least <= most:
                contenders.append(
                    ReplicaSearch(self._candidate_family(side, least=least, most=most, router=router))
                )
        return contenders

    def _pair_searches(self, prefill: Pool, decode: Pool) -> Sequence[ReplicaSearch] | Exclusion:
        sides = self._side(prefill, "prefill"), self._side(decode, "decode")
        turned = [side for side in sides if isinstance(side, Exclusion)]
        if turned:  # "unmeetable" is the weakest reason
            return min(turned, key=lambda side: side.kind == "unmeetable")
        options = self._pair(sides[0], sides[1], decode.gpu)  # type: ignore[arg-type]
        if isinstance(options, Exclusion):
            return options
        first = None
        if self.load.open_loop:
            least = FirstTokenSearch(options[0].prefill_replicas)
            assert options[0].prefill is not None
            first = self._first_tokens.setdefault(options[0].prefill, least)
        return (PairReplicaSearch(options, first),)

    def _pair(self, prefill: Side, decode: Side, gpu: str) -> list[CandidateFamily] | Exclusion:
        """Return a candidate family for each number of prefill replicas, or the reason why the pair is excluded."""
        allowed = self.most_gpus(gpu)
        least_p, least_d = prefill.bound.min_replicas, decode.bound.min_replicas
        width_p, width_d = prefill.pool.num_gpus, decode.pool.num_gpus
        if (gpus := least_p * width_p + least_d * width_d) > allowed:
            return Exclusion(
                "limit",
                f"needs at least {least_p} prefill and {least_d} decode replicas ({gpus} GPUs); {allowed} are allowed "
                f"by {self._limit(gpu)}",
            )
        highest = (allowed - least_d * width_d) // width_p
        return [
            self._candidate_family(
                decode,
                least=least_d,
                most=(allowed - count * width_p) // width_d,
                prefill=prefill,
                prefill_replicas=count,
            )
            for count in range(least_p, highest + 1)
        ]

    def _candidate_family(self, side: Side, prefill: Side | None = None, **own: Any) -> CandidateFamily:
        """Return the candidate family of an engine in one role; `prefill` is the prefill engine of a pair."""
        router, ratios = own.get("router", ROUND_ROBIN), [side.bound.ratio]
        engine = self.context.resolve_pool(side.pool)
        others = []
        if prefill is not None:
            own["prefill"] = prefill.pool
            ratios.append(prefill.bound.ratio)
            others.append((self.context.resolve_pool(prefill.pool), own["prefill_replicas"]))
        return make_from(
            CandidateFamily,
            side,
            bound=replace(side.bound, ratio=max(ratios)),
            price=self.market.quotes[side.pool.gpu],
            search=self.search,
            drawn=EnergyObjective(
                lambda replicas: [*others, (engine, replicas)],
                planned_load(engine, self.load, self.context.workloads[0]),
                own["least"],
                self._co2_g_per_kwh,
            ),
            complexity=complexity_penalty(side.pool, disaggregated=prefill is not None, router=router),
            **own,
        )

    def routers(self, most: int) -> tuple[str, ...]:
        """Return the routers to try for deployments of up to `most` replicas."""
        if most <= 1:
            return (ROUND_ROBIN,) if most else ()
        if self.search.routers:
            return self.search.routers
        shared = self.load.computed_input_tokens < self.load.input_tokens
        return (ROUND_ROBIN, "prefix-aware") if shared else (ROUND_ROBIN,)

    def most_gpus(self, gpu: str) -> int:
        """Return the largest number of GPUs that --max-gpus and --budget allow; may be 0."""
        quote = self.market.quotes[gpu]
        if self.search.budget is None or quote is None or not quote.usd_per_gpu_hour:
            return self.search.max_gpus
        instance = quote.gpus_per_instance
        affordable = int(self.search.budget / quote.usd_per_gpu_hour // instance) * instance
        return min(self.search.max_gpus, affordable)

    def most_replicas(self, pool: Pool) -> int:
        """Return the largest number of replicas that the GPU limit, the budget and the traffic allow; may be 0."""
        return min(self.most_gpus(pool.gpu) // pool.num_gpus, self.load.most_replicas)

    def _exclusion_by_limit(self, pool: Pool, most: int, least: int) -> Exclusion | None:
        if most >= 1 and least <= most:
            return None
        ratio = None if most < 1 else least / most
        if most < 1:
            needs, allowed = f"one replica has {pool.num_gpus} GPUs", self.most_gpus(pool.gpu)
        else:
            gpus, rate = least * pool.num_gpus, self.load.requests / max(self.load.span_s, 1e-9)
            needs, allowed = f"needs at least {least} replicas ({gpus} GPUs) for {rate:.3g} requests/s", most
        are = "is" if allowed == 1 else "are"
        return Exclusion("limit", f"{needs}; {allowed} {are} allowed by {self._limit(pool.gpu)}", ratio)

    def _limit(self, gpu: str) -> str:
        """Return text that names the limit on the number of these GPUs: --max-gpus, or --budget with the price."""
        search, quote = self.search, self.market.quotes[gpu]
        if quote is None or self.most_gpus(gpu) == search.max_gpus:
            return f"--max-gpus {search.max_gpus}"
        whole = f", rented in instances of {quote.gpus_per_instance}" if quote.gpus_per_instance > 1 else ""
        return f"--budget {search.budget:g} at {usd_text(quote.usd_per_gpu_hour, '.2f')} per GPU-hour{whole}"

    def _side(self, pool: Pool, role: Role) -> Side | Exclusion:
        side = self._sides.get((pool, role))
        if side is None:
            side = self._sides[pool, role] = self._resolve_side(pool, role)
        return side

    def _resolve_side(self, pool: Pool, role: Role) -> Side | Exclusion:
        """Return the engine in one role with its bounds and quality loss, or the reason for its exclusion."""
        try:
            pool, resolved = with_context(self.context, pool, self.load)
            quality = quality_of(resolved, self.context.model)
            if not quality.is_within(self.search.max_quality_loss):
                loss = quality.worst_loss_fraction
                if loss is None:
                    return Exclusion("quality", f"unknown quality loss: {quality.what}")
                return Exclusion("quality", f"loses up to {loss:.1%} of task scores ({quality.source})")
            plan = resolved.memory_without_advice
            if not plan.fits:
                return Exclusion("does not fit", plan.reason or "does not fit")
            if policy_name(resolved) not in SCHEDULERS:
                return Exclusion("impossible", f"the scheduler of {resolved.engine.label} is not simulated")
            tokens = self.load.longest_request_tokens
            if resolved.concurrent_requests(tokens) < 1:
                return Exclusion("does not fit", f"one request of {tokens:,} tokens exceeds the KV cache")
            setup = self.context.setup(pool, self.search.confidence)
        except CapacityError as error:
            return Exclusion("impossible", str(error))
        steps = setup.step_times
        assert isinstance(steps, ScaledSteps)
        bounds = bound_engine(
            resolved,
            steps.step_seconds,
            self.load,
            self.context.goal,
            role=role,
            drafting=_drafting_of(setup),
            alone_seconds=_one_rank(steps, resolved.lockstep_ranks),
        )
        if bounds.reason is not None:
            return Exclusion("unmeetable", bounds.reason, bounds.ratio)
        watts = resolved.profile.system_watts_per_gpu
        return Side(pool=pool, bound=bounds, quality=quality, watts_per_gpu=watts)


def _one_rank(steps: ScaledSteps, ranks: int) -> StepSeconds | None:
    """Return a function for the step time if only 1 of `ranks` data-parallel ranks has requests; None for 1 rank."""
    if ranks == 1:
        return None
    idle = (StepShape(),) * (ranks - 1)
    return lambda shape: steps.joint_ps((shape, *idle)) / PS_PER_S


def _drafting_of(setup: EngineSetup) -> Drafting:
    speculation = setup.speculation
    if not isinstance(speculation, DrawnSpeculation):
        return NO_DRAFTING
    rates = speculation.rates
    return Drafting(rows=speculation.k, tokens=expected_tokens_by_position(rates), most_tokens=len(rates) + 1)


def with_context(context: EvaluationContext, pool: Pool, load: Load) -> tuple[Pool, ResolvedPool]:
    """Return the pool and the resolved pool. If the model's full context does not fit but a context for the longest
    request does, both have the shorter context."""
    resolved = context.resolve_pool(pool)
    shorter = rounded_context(load.longest_request_tokens)
    if (
        pool.max_model_len is not None
        or resolved.memory_without_advice.fits
        or shorter >= resolved.max_model_len
    ):
        return pool, resolved
    trimmed = pool.model_copy(update={"max_model_len": shorter})
    retried = context.resolve_pool(trimmed)
    return (trimmed, retried) if retried.memory_without_advice.fits else (pool, resolved)
