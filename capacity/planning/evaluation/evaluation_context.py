"""Context that evaluates many deployments on one model and one traffic, in one process or in several."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from capacity.answers.costs import Pools, ServedLoad
from capacity.answers.deployment_run import NO_SERVICE
from capacity.deployment import Pool, Service
from capacity.model import ModelSpec
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluate import (
    Check,
    EngineGroup,
    evaluate_engines,
    run_engines,
    scaled_setup,
    served_load_of,
)
from capacity.planning.evaluation.resampling import SteadyTraffic
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal, evaluate_windows
from capacity.planning.evaluation.step_error import factors_at
from capacity.planning.space import Candidate
from capacity.planning.workers.worker_pool import stop_if_recalled
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import EngineSetup, SimulationResult
from capacity.workload import Workload
from capacity.workload.windows import Window, take_busiest_window


class OutOfTime(Exception):
    """A search reached its time limit; its results so far are kept."""


class EvaluationRequest(NamedTuple):
    """Request to evaluate one candidate, with the options of `evaluate_engines`.

    `confidence`: simulate with the step times at this quantile of their prediction error; None: as predicted.
    `first_tokens`: end every request with its first token and compare only latencies up to that token with their
    limits. `whole`: if
    the search uses only the busiest window of the traffic, evaluate the whole traffic window by window.
    """

    candidate: Candidate
    confidence: float | None
    give_up: bool = True
    sample: bool = False
    intervals: bool = False
    first_tokens: bool = False
    first_draw: bool = False
    whole: bool = False


def first_request(candidate: Candidate, confidence: float | None) -> EvaluationRequest:
    """Return the request for a quick evaluation: one replica and one traffic sample may represent all."""
    return EvaluationRequest(candidate, confidence, sample=True, first_draw=True)


@dataclass(kw_only=True)
class EvaluationContext:
    """Model, traffic samples and SLO to evaluate candidates; resolved pools and step models are cached.

    With `windows` (busiest first), `workloads` holds the requests of the busiest window and `whole` all requests. With
    `steady` traffic, a candidate for which these samples are too short is evaluated on longer ones. A `service` that
    is not the default replaces the router of the candidates.
    """

    model: ModelSpec
    workloads: Sequence[Workload]
    goal: Goal
    profiles: str | Path | None = None
    whole: Sequence[Workload] = ()
    windows: Sequence[Window] = ()
    slo_window: str = "trace"
    steady: SteadyTraffic | None = None
    service: Service = NO_SERVICE
    _resolved: dict[Pool, ResolvedPool] = field(default_factory=dict, repr=False)
    _models: dict[tuple[object, ...], list[ResolvedPool]] = field(default_factory=dict, repr=False)
    _setups: dict[tuple[Pool, float | None], EngineSetup] = field(default_factory=dict, repr=False)
    # results for these workloads, which `replace` does not copy
    _begun: dict[tuple[Candidate, float | None], list[SimulationResult]] = field(
        default_factory=dict, repr=False, init=False
    )
    _looks: dict[Candidate, Evaluation] = field(default_factory=dict, repr=False, init=False)
    _longer: dict[int, EvaluationContext] = field(default_factory=dict, repr=False, init=False)

    def for_workloads(self, workloads: Sequence[Workload]) -> EvaluationContext:
        """Return a context for these samples, or for their busiest window if they are longer than `slo_window`.

        Raises InvalidInput if `slo_window` is not a duration.
        """
        busiest, windows = take_busiest_window(workloads, self.slo_window)
        return replace(
            self,
            workloads=busiest,
            whole=workloads if windows else (),
            windows=windows,
            slo_window=self.slo_window if windows else "trace",
        )

    def busy_load(self, load: Load) -> Load:
        """Return the totals of the busiest window for the bounds; without windows, those of all requests (`load`)."""
        if not self.windows:
            return load
        return replace(Load.average(self.workloads), longest_request_tokens=load.longest_request_tokens)

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle without caches, because worker processes resolve pools themselves."""
        kept = ("_resolved", "_models", "_setups", "_begun", "_looks", "_longer")
        return {**self.__dict__, **{name: {} for name in kept}}

    def add(self, resolved: ResolvedPool) -> None:
        """Add a resolved pool to the cache, and share its step model with pools that have the same step times."""
        self._resolved[resolved.pool] = resolved
        self._share_steps(resolved)

    def resolve_pool(self, pool: Pool) -> ResolvedPool:
        """Return the resolved pool, from the cache if possible. Raises what `resolve` raises."""
        resolved = self._resolved.get(pool)
        if resolved is None:
            resolved = self._resolved[pool] = resolve(self.model, pool, profiles=self.profiles)
            self._share_steps(resolved)
        return resolved

    def _share_steps(self, resolved: ResolvedPool) -> None:
        """Reuse the step model, with its cached step times, of another pool that has the same step times."""
        pool = resolved.pool
        near = (pool.gpu, pool.quantization, pool.tensor_parallel_size, resolved.max_num_seqs)
        others = self._models.setdefault(near, [])
        own = resolved.step_setting
        like = next((other for other in others if other.step_setting == own), None)
        if like is None:
            others.append(resolved)
        else:
            vars(resolved)["step_model"] = like.step_model  # fill the cached property

    def setup(self, pool: Pool, confidence: float | None) -> EngineSetup:
        """Return the cached setup of one engine, with step times at quantile `confidence` of their prediction error.

        Raises what `resolve` and `setup_of` raise.
        """
        setup = self._setups.get((pool, confidence))
        if setup is None:
            resolved = self.resolve_pool(pool)
            setup = scaled_setup(resolved, factors_at(resolved, confidence))
            self._setups[pool, confidence] = setup
        return setup

    def context_of(self, candidate: Candidate, *, check: Check = None) -> EvaluationContext:
        """Return the context to evaluate a candidate: this one, or one with longer traffic samples.

        The choice depends only on the traffic, the SLO and the candidate, not on other candidates. A candidate that
        clearly misses the SLO needs no longer samples.
        """
        if self.steady is None:
            return self
        look = self._looks.get(candidate)
        if look is None:
            look = self._looks[candidate] = self._run(first_request(candidate, self.steady.confidence), check)
        if look.seen == "given up":
            return self
        drawn = self.whole or self.workloads
        requests = self.steady.requests_for(drawn, look.mean_e2e_s)
        if requests is None:
            return self
        if requests not in self._longer:
            self._longer[requests] = self.for_workloads(self.steady.draw(requests, drawn))
        return self._longer[requests].context_of(candidate, check=check)

    def run(self, task: EvaluationRequest, *, check: Check = None) -> Evaluation:
        """Simulate a candidate on traffic samples that are long enough for it; `check` may raise to end the run."""
        if task.first_tokens:
            return self._run(task, check)
        context = self.context_of(task.candidate, check=check)
        steady = context.steady
        if steady is not None and task == first_request(task.candidate, steady.confidence):
            return context._looks[task.candidate]
        return context._run(task, check)

    def _run(self, task: EvaluationRequest, check: Check) -> Evaluation:
        candidate = task.candidate
        engines = []
        for pool, replicas, role in candidate.parts:
            made = self.setup(pool, task.confidence)
            engines.append(
                EngineGroup(resolved=self.resolve_pool(pool), replicas=replicas, role=role, made=made)
            )
        workloads, goal = (self.workloads, self.goal) if not task.first_tokens else self._first_tokens()
        trial = evaluate_engines(
            engines,
            workloads,
            goal,
            router=candidate.router,
            service=self.service,
            give_up=task.give_up,
            sample=task.sample,
            intervals=task.intervals,
            first_draw=task.first_draw,
            check=check,
            begun=None if task.first_tokens else self._begun.setdefault((candidate, task.confidence), []),
        )
        if not task.whole or (task.give_up and not trial.met):
            return trial
        return self.evaluate_whole(engines, trial, goal, router=candidate.router, check=check)

    def evaluate_whole(
        self,
        engines: Sequence[EngineGroup],
        busiest: Evaluation,
        goal: Goal,
        *,
        router: str,
        check: Check = None,
    ) -> Evaluation:
        """Simulate the engines on the whole traffic and compare each window with the SLO.

        `busiest` is the evaluation of these engines on the busiest window alone; return it if there are no windows.
        """
        if not self.windows:
            return busiest
        runs = [run_engines(engines, w, router=router, service=self.service, check=check) for w in self.whole]
        return evaluate_windows(runs, self.whole, self.windows, goal, busiest)

    def served_load(self, pools: Pools, trial: Evaluation, offered_per_s: float | None) -> ServedLoad | None:
        """Return the load that `pools` serve in steady state, for a bill; None if `trial` completed no request.

        `offered_per_s`: request rate of an open loop. If `trial` covers only the busiest window, the lengths are those
        of all requests.
        """
        load = served_load_of(pools, trial, self.workloads[0], offered_per_s=offered_per_s)
        if load is None or not self.windows:
            return load
        input_tokens, output_tokens = self.whole[0].long_run_tokens
        return replace(load, input_tokens=input_tokens, output_tokens=output_tokens)

    def _first_tokens(self) -> tuple[Sequence[Workload], Goal]:
        ones = [replace(w, output_tokens=np.ones_like(w.output_tokens)) for w in self.workloads]
        waits = tuple(slo for slo in self.goal.slos if slo.includes_wait)
        return ones, replace(self.goal, slos=waits)


def run_task(
    context: EvaluationContext, task: EvaluationRequest, left_s: float = math.inf
) -> Evaluation | None:
    """Run an evaluation on a worker; return None if it takes more than `left_s` seconds on the worker's clock."""
    until_s = time.monotonic() + left_s

    def check() -> None:
        stop_if_recalled()
        if time.monotonic() > until_s:
            raise OutOfTime

    try:
        check()
        return context.run(task, check=check)
    except OutOfTime:
        return None
