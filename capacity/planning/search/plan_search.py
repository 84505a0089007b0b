"""The planner's search in stages: find the cheapest deployment, then the best of every GPU and weight format.

Each stage is a `BestFirstSearch` in order of a lower bound of the objective, so if it is interrupted, its result is
the best of the cheapest candidates. The time limit is checked between and during simulations.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from capacity.base.record import make_from
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext, OutOfTime
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.records import Ended
from capacity.planning.search.best_first_search import BestFirstSearch, Entry, LeastLatencySearch
from capacity.planning.search.candidate_family import EvaluatedCandidate
from capacity.planning.search.candidate_generator import CandidateGenerator
from capacity.planning.search.conditions import conditions_of
from capacity.planning.search.few_requests import check_neighbours
from capacity.planning.search.rejection_reasons import Family, is_unresolved
from capacity.planning.search.replica_search import ReplicaSearch, UnresolvedCandidate
from capacity.planning.search.snapshot import Progress, Snapshot
from capacity.planning.space import Search

GRACE_S = 1.0  # after the time limit, to verify the answer
FULL_SLOWER = 1.3  # time to simulate n replicas together, relative to n simulations of one replica
LATENCY_SHARE = 0.6  # of the time limit for the lowest latency; the rest for the fewest GPUs near it
REPORT_S = 0.2  # seconds between two progress reports


@dataclass(kw_only=True)
class PlanSearch:
    """State of a search; `generator` generates the candidates for `load`, `evaluator` simulates them."""

    search: Search
    load: Load
    generator: CandidateGenerator
    evaluator: EvaluationPool
    progress: Progress | None
    started_s: float
    stage: str = ""
    stage_search: BestFirstSearch | None = None  # of this stage
    all: BestFirstSearch | None = None  # over the whole space
    entries: list[Entry] = field(default_factory=list)  # excluded from `all` by latency
    leaders: dict[Family, EvaluatedCandidate] = field(default_factory=dict)
    families: int = 0
    ratio_limit: float | None = None
    cut: bool = False  # the search for the lowest latency was not finished
    ended: Ended = "done"
    first_answer_s: float | None = None
    remarks: tuple[str, ...] = ()
    # by conditions: entries that are not recommended, and those that would beat the best
    conditional: dict[tuple[str, ...], list[Entry]] = field(default_factory=dict)
    savings: dict[tuple[str, ...], EvaluatedCandidate] = field(default_factory=dict)
    _reported_s: float = 0.0

    @property
    def context(self) -> EvaluationContext:
        return self.evaluator.context

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def time_limit_s(self) -> float:
        return self.search.time_limit_s or math.inf

    @property
    def until_s(self) -> float:
        """Return the deadline on the clock `time.monotonic`; infinite without a time limit."""
        return self.started_s + self.time_limit_s

    @property
    def best(self) -> EvaluatedCandidate | None:
        return None if self.all is None else self.all.best

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes about unfinished stages, and about percentiles that depend on few requests."""
        if self.ended == "done" or self.families <= len(self.leaders):
            return self.remarks
        found = f"{len(self.leaders)} of {self.families}"
        return (
            f"The search ended early, with alternatives for only {found} combinations of GPU and weight format.",
            *self.remarks,
        )

    @property
    def all_entries(self) -> list[Entry]:
        """Return all candidates without quality loss or unmeasured drafts, also unresolved and rejected ones."""
        return [*self.entries, *(() if self.all is None else self.all.entries)]

    def run(self, *, savings_below: float | None = None) -> None:
        """Run all stages until the time limit or Ctrl-C; with `savings_below`, search only for deployments whose
        objective is below it but that lose quality or use unmeasured drafts (`conditions_of`)."""
        self.evaluator.tick, self.evaluator.until_s = self._tick, self.until_s
        try:
            if savings_below is not None:
                self._recommendable()
                self._conditional(savings_below)
            elif self.search.objective == "latency":
                self._fastest()
            else:
                self._cheapest()
        except OutOfTime:
            self.ended = "time limit"
        except KeyboardInterrupt:
            self.ended = "interrupted"
        self.evaluator.until_s = max(self.until_s, time.monotonic()) + GRACE_S
        if self.ended == "time limit":
            self._verify()

    def _recommendable(self) -> list[UnresolvedCandidate]:
        """Return candidates that may be recommended; store those that lose quality or use unmeasured drafts
        (`conditions_of`) in `conditional`."""
        plain = []
        for prospect in self.generator.unresolved_candidates():
            conditions = conditions_of(self.search, self.context.model, prospect.candidate.pool)
            if conditions:
                self.conditional.setdefault(conditions, []).append(prospect)
            else:
                plain.append(prospect)
        return plain

    def _cheapest(self) -> None:
        entries: list[Entry] = list(self._recommendable())
        self.all = BestFirstSearch(
            entries, self.evaluator, improved=self._record_improvement, whole=bool(self.context.windows)
        )
        self._stage("the cheapest", self.all)
        self.evaluator.until_s = self.until_s
        if self.best is not None:
            fewer, self.remarks = check_neighbours(self.best, self.evaluator)
            if fewer is not None:
                self.all.replace_best(fewer)
        if self.search.alternatives:
            self._alternatives()
            self._conditional(math.inf if self.best is None else self.best.objective)

    def _conditional(self, least: float) -> None:
        """Find the best deployment with an objective below `least` if the user accepts one disadvantage
        (`conditions_of`, such as an FP8 KV cache), then if the user accepts any combination of them."""
        singles = [(what, entries) for what, entries in self.conditional.items() if len(what) == 1]
        several = tuple(dict.fromkeys(one for what in self.conditional for one in what))
        seen = list[Entry]()
        for what, entries in singles:
            seen += self._search_below(what, entries, least)
        if len(several) > 1:
            rest = [entry for what, entries in self.conditional.items() if len(what) > 1 for entry in entries]
            least = min([least, *(tried.objective for tried in self.savings.values())])
            self._search_below(several, [*seen, *rest], least)

    def _search_below(self, what: tuple[str, ...], entries: Sequence[Entry], least: float) -> list[Entry]:
        """Search `entries`, the candidates with the disadvantages `what`, for an objective below `least`; return all
        entries, resolved or not."""
        if self.search.objective == "latency":
            contenders = [
                each
                for entry in entries
                for each in (entry.enter() if isinstance(entry, UnresolvedCandidate) else (entry,))
            ]
            fastest = LeastLatencySearch(self.evaluator, ratio=least)
            fastest.simulate_candidates(contenders)
            if fastest.ratio >= least:
                return list(contenders)
            stage_search = self._search_fewest_gpus(
                contenders, min(self._limit(fastest), math.nextafter(least, 0.0))
            )
        else:
            stage_search = BestFirstSearch(
                entries, self.evaluator, below=None if math.isinf(least) else (least, -1.0)
            )
        try:
            self._stage(f"with {' or '.join(what)}", stage_search)
        finally:
            if (
                stage_search.best is not None
                and stage_search.verified
                and stage_search.best.objective < least
            ):
                self.savings[what] = stage_search.best
        return stage_search.entries

    def _fastest(self) -> None:
        """Find the fewest GPUs with a latency within the tolerance of the lowest possible latency."""
        waiting = sorted(self._recommendable(), key=lambda prospect: not prospect.candidate.is_plain)
        fastest, contenders = LeastLatencySearch(self.evaluator), list[ReplicaSearch]()
        self.stage = "the least latency"
        self.evaluator.until_s = self.started_s + self.time_limit_s * LATENCY_SHARE
        try:
            for plain in (True, False):
                group = list[ReplicaSearch]()
                while waiting and waiting[0].candidate.is_plain == plain:
                    self.evaluator.check()
                    group += waiting.pop(0).enter()
                contenders += group
                fastest.simulate_candidates(group)
        except OutOfTime:
            self.cut = True
        finally:
            self.evaluator.until_s = self.until_s
        self.ratio_limit = limit = self._limit(fastest)
        self.entries = [contender for contender in contenders if contender.option.bound.ratio > limit]
        self.all = self._search_fewest_gpus([*contenders, *waiting], limit, improved=self._record_improvement)
        self._stage("the fewest GPUs", self.all)
        if self.search.alternatives:
            self._conditional(math.inf if self.best is None else self.best.objective)

    def _limit(self, fastest: LeastLatencySearch) -> float:
        """Return the highest accepted latency as a fraction of the SLO limits: the lowest plus the tolerance."""
        return fastest.ratio * (1 + self.search.latency_tolerance)

    def _search_fewest_gpus(
        self,
        entries: Sequence[Entry],
        limit: float,
        improved: Callable[[EvaluatedCandidate], None] | None = None,
    ) -> BestFirstSearch:
        """Return a search for the fewest GPUs; it excludes candidates whose latency bound exceeds `limit`."""
        near = [
            entry
            for entry in entries
            if isinstance(entry, UnresolvedCandidate) or entry.option.bound.ratio <= limit
        ]
        return BestFirstSearch(
            near,
            self.evaluator,
            accept=lambda trial: trial.met and trial.ratio <= limit,
            improved=improved,
            full=True,
            whole=bool(self.context.windows),
        )

    def _alternatives(self) -> None:
        """Find the best deployment of every other GPU and weight format, without drafts or separate prefill."""
        assert self.all is not None
        groups: dict[Family, list[Entry]] = {}
        for entry in self.all_entries:
            if entry.candidate.is_plain:
                pool = entry.candidate.pool
                groups.setdefault((pool.gpu, pool.quantization), []).append(entry)
        self.families = len(groups)
        for family, entries in sorted(groups.items(), key=lambda each: min(entry.order for entry in each[1])):
            if self.best is not None and self.best.option in [
                e.option for e in entries if isinstance(e, ReplicaSearch)
            ]:
                self.leaders[family] = self.best
                continue
            stage_search = BestFirstSearch(entries, self.evaluator)
            try:
                self._stage("alternatives", stage_search)
            finally:
                self.all.merge(stage_search)
                if stage_search.best is not None:
                    self.leaders[family] = stage_search.best

    def _stage(self, name: str, stage_search: BestFirstSearch) -> None:
        self.stage, self.stage_search = name, stage_search
        stage_search.run()

    def _record_improvement(self, tried: EvaluatedCandidate) -> None:
        """Record a better deployment, and reserve the time to verify it with all replicas."""
        if self.first_answer_s is None:
            self.first_answer_s = self.elapsed_s
        if tried.trial.seen == "sample":
            took_s = max(
                (s for ask, s in self.evaluator.seconds.items() if ask.candidate == tried.candidate),
                default=0.0,
            )
            judged_on = self.context.context_of(tried.candidate, check=self.evaluator.check)
            requests = sum(len(workload) for workload in (*judged_on.workloads, *judged_on.whole))
            full_s = FULL_SLOWER * took_s * requests / max(tried.trial.requests, 1)
            self.evaluator.until_s = max(self.until_s - full_s, time.monotonic())
        else:
            self.evaluator.until_s = self.until_s
        self._report()

    def _verify(self) -> None:
        """Simulate all replicas of the best deployment after the time limit, within the grace period."""
        try:
            if self.best is not None and self.all is not None:
                self.all.verify()
                if self.best is None:  # verification failed: continue with the next best
                    self.all.run()
        except OutOfTime:
            return
        except KeyboardInterrupt:
            self.ended = "interrupted"

    @property
    def simulated(self) -> int:
        return len({(ask.candidate, ask.first_tokens) for ask in self.evaluator.trials})

    def _tick(self) -> None:
        if self.progress is not None and time.monotonic() - self._reported_s > REPORT_S:
            self._report()

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        if self.progress is None:
            return
        entries = [] if self.stage_search is None else self.stage_search.entries
        best = None if self.stage_search is None else self.stage_search.best
        self.progress(
            make_from(
                Snapshot,
                self,
                settled=sum(not is_unresolved(entry, best) for entry in entries),
                engines=len(entries),
                best=None if self.best is None else self.best.candidate,
                objective=None if self.best is None else self.best.objective,
                minimised=self.search.objective,
            )
        )
