"""The engines of a deployment: how each is made, what is kept of its run, and its share of the result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import simpy

from capacity.simulator.client import Arrivals
from capacity.simulator.driven import DrivenEngine, Owner
from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.frontend import FrontendTimes, StreamingLedger
from capacity.simulator.ledger import Ledger, Progress
from capacity.simulator.replica import Replica
from capacity.simulator.requests import Requests
from capacity.simulator.setup import EngineSetup, Mode, Role, make_pool, make_scheduler
from capacity.simulator.step_work import StepWork
from capacity.step import PS_PER_S, picoseconds
from capacity.workload import Workload

AnyEngine = TypeVar("AnyEngine", bound=Engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run keeps and shows, and how it steps. `frontend` lies between clients and engines.

    `keep_work` keeps what the steps were like (`SimulationResult.step_work`); an `observer` sees each of them, and they
    are then taken one at a time. `progress(completed, total)` is called some two hundred times.
    """

    frontend: FrontendTimes | None = None
    sample_interval_s: float | None = None
    keep_work: bool = False
    observer: StepObserver | None = None
    progress: Callable[[int, int], None] | None = None
    mode: Mode = "jump"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSummary:
    """One replica's share. `from_s` to `until_s`: when it took requests (None: to the end)."""

    number: int
    label: str
    role: Role
    requests: int
    busy_s: float
    steps: int
    preemptions: int
    kv_utilization_peak: float
    from_s: float
    until_s: float | None
    ended: str | None = None  # failed, or scaled down


@dataclass(slots=True)
class Member:
    """An engine of the deployment, and its account so far. `driven`: the engine, where it stands behind a router."""

    engine: Engine
    setup: EngineSetup
    ledger: Ledger
    from_ps: int
    requests: int = 0
    until_ps: int | None = None
    ended: str | None = None
    open: bool = False  # it takes requests
    driven: DrivenEngine | None = None

    def summary(self, number: int) -> ReplicaSummary:
        ledger = self.ledger
        return ReplicaSummary(
            number=number,
            label=self.setup.label,
            role=self.setup.role,
            requests=self.requests,
            busy_s=ledger.busy_ps / PS_PER_S,
            steps=ledger.steps,
            preemptions=ledger.total_preemptions,
            kv_utilization_peak=ledger.kv_peak_blocks / self.engine.pool.num_blocks,
            from_s=self.from_ps / PS_PER_S,
            until_s=None if self.until_ps is None else self.until_ps / PS_PER_S,
            ended=self.ended,
        )

    def alive_ps(self, end_ps: int) -> int:
        """How long it was there, if the last request ended at `end_ps`."""
        until_ps = end_ps if self.until_ps is None else min(self.until_ps, end_ps)
        return max(0, until_ps - self.from_ps)


def new_ledger(workload: Workload, recording: Recording) -> Ledger:
    """An empty ledger of all requests, through the front-end's output queue where there is one."""
    frontend, progress = recording.frontend, recording.progress
    streams = frontend is not None and frontend.streams
    ledger = StreamingLedger(workload, frontend) if frontend is not None and streams else Ledger(workload)
    if progress is not None:
        ledger.progress = Progress(len(workload), progress)
    return ledger


class MemberMaker:
    """Makes the engines of one run: all from the same requests, into the same ledger's columns."""

    def __init__(
        self, env: simpy.Environment, requests: Requests, ledger: Ledger, recording: Recording
    ) -> None:
        self._env = env
        self._requests = requests
        self._ledger = ledger
        self._recording = recording

    def pulling(self, setup: EngineSetup, client: Arrivals) -> Member:
        """An engine that stands alone: it takes requests from the client, and its own samples."""
        interval_s = self._recording.sample_interval_s
        sample_ps = None if interval_s is None else max(1, picoseconds(interval_s))
        engine = self._made(partial(Engine, client=client, sample_ps=sample_ps), setup, self._ledger)
        return Member(engine, setup, self._ledger, 0)

    def driven(
        self, setup: EngineSetup, now_ps: int, *, number: int, owner: Owner, queue_limit: int | None
    ) -> Member:
        """An engine behind a router, with running sums of its own."""
        ledger = copy.copy(self._ledger)  # columns are shared
        replica = self._made(
            partial(Replica, number=number, owner=owner, queue_limit=queue_limit), setup, ledger
        )
        replica.now_ps = now_ps
        return Member(replica, setup, ledger, now_ps, driven=replica)

    def _made(self, kind: Callable[..., AnyEngine], setup: EngineSetup, ledger: Ledger) -> AnyEngine:
        ledger.work = StepWork(setup.step_times) if self._recording.keep_work else None
        pool = make_pool(setup, self._recording.mode)
        return kind(
            self._env,
            make_scheduler(setup, pool),
            pool,
            setup.step_times,
            ledger=ledger,
            new_sequence=self._requests.sequence_maker(setup, pool),
            jumps=self._jumps(setup),
            pipeline_stages=setup.limits.pipeline_stages,
            window_tokens=setup.window_tokens,
            observer=self._recording.observer,
        )

    def _jumps(self, setup: EngineSetup) -> bool:
        """Whether regular decode steps may be leapt over: nobody has to see each of them."""
        recording = self._recording
        return (
            recording.mode == "jump"
            and recording.observer is None
            and not (recording.frontend is not None and recording.frontend.streams)
            and (not setup.enable_prefix_caching or self._requests.answers_are_private)
        )
