"""Where candidates are tried: one model and one traffic, many deployments, in this process or in several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capacity.deployment import Pool
from capacity.errors import CapacityError
from capacity.model import ModelSpec
from capacity.planning.space import Candidate
from capacity.planning.step_error import factors_at
from capacity.planning.trial import Goal, Trial, simulate_trial
from capacity.resolve import ResolvedPool, resolve
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One candidate to be tried; `confidence` None: with step times as predicted. See `simulate_trial`."""

    candidate: Candidate
    confidence: float | None
    give_up: bool = True
    sample: bool = False
    intervals: bool = False


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
        resolved = self.resolved(task.candidate.pool)
        return simulate_trial(
            resolved,
            task.candidate.replicas,
            self.workloads,
            self.goal,
            factors=factors_at(resolved.step_model, task.confidence),
            give_up=task.give_up,
            sample=task.sample,
            intervals=task.intervals,
        )


_arena: Arena | None = None


def enter(arena: Arena) -> None:
    """Make `arena` the one of this worker process."""
    global _arena
    _arena = arena


def run_task(task: Task) -> Trial:
    """Run a task in a worker process that has entered an arena."""
    assert _arena is not None
    try:
        return _arena.run(task)
    except CapacityError as error:  # its own class may not survive the way between processes
        raise CapacityError(str(error)) from None


def run_all(arena: Arena, tasks: Iterable[Task], executor: Executor | None) -> list[Trial]:
    """The trials of `tasks`, in order; `executor`'s workers must have entered this arena."""
    if executor is None:
        return [arena.run(task) for task in tasks]
    return list(executor.map(run_task, tasks))
