"""The planner's stages in order: survey, hunt in all families side by side, then a closer look at the answers.

First the plain engines of every family, for an answer in seconds; then those that draft and those that prefill apart,
which must beat the best answer of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.hardware.pricing import CostEstimate, cost_estimate
from capacity.model import ModelSpec
from capacity.planning.arena import Arena, Task, run_all
from capacity.planning.bounds import Load
from capacity.planning.hunt import Ask, Batch, Ceiling, Family, Hunt, hunt
from capacity.planning.judging import Level, Trial
from capacity.planning.options import NOTHING, Market, Option, Survey, Surveyor, families
from capacity.planning.records import Miss, Plan, Point, Ranked, SearchCounts
from capacity.planning.space import TUNING, Candidate, Search, speculators
from capacity.planning.step_error import LEVELS
from capacity.pool.drafting import find_speculator

TOP = 8  # answers that are ranked
CLOSER = 4  # of them, those that are run again in full, with intervals
Progress = Callable[["Snapshot"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How the search stands: the best answer so far, and how many of the engines of this stage are settled."""

    elapsed_s: float
    stage: str
    settled: int
    engines: int
    simulated: int
    families_done: int
    families: int
    best: Candidate | None
    objective: float | None


@dataclass(kw_only=True)
class _Search:
    arena: Arena
    search: Search
    load: Load
    surveyor: Surveyor
    executor: Executor | None
    progress: Progress | None
    started_s: float
    survey: Survey = NOTHING
    stage: str = ""
    families: list[Family] = field(default_factory=list)
    fresh: list[Family] = field(default_factory=list)  # those of this stage
    first_answer_s: float | None = None
    trials: dict[Ask, Trial] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def late(self) -> bool:
        return self.elapsed_s > self.limit_s

    @property
    def limit_s(self) -> float:
        """Infinite where there is none."""
        return self.search.time_limit_s or float("inf")

    def run(self) -> None:
        """All waves: plain engines, those that draft, those that prefill apart."""
        self._wave("plain engines", self.surveyor.plain(), Ceiling(shared=not self.search.alternatives))
        later = (("drafts", self.surveyor.drafting), ("prefill and decode apart", self._disaggregated))
        for stage, survey in later:
            self._wave(stage, survey(), Ceiling(base=self.best, shared=True))

    def _disaggregated(self) -> Survey:
        latency = self.search.objective == "latency"
        return self.surveyor.disaggregated(float("inf") if latency else self.best)

    @property
    def best(self) -> float:
        """The least objective so far; infinite without an answer."""
        return min((family.objective for family in self.families), default=float("inf"))

    def _wave(self, stage: str, survey: Survey, ceiling: Ceiling) -> None:
        self.stage = stage
        self.survey += survey
        fresh = [
            Family(options=group, ceiling=ceiling, open_loop=self.load.open_loop)
            for _, group in families(survey.options)
        ]
        self.families += fresh
        self.fresh = fresh
        for family in fresh:
            family.open = list(family.options)
        self._hunt(fresh)
        while ceiling.loosened and not self.late:
            ceiling.loosened = False
            for family in fresh:
                family.forget()
            self._hunt(fresh)

    def _hunt(self, hunted: Sequence[Family]) -> None:
        """Advance all families together, one batch each, until none has more to try or time is up."""
        if self.late:
            return
        hunts = [(family, hunt(family)) for family in hunted]
        waiting = [(family, generator, next(generator, None)) for family, generator in hunts]
        while any(batch is not None for _, _, batch in waiting) and not self.late:
            active = [entry for entry in waiting if entry[2] is not None]
            wanted = [ask for _, _, batch in active for ask in batch or ()]
            self._try(wanted)
            waiting = [
                (family, generator, _send(generator, [self._known(ask) for ask in batch or ()]))
                for family, generator, batch in active
            ]
            self._report()

    def _try(self, asked: Sequence[Ask]) -> None:
        """Simulate what was asked for and is not known; when time is up, what has not begun is left."""
        fresh = [ask for ask in dict.fromkeys(asked) if self._known(ask) is None]
        tasks = [
            Task(
                candidate=ask.candidate,
                confidence=self.search.confidence,
                sample=ask.sample,
                intervals=not ask.sample,
                first_draw=ask.sample,
                first_tokens=ask.first_tokens,
            )
            for ask in fresh
        ]
        left_s = self.limit_s - self.elapsed_s
        trials = run_all(self.arena, tasks, self.executor, within_s=left_s)
        self.trials.update(
            (ask, trial) for ask, trial in zip(fresh, trials, strict=True) if trial is not None
        )

    def verify(self) -> None:
        """Where time ran out: the best so far in full, or the next best that stands up to it."""
        while True:
            best = min(self.families, key=lambda family: family.objective, default=None)
            if best is None or best.incumbent is None or best.incumbent[2].seen != "sample":
                return
            option, replicas, _ = best.incumbent
            candidate = option.at(replicas)
            task = Task(candidate=candidate, confidence=self.search.confidence, intervals=True)
            (trial,) = run_all(self.arena, [task], self.executor)
            self.trials[Ask(candidate, sample=False)] = trial
            best.retract()
            best.record(option, replicas, trial)
            if trial.met:
                best.settle(option, replicas, trial)
                continue
            for family in self.families:  # what it had put aside
                family.open, family.pruned = family.open + family.pruned, []

    def _known(self, ask: Ask) -> Trial | None:
        """What was seen of a candidate: in full, where it was."""
        return self.trials.get(ask._replace(sample=False)) or self.trials.get(ask)

    @property
    def simulated(self) -> int:
        """Distinct deployments."""
        return len({(ask.candidate, ask.first_tokens) for ask in self.trials})

    def _report(self) -> None:
        best = min(self.families, key=lambda family: family.objective)
        if best.incumbent is not None and self.first_answer_s is None:
            self.first_answer_s = self.elapsed_s
        if self.progress is not None:
            incumbent = best.incumbent
            self.progress(
                Snapshot(
                    elapsed_s=self.elapsed_s,
                    stage=self.stage,
                    settled=sum(family.engines - family.engines_open for family in self.fresh),
                    engines=sum(family.engines for family in self.fresh),
                    simulated=self.simulated,
                    families_done=sum(family.done for family in self.families),
                    families=len(self.families),
                    best=None if incumbent is None else incumbent[0].at(incumbent[1]),
                    objective=None if incumbent is None else best.objective,
                )
            )


def _send(generator: Hunt, trials: Sequence[Trial | None]) -> Batch | None:
    """What is asked for next; nothing where time ran out before all was answered."""
    known = [trial for trial in trials if trial is not None]
    try:
        return generator.send(known) if len(known) == len(trials) else None
    except StopIteration:
        return None


def run_search(
    arena: Arena,
    search: Search,
    load: Load,
    market: Market,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    started_s: float | None = None,
) -> Plan:
    """The plan for `arena`'s traffic. Raises DoesNotFit where nothing fits and InvalidInput where nothing can run."""
    state = _Search(
        arena=arena,
        search=search,
        load=load,
        surveyor=Surveyor(arena=arena, search=search, load=load, market=market),
        executor=executor,
        progress=progress,
        started_s=time.monotonic() if started_s is None else started_s,
    )
    state.run()
    if state.late:
        state.verify()
    found = state.survey
    _require_options(found)
    ranked = _ranked(state)
    misses = () if ranked else _misses(state)
    points = _points(state)
    rejected = [*found.rejected, *(r for family in state.families for r in family.rejections())]
    unresolved = sum(rejection.kind == "unresolved" for rejection in rejected)
    workload = arena.workloads[0]
    return Plan(
        model=arena.model.name,
        workload=workload.name,
        requests=load.requests,
        requests_per_s=load.requests / load.span_s if load.span_s else float("inf"),
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        slos=tuple(str(slo) for slo in arena.goal.slos),
        objective=search.objective,
        confidence=search.confidence,
        ranked=ranked,
        misses=misses,
        rejected=tuple(rejected),
        speed_front=_speed_front(points),
        cost_front=_cost_front(points),
        counts=SearchCounts(
            engines=found.engines,
            points=found.points,
            excluded=sum(r.kind in ("impossible", "does not fit", "quality", "no price") for r in rejected),
            bounded=sum(r.kind in ("unmeetable", "limit", "costlier") for r in rejected),
            simulated=state.simulated,
            unresolved=unresolved,
        ),
        proved=not unresolved and all(family.done for family in state.families),
        first_answer_s=state.first_answer_s,
        elapsed_s=state.elapsed_s,
        prices=tuple(
            f"{price.gpu}: ${price.usd_per_gpu_hour:g} per GPU-hour, {price.tier}, {price.described}"
            for price in market.quotes.values()
            if price is not None
        ),
        not_searched=not_searched(search, load, arena.model),
        warnings=_warnings(arena, ranked),
    )


def not_searched(search: Search, load: Load, model: ModelSpec) -> tuple[str, ...]:
    """What the axes leave out, and the flag that takes it in."""
    texts = []
    drafts = any(speculators(search, model))
    if not drafts:
        texts.append("drafts (--speculators eagle3-chain,mtp)")
    if "disaggregated" not in search.serving:
        texts.append("disaggregated prefill and decode (--serving aggregated,disaggregated)")
    elif drafts:
        texts.append("drafts in disaggregated deployments")
    tuned = any(len(getattr(search, name)) > 1 for name in TUNING)
    if tuned and (drafts or "disaggregated" in search.serving):
        texts.append(
            "token budgets and the like, but the first, with drafts, data-parallel ranks or disaggregated"
        )
    if model.is_moe and search.data_parallel_sizes == (1,):
        texts.append("data-parallel attention (--data-parallel-sizes 1,8)")
    elif model.is_moe and "disaggregated" in search.serving:
        texts.append("data-parallel attention in disaggregated deployments")
    if not search.routers:
        shared = load.computed_input_tokens < load.input_tokens
        asked = "round robin and prefix-aware" if shared else "round robin"
        texts.append(f"routers other than {asked} (--routers least-outstanding)")
    return tuple(texts)


def _require_options(found: Survey) -> None:
    """Where nothing was left to try for want of memory or of a way to run it: that, and never the SLO."""
    if found.options:
        return
    kinds = {rejection.kind for rejection in found.rejected}
    if kinds & {"unmeetable", "limit"}:
        return
    for kind in ("does not fit", "quality", "no price", "impossible"):
        reasons = [rejection.reason for rejection in found.rejected if rejection.kind == kind]
        if reasons:
            text = f"nothing in the space can serve this model ({len(reasons)} engines: {kind}); for one: {reasons[-1]}"
            if kind == "does not fit":
                raise DoesNotFit(text, needed_bytes=0.0, usable_bytes=0.0)
            raise InvalidInput(text)
    raise InvalidInput("the space is empty: give --gpus")


# answers


def _ranked(state: _Search) -> tuple[Ranked, ...]:
    """The best of each family, then other deployments on other hardware, by objective; the first ones in full."""
    chosen: dict[tuple[object, ...], tuple[Option, int, Trial, bool]] = {}
    for family in state.families:
        best = family.incumbent
        for option, replicas, trial in family.found:
            pool = option.pool
            parallelism = (
                pool.tensor_parallel_size,
                pool.pipeline_parallel_size,
                pool.enable_expert_parallel,
            )
            before = option.prefill and option.prefill.tensor_parallel_size
            shape = (pool.gpu, pool.quantization, *parallelism, pool.speculator, before, option.router)
            is_best = best is not None and option is best[0] and replicas == best[1]
            entry = (option, replicas, trial, is_best)
            rival = chosen.get(shape)
            if rival is None or is_best or (not rival[3] and _order(entry) < _order(rival)):
                chosen[shape] = entry
    order = sorted(chosen.values(), key=_order)
    leaders = [entry for entry in order if entry[3]]
    rest = [entry for entry in order if not entry[3]]
    shown = sorted((leaders + rest)[: max(TOP, len(leaders))], key=_order)
    closer = shown[:CLOSER] if not state.late else shown[:1]
    tasks = []
    for option, replicas, trial, _ in closer:
        candidate = option.at(replicas)
        if _wants_intervals(trial):
            tasks.append(Task(candidate=candidate, confidence=state.search.confidence, intervals=True))
        tasks.append(Task(candidate=candidate, confidence=None, sample=True, give_up=False))
        tasks += [
            Task(candidate=candidate, confidence=level, sample=True)
            for level in LEVELS
            if level > state.search.confidence
        ]
    trials = iter(run_all(state.arena, tasks, state.executor))
    answers = []
    for number, (option, replicas, trial, is_best) in enumerate(shown):
        predicted, confidence = None, state.search.confidence
        if number < len(closer):
            trial = next(trials) if _wants_intervals(trial) else trial
            predicted = next(trials)
            held = [level for level in LEVELS if level > confidence if next(trials).met]
            confidence = _highest(held, confidence)
        answers.append(_answer(state, option, replicas, trial, predicted, confidence, is_best=is_best))
    return tuple(answers)


def _wants_intervals(trial: Trial) -> bool:
    return trial.seen == "all" and all(level.low_s is None for level in trial.levels)


def _highest(held: Sequence[float], required: float) -> float:
    """The highest level that held together with all levels below it."""
    highest = required
    for level in (level for level in LEVELS if level > required):
        if level not in held:
            break
        highest = level
    return highest


def _order(entry: tuple[Option, int, Trial, bool]) -> tuple[float, bool, float, float]:
    """By objective; among equals what was simulated in full first, then by loss of quality and margin."""
    option, replicas, trial, _ = entry
    value = trial.ratio if option.search.objective == "latency" else option.objective(replicas)
    loss = option.quality.worst_loss_fraction
    return (value, trial.seen != "all", 1.0 if loss is None else loss, trial.ratio)


def _answer(
    state: _Search,
    option: Option,
    replicas: int,
    trial: Trial,
    predicted: Trial | None,
    confidence: float,
    *,
    is_best: bool,
) -> Ranked:
    steps = state.arena.resolved(option.pool).step_model
    gpus = option.gpus(replicas)
    watts = option.watts(replicas)
    value = trial.ratio if state.search.objective == "latency" else option.objective(replicas)
    return Ranked(
        candidate=option.at(replicas),
        num_gpus=gpus,
        billed_gpus=option.billed_gpus(replicas),
        objective=value,
        trial=trial,
        predicted=predicted,
        confidence=confidence,
        cost=_cost(state, option, replicas, predicted or trial),
        watts=watts,
        joules_per_output_token=watts / trial.output_tokens_per_s if trial.output_tokens_per_s else None,
        quality=option.quality,
        basis=steps.basis,
        step_error_assumed=steps.residuals("decode").fit.basis == "assumed",
        best_of_its_kind=is_best,
    )


def _cost(state: _Search, option: Option, replicas: int, trial: Trial) -> CostEstimate | None:
    """At the load that is served: idle time and whole instances are paid for."""
    if option.price is None or not trial.requests_per_s:
        return None
    return cost_estimate(
        option.price,
        num_gpus=option.billed_gpus(replicas),
        requests_per_s=trial.requests_per_s,
        input_tokens=state.load.input_tokens,
        output_tokens=state.load.output_tokens,
        prefill_share=option.bound.prefill_share,
    )


# what nothing meets


def _misses(state: _Search) -> tuple[Miss, ...]:
    """The parts of the SLO that stay out of reach, on the candidate that comes nearest to all of it."""
    tried = [entry for family in state.families for entry in family.missed]
    if tried:
        option, replicas, _ = min(tried, key=lambda entry: entry[2].ratio)
        candidate = option.at(replicas)
        (trial,) = run_all(
            state.arena,
            [Task(candidate=candidate, confidence=state.search.confidence, give_up=False)],
            state.executor,
        )
        missed = [level for level in trial.levels if level.ratio > 1]
        return tuple(_miss(level, candidate.label) for level in missed)
    if state.survey.least_ratio is not None:
        ratio, candidate, reason = state.survey.least_ratio
        slo = reason.split(" cannot be met: ")[0]
        best = reason.split("needs ")[-1] + " on an empty engine"
        limit = slo.split(":")[-1]
        return (Miss(slo=slo, limit=limit, best=best, factor=ratio, candidate=candidate.label),)
    blocked = next((r for r in state.survey.rejected if r.kind == "limit"), None)
    if blocked is None:
        return ()
    label = Candidate(pool=blocked.pool, replicas=1).label
    return (
        Miss(
            slo="capacity",
            limit="--max-gpus or --budget",
            best=blocked.reason,
            factor=float("inf"),
            candidate=label,
        ),
    )


def _miss(level: Level, candidate: str) -> Miss:
    if level.value_s is None:
        best = f"{level.good_fraction:.1%} of requests"
        return Miss(
            slo=level.slo,
            limit=f"{level.required_fraction:.1%}",
            best=best,
            factor=level.ratio,
            candidate=candidate,
        )
    return Miss(
        slo=level.slo,
        limit=f"{level.limit_s * 1e3:,.0f} ms",
        best=f"{level.value_s * 1e3:,.0f} ms",
        factor=level.ratio,
        candidate=candidate,
    )


# fronts


def _points(state: _Search) -> list[Point]:
    """What was simulated and not given up, each candidate once, in full where it was."""
    options = {option.at(0): option for family in state.families for option in family.options}
    latest = {
        ask.candidate: trial
        for ask, trial in state.trials.items()
        if trial.seen in ("all", "sample") and not ask.first_tokens
    }
    return [
        _point(options[replace(candidate, replicas=0)], candidate, trial)
        for candidate, trial in latest.items()
    ]


def _point(option: Option, candidate: Candidate, trial: Trial) -> Point:
    return Point(
        label=candidate.label,
        gpu=candidate.pool.gpu,
        num_gpus=candidate.num_gpus,
        usd_per_hour=option.usd_per_hour(candidate.replicas),
        tokens_per_s_per_user=trial.tokens_per_s_per_user,
        tokens_per_s_per_gpu=trial.output_tokens_per_s / candidate.num_gpus,
        levels=trial.levels,
        met=trial.met,
    )


def _speed_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """tok/s per user against tok/s per GPU, of what was simulated: no other is better in both."""
    known = [point for point in points if point.tokens_per_s_per_user is not None]
    return _front(known, lambda point: (-(point.tokens_per_s_per_user or 0.0), -point.tokens_per_s_per_gpu))


def _cost_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """$ per hour (GPUs without a price) against the worst level's share of its limit."""

    def values(point: Point) -> tuple[float, float]:
        price = point.usd_per_hour if point.usd_per_hour is not None else float(point.num_gpus)
        return price, point.worst_ratio

    return _front(points, values)


def _front(points: Sequence[Point], values: Callable[[Point], tuple[float, float]]) -> tuple[Point, ...]:
    """The points that none beats in both values, in order of the first."""
    front: list[Point] = []
    for point in sorted(points, key=values):
        if not front or values(point)[1] < values(front[-1])[1]:
            front.append(point)
    return tuple(front)


def _warnings(arena: Arena, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    texts = list(arena.workloads[0].notices)
    if any(answer.step_error_assumed for answer in ranked):
        texts.append(
            "the error band of the step times is assumed for some of these GPUs: confidence is only as good"
        )
    if any(answer.candidate.replicas > 1 for answer in ranked):
        texts.append("replicas share no prefix cache; a router stands before them (round robin unless named)")
    for name in dict.fromkeys(answer.candidate.pool.speculator for answer in ranked):
        if name is not None:
            texts.append(_acceptance(name, ranked))
    return tuple(texts)


def _acceptance(name: str, ranked: Sequence[Ranked]) -> str:
    """Where the acceptance of drafts is from: the confidence does not cover it."""
    speculator = find_speculator(name)
    given = next(a.candidate.pool.acceptance for a in ranked if a.candidate.pool.speculator == name)
    if given is not None:
        return f"drafts by {name} are accepted as given ({given}); the confidence does not cover that"
    return (
        f"drafts by {name} are accepted as published for {speculator.acceptance_model} ({speculator.source}); the "
        "confidence does not cover that: measure yours, and give it by --acceptance"
    )
