"""Records of a run: columns per request and totals per engine, all as integers."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.metrics import MISSING, RequestTable
from capacity.simulator.schedulers import Row, Sequence, Step
from capacity.simulator.step_work import StepWork
from capacity.step import PS_PER_S
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Running and waiting requests and used KV blocks at one time, summed over all engines."""

    time_s: float
    running: int
    waiting: int
    kv_used_blocks: int


class Progress:
    """Progress of a run: calls `report(completed, total)` about 200 times."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._total = total
        self._report = report
        self._completed = 0
        self._every = max(1, total // 200)

    def count_one(self) -> None:
        self.count_to(self._completed + 1)

    def count_to(self, completed: int) -> int:
        """Set the number of completed requests, send at most one progress report, and return how many were due."""
        due = completed // self._every - self._completed // self._every
        self._completed = completed
        if due > 0:
            self._report(completed, self._total)
        return due


INSTANTS = ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps")
COUNTS = ("output_tokens", "cached_tokens", "preemptions", "preempted_ps")


class Ledger:
    """Columns with one entry per request, for all engines. Their addresses never change, so callers may keep them.

    All columns are in one block of memory, so that the system can use a few large pages; Python reads entries as int.
    """

    arrival_ps: memoryview
    first_scheduled_ps: memoryview
    first_token_ps: memoryview
    finish_ps: memoryview
    output_tokens: memoryview
    cached_tokens: memoryview
    preemptions: memoryview
    preempted_ps: memoryview  # time between a preemption and resuming, after the first token

    def __init__(self, count: int, progress: Callable[[int, int], None] | None = None) -> None:
        columns = np.zeros((len(INSTANTS) + len(COUNTS), count), dtype=np.int64)
        columns[: len(INSTANTS)] = MISSING
        for name, column in zip(INSTANTS + COUNTS, columns, strict=True):
            setattr(self, name, column.data)
        self.progress = None if progress is None else Progress(count, progress)

    def forget(self, request: int) -> None:
        self.first_scheduled_ps[request] = self.first_token_ps[request] = self.finish_ps[request] = MISSING
        self.preempted_ps[request] = self.output_tokens[request] = 0

    def table(self, workload: Workload) -> RequestTable:
        columns = {name: np.asarray(getattr(self, name)) for name in INSTANTS + COUNTS}
        unsent = columns["arrival_ps"] == MISSING
        if unsent.any():
            columns["arrival_ps"] = columns["arrival_ps"].copy()
            columns["arrival_ps"][unsent] = np.rint(workload.arrival_s[unsent] * PS_PER_S).astype(np.int64)
        return RequestTable(prompt_tokens=workload.prompt_tokens, **columns)


class EngineLedger:
    """Totals of one engine, and access to the columns of all engines for its requests."""

    def __init__(self, ledger: Ledger, gaps: GapCounter, work: StepWork | None = None) -> None:
        self.columns = ledger
        self.gaps = gaps  # of all engines together
        self.work = work  # statistics of steps, with `keep_work`
        self.steps = self.rows = self.busy_ps = 0
        self.rejected = self.completed = self.preemptions = 0
        self.kv_block_ps = self.kv_busy_ps = self.kv_peak_blocks = 0
        self.hit_tokens = self.queried_tokens = self.lost_tokens = 0

    def record_step(self, step: Step, now_ps: int) -> None:
        """Record the preempted requests of a scheduled step, and the requests that start or resume in it."""
        for r in step.preempted:
            self.preemptions += 1
            self.columns.preemptions[r.index] += 1
            self.lost_tokens += r.lost
            r.stopped = True
            if r.first_token != MISSING:
                r.preempted = now_ps
        if not step.rows:
            return
        self.steps += 1
        self.rows += len(step.rows)
        for row in step.rows:
            if row[0].stopped:
                self._record_start(row, now_ps)

    def _record_start(self, row: Row, now_ps: int) -> None:
        r = row.sequence
        r.stopped = False
        if r.preempted != MISSING:
            self.columns.preempted_ps[r.index] += now_ps - r.preempted
            r.preempted = MISSING
        if self.columns.first_scheduled_ps[r.index] != MISSING:
            return
        self.columns.first_scheduled_ps[r.index] = now_ps
        self.columns.cached_tokens[r.index] = row.cached
        self.hit_tokens += row.cached - r.loaded
        self.queried_tokens += r.prompt_tokens

    def record_delivery(self, emitted: Items[tuple[Sequence, int]], now_ps: int) -> None:
        """Record the tokens that one step delivers; `emitted` contains (request, number of tokens)."""
        before = Counter([r.last_token for r, _ in emitted])
        if before.pop(MISSING, 0):
            for r, _ in emitted:
                if r.last_token == MISSING:
                    r.first_token = self.columns.first_token_ps[r.index] = now_ps
        for r, _ in emitted:
            r.last_token = now_ps
        for last_ps, count in sorted(before.items(), reverse=True):
            self.gaps.add(now_ps - last_ps, count)  # equal gaps are one entry, the shortest first

    def use_kv(self, blocks: int, duration_ps: int) -> None:
        self.kv_block_ps += blocks * duration_ps
        self.kv_busy_ps += duration_ps
        if blocks > self.kv_peak_blocks:
            self.kv_peak_blocks = blocks

    def record_end(self, r: Sequence, now_ps: int) -> None:
        if r.known == r.prompt_tokens:  # dropped by the scheduler without a token
            self.rejected += 1
            return
        self.completed += 1
        self.columns.finish_ps[r.index] = now_ps
        self.columns.output_tokens[r.index] = r.known - r.prompt_tokens
        if self.columns.progress is not None:
            self.columns.progress.count_one()
