"""The planner's stages in order: survey, hunt in all families side by side, then a closer look at the answers.

First the plain engines of every family, for an answer in seconds; then those that draft and those that prefill apart,
which must beat the best answer of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from capacity.planning.arena import Arena, Task, run_all
from capacity.planning.bounds import Load
from capacity.planning.family import Ceiling, Family
from capacity.planning.fronts import cost_front, points_of, speed_front
from capacity.planning.hunt import Ask, Batch, Hunt, hunt
from capacity.planning.judging import Trial
from capacity.planning.market import Market
from capacity.planning.option import NOTHING, Survey, families
from capacity.planning.options import Surveyor
from capacity.planning.ranking import Ranking
from capacity.planning.records import Plan, SearchCounts
from capacity.planning.remarks import not_searched, require_options, warnings_of
from capacity.planning.space import Candidate, Search

CLOSER = 4  # answers that are run again in full, with intervals
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

    def _try(self, asks: Sequence[Ask]) -> None:
        """Simulate what was asked for and is not known; when time is up, what has not begun is left."""
        fresh = [ask for ask in dict.fromkeys(asks) if self._known(ask) is None]
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
            if best is None or best.incumbent is None or best.incumbent.trial.seen != "sample":
                return
            option, replicas, _ = best.incumbent
            candidate = best.incumbent.candidate
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
                    best=None if incumbent is None else incumbent.candidate,
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
    survey, hunted = state.survey, state.families
    require_options(survey)
    ranking = Ranking(arena=arena, search=search, load=load, executor=executor)
    ranked = ranking.ranked(hunted, closer=1 if state.late else CLOSER)
    options = (option for family in hunted for option in family.options)
    points = points_of(state.trials, options)
    rejected = [*survey.rejected, *(r for family in hunted for r in family.rejections())]
    unresolved = sum(rejection.kind == "unresolved" for rejection in rejected)
    return Plan(
        model=arena.model.name,
        workload=arena.workloads[0].name,
        requests=load.requests,
        requests_per_s=load.requests / load.span_s if load.span_s else float("inf"),
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        slos=tuple(str(slo) for slo in arena.goal.slos),
        objective=search.objective,
        confidence=search.confidence,
        ranked=ranked,
        misses=() if ranked else ranking.misses(hunted, survey),
        rejected=tuple(rejected),
        speed_front=speed_front(points),
        cost_front=cost_front(points),
        counts=SearchCounts(
            engines=survey.engines,
            points=survey.points,
            excluded=sum(r.kind in ("impossible", "does not fit", "quality", "no price") for r in rejected),
            bounded=sum(r.kind in ("unmeetable", "limit", "costlier") for r in rejected),
            simulated=state.simulated,
            unresolved=unresolved,
        ),
        proved=not unresolved and all(family.done for family in hunted),
        first_answer_s=state.first_answer_s,
        elapsed_s=state.elapsed_s,
        prices=tuple(price.quoted for price in market.quotes.values() if price is not None),
        not_searched=not_searched(search, load, arena.model),
        warnings=warnings_of(arena, ranked),
    )
