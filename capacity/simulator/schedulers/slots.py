"""Slot batching: a fixed number of requests run at once, with a bounded queue, without KV cache and token budget.

With one slot, one output token and suitable step times it is the single-server queue of queueing theory.
"""

from capacity.simulator.kv_cache.pool import KvPool
from capacity.simulator.schedulers.policy import QueuedPolicy
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Status, Step


class SlotBatching(QueuedPolicy):
    """Policy with `max_num_seqs` slots, first come, first served; at most `max_waiting` requests wait (None: all)."""

    steps_in_flight = 1

    def __init__(self, limits: SchedulerLimits, pool: KvPool, *, max_waiting: int | None = None) -> None:
        super().__init__(limits, pool)
        self.max_waiting = max_waiting

    def add(self, sequence: Sequence) -> bool:
        if self.max_waiting is not None and self.unfinished >= self.limits.max_num_seqs + self.max_waiting:
            return False
        return super().add(sequence)

    def schedule(self, now_ps: int) -> Step:  # noqa: ARG002
        rows = [Row(r, 1, r.known - 1, 0, True, r.epoch) for r in self.running]
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            r = self.waiting.popleft()
            r.status = Status.RUNNING
            self.running.append(r)
            rows.append(Row(r, r.prompt_tokens, 0, 0, True, r.epoch))
        return Step(rows=rows)

    def update(self, step: Step) -> list[Sequence]:
        for row in step.rows:
            r = row.sequence
            r.known += 1
            step.emitted.append((r, 1))
            if r.known >= r.max_known:
                r.status = Status.FINISHED
                step.finished.append(r)
        if step.finished:
            self.running = [r for r in self.running if r.status != Status.FINISHED]
        return step.finished
