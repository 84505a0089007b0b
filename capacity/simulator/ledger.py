"""What happened in a run: columns per request and running sums, all in whole numbers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.metrics import MISSING, RequestTable
from capacity.simulator.schedulers import Row, Sequence, Step
from capacity.simulator.step_work import StepWork
from capacity.step import PS_PER_S
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The engine's state at one instant."""

    time_s: float
    running: int
    waiting: int
    kv_used_blocks: int


class Progress:
    """Calls `report(completed, total)` some two hundred times in a run."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._total = total
        self._report = report
        self._completed = 0
        self._every = max(1, total // 200)

    def completed(self) -> None:
        """One more request has."""
        self._completed += 1
        if self._completed % self._every == 0:
            self._report(self._completed, self._total)


class Ledger:
    """What happened: columns per request and running sums per step, all in whole numbers."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        blank = array("q", [MISSING]) * count
        zeros = array("q", [0]) * count
        self.arrival_ps = array("q", blank)
        self.first_scheduled_ps = array("q", blank)
        self.first_token_ps = array("q", blank)
        self.finish_ps = array("q", blank)
        self.output_tokens = array("q", zeros)
        self.cached_tokens = array("q", zeros)
        self.preemptions = array("q", zeros)
        self.preempted_ps = array("q", zeros)  # after the first token, waiting to run again
        self.gaps = GapCounter()
        self.steps = 0
        self.rows = 0
        self.busy_ps = 0
        self.rejected = 0
        self.total_preemptions = 0
        self.kv_block_ps = 0
        self.kv_busy_ps = 0
        self.kv_peak_blocks = 0
        self.hit_tokens = 0
        self.queried_tokens = 0
        self.samples: list[Sample] = []
        self.completed = 0
        self.work: StepWork | None = None  # kinds of steps, with `keep_work`
        self.progress: Progress | None = None  # of all requests, whichever engine answers them

    def scheduled(self, step: Step, now_ps: int) -> None:
        """A step was decided, row by row."""
        self.total_preemptions += len(step.preempted)
        for r in step.preempted:
            self.preemptions[r.index] += 1
            if r.first_token != MISSING:
                r.preempted = now_ps
        if step.rows:
            self.decided(step.rows, 0, now_ps)

    def decided(self, rows: list[Row], others: int, now_ps: int) -> None:
        """A step was decided: `rows`, and `others` that were scheduled before."""
        self.steps += 1
        self.rows += len(rows) + others
        first_scheduled_ps = self.first_scheduled_ps
        for r, _, _, _, _, _, cached in rows:
            index = r.index
            if first_scheduled_ps[index] == MISSING:
                first_scheduled_ps[index] = now_ps
                self.cached_tokens[index] = cached
                self.hit_tokens += cached - r.loaded
                self.queried_tokens += r.prompt_tokens
            elif r.preempted != MISSING:
                self.preempted_ps[index] += now_ps - r.preempted
                r.preempted = MISSING

    def delivered(self, r: Sequence, now_ps: int) -> None:
        """One delivery of output tokens."""
        if r.last_token == MISSING:
            r.first_token = self.first_token_ps[r.index] = now_ps
        else:
            self.gaps.add(now_ps - r.last_token)
        r.last_token = now_ps

    def use_kv(self, blocks: int, duration_ps: int) -> None:
        self.kv_block_ps += blocks * duration_ps
        self.kv_busy_ps += duration_ps
        if blocks > self.kv_peak_blocks:
            self.kv_peak_blocks = blocks

    def finished(self, r: Sequence, now_ps: int) -> None:
        if r.known == r.prompt_tokens:  # dropped by the scheduler, without a token
            self.rejected += 1
            return
        self.completed += 1
        if self.progress is not None:
            self.progress.completed()
        self.finish_ps[r.index] = now_ps
        self.output_tokens[r.index] = r.known - r.prompt_tokens

    def table(self, workload: Workload) -> RequestTable:
        def column(values: array[int]) -> Any:
            return np.frombuffer(values, dtype=np.int64) if len(values) else np.empty(0, dtype=np.int64)

        arrival_ps = column(self.arrival_ps).copy()
        unsent = arrival_ps == MISSING
        arrival_ps[unsent] = np.rint(workload.arrival_s[unsent] * PS_PER_S).astype(np.int64)
        return RequestTable(
            arrival_ps=arrival_ps,
            first_scheduled_ps=column(self.first_scheduled_ps),
            first_token_ps=column(self.first_token_ps),
            finish_ps=column(self.finish_ps),
            prompt_tokens=workload.prompt_tokens,
            output_tokens=column(self.output_tokens),
            cached_tokens=column(self.cached_tokens),
            preemptions=column(self.preemptions),
            preempted_ps=column(self.preempted_ps),
        )
