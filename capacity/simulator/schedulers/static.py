"""Static batching: a padded batch runs until its longest member ends, and then the next one starts."""

from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.policy import QueuedPolicy
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Status, Step
from capacity.step import picoseconds


class StaticBatching(QueuedPolicy):
    """Runs batches of at most `max_num_seqs` requests, one at a time.

    A batch starts when full or when its oldest request has waited `batching_window_s`. Prompts are padded to the
    longest one and computed in one step. Every member takes part in every decode step until the last one ends, so
    padding takes time like real tokens. Tokens are delivered as they are generated. KV for the padded prompt and
    longest output is reserved for each member at the start. Output lengths are assumed to be known, which favours this
    policy. There is no token budget. `running` is the batch, including members that have ended.
    """

    steps_in_flight = 1
    wake_ps: int | None = None
    pool: PagedPool

    def __init__(self, limits: SchedulerLimits, pool: PagedPool, *, batching_window_s: float = 0.0) -> None:
        super().__init__(limits, pool)
        self._window_ps = picoseconds(batching_window_s)
        self._padded_prompt_tokens = 0
        self._steps_left = 0
        self._decoded = 0

    def schedule(self, now_ps: int) -> Step:
        self.wake_ps = None
        if not self.running:
            return self._start(now_ps)
        computed = self._padded_prompt_tokens + self._decoded
        self._decoded += 1
        return Step(rows=[Row(r, 1, computed, 0, r.known < r.max_known, r.epoch) for r in self.running])

    def _start(self, now_ps: int) -> Step:
        if not self.waiting:
            return Step()
        ready_ps = self.waiting[0].arrival + self._window_ps
        if len(self.waiting) < self.limits.max_num_seqs and now_ps < ready_ps:
            self.wake_ps = ready_ps
            return Step()
        prompt_tokens, outputs = self._gather()
        self._padded_prompt_tokens = prompt_tokens
        self._steps_left = outputs
        self._decoded = 0
        for r in self.running:
            self.pool.grow(r.table, prompt_tokens + outputs - 1)
            r.status = Status.RUNNING
        return Step(rows=[Row(r, prompt_tokens, 0, 0, True, r.epoch) for r in self.running])

    def _gather(self) -> tuple[int, int]:
        """Move requests from the queue to the batch while they fit; return padded prompt and output lengths."""
        prompt_tokens = outputs = 0
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            r = self.waiting[0]
            longer = max(prompt_tokens, r.prompt_tokens)
            more = max(outputs, r.max_known - r.prompt_tokens)
            blocks = self.pool.blocks_needed(r.table, longer + more - 1)
            if blocks * (len(self.running) + 1) > self.pool.free_blocks:
                break
            prompt_tokens, outputs = longer, more
            self.running.append(self.waiting.popleft())
        return prompt_tokens, outputs

    def update(self, step: Step) -> list[Sequence]:
        for row in step.rows:
            r = row.sequence
            if row.yields:
                r.computed = r.known
                r.known += 1
                step.emitted.append((r, 1))
                if r.known >= r.max_known:
                    r.status = Status.FINISHED
                    step.finished.append(r)
        self._steps_left -= 1
        if self._steps_left == 0:
            for r in self.running:
                self.pool.release(r.table)
            self.running = []
        return step.finished
