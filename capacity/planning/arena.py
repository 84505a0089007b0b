"""Where candidates are tried: one model and one traffic, many deployments, in this process or in several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capacity.deployment import Pool
from capacity.model import ModelSpec
from capacity.planning.space import Candidate
from capacity.planning.step_error import factors_at
from capacity.planning.trial import Engines, Goal, Role, Trial, try_engines
from capacity.resolve import ResolvedPool, resolve
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One candidate to be tried; `confidence` None: with step times as predicted. See `try_engines`.

    `first_tokens`: every request ends with its first token, and only limits on how long that takes count.
    """

    candidate: Candidate
    confidence: float | None
    give_up: bool = True
    sample: bool = False
    intervals: bool = False
    first_tokens: bool = False


@dataclass(kw_only=True)
class Arena:
    """The model, the traffic (its replications) and the goal; pools are resolved once."""

    model: ModelSpec
    workloads: Sequence[Workload]
    goal: Goal
    profiles: str | Path | None = None
    _resolved: dict[Pool, ResolvedPool] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Worker processes look names up themselves: step models do not travel."""
        return {**self.__dict__, "_resolved": {}}

    def resolved(self, pool: Pool) -> ResolvedPool:
        """The pool with every name looked up; raises what `resolve` raises."""
        found = self._resolved.get(pool)
        if found is None:
            found = self._resolved[pool] = resolve(self.model, pool, profiles=self.profiles)
        return found

    def run(self, task: Task) -> Trial:
        """Simulate one candidate."""
        candidate = task.candidate
        if candidate.prefill is None:
            engines = [self._engines(candidate.pool, candidate.replicas, "both", task.confidence)]
        else:
            engines = [
                self._engines(candidate.prefill, candidate.prefill_replicas, "prefill", task.confidence),
                self._engines(candidate.pool, candidate.replicas, "decode", task.confidence),
            ]
        workloads, goal = (self.workloads, self.goal) if not task.first_tokens else self._first_tokens()
        return try_engines(
            engines,
            workloads,
            goal,
            router=candidate.router,
            give_up=task.give_up,
            sample=task.sample,
            intervals=task.intervals,
        )

    def _first_tokens(self) -> tuple[Sequence[Workload], Goal]:
        ones = [replace(w, output_tokens=np.ones_like(w.output_tokens)) for w in self.workloads]
        waits = tuple(slo for slo in self.goal.slos if slo.metric in ("ttft", "e2el"))
        return ones, replace(self.goal, slos=waits)

    def _engines(self, pool: Pool, replicas: int, role: Role, confidence: float | None) -> Engines:
        resolved = self.resolved(pool)
        factors = factors_at(resolved.step_model, confidence)
        return Engines(resolved=resolved, replicas=replicas, factors=factors, role=role)


_arena: Arena | None = None


def enter(arena: Arena) -> None:
    """Make `arena` the one of this worker process."""
    global _arena
    _arena = arena


def run_task(task: Task) -> Trial:
    """Run a task in a worker process that has entered an arena."""
    assert _arena is not None
    return _arena.run(task)


def run_all(arena: Arena, tasks: Iterable[Task], executor: Executor | None) -> list[Trial]:
    """The trials of `tasks`, in order; `executor`'s workers must have entered this arena."""
    if executor is None:
        return [arena.run(task) for task in tasks]
    return list(executor.map(run_task, tasks))
