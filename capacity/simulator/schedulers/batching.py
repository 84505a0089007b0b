"""What SGLang's, TensorRT-LLM's and TGI's schedulers share: who runs, who waits, and the account of a step.

Unlike vLLM V1 they know phases: a *context* (prefill) row computes the prompt, a *generation* (decode) row one token.
With an overlapped engine the next step is decided while one runs: its generation rows count on the tokens in flight,
and a request that ends gives its place and its KV back only once its last step has been processed. An engine that
notices the end one step late computes one row more of it in that step; that row is left out.
"""

from __future__ import annotations

from capacity.simulator.kv_cache.pool import Hit, PagedPool
from capacity.simulator.schedulers.policy import QueuedPolicy, insert_loaded
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step


class Batching(QueuedPolicy):
    """Rows and the account of steps. A policy adds `schedule()`."""

    aborts = True
    pool: PagedPool

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        """With `speculation` a generation row has its drafts, and a step is decided when the one before is known."""
        super().__init__(limits, pool, speculation=speculation)
        self._drafts = 0 if speculation is None else speculation.k
        self.overlapped = asynchronous and limits.pipeline_stages == 1 and speculation is None
        self.steps_in_flight = limits.pipeline_stages + self.overlapped

    def add_loaded(self, sequence: Sequence) -> None:
        insert_loaded(self.waiting, sequence, self.pool)

    # decide

    def generation_rows(self) -> list[Sequence]:
        """Running requests that take a generation row in the next step."""
        return [r for r in self.running if self._generates(r)]

    def _generates(self, r: Sequence) -> bool:
        expected = r.known + r.in_flight_yields
        return (
            expected - r.computed == 1
            and r.computed >= r.prompt_tokens
            and expected < r.max_known
            and (self.overlapped or not r.in_flight_tokens)
        )

    def last_slot(self, r: Sequence) -> int:
        """Tokens whose KV the request holds in the end, if it takes all that it asks: its last never gets a place."""
        return min(r.asked_known, self.limits.max_model_len) - 1

    def grow(self, r: Sequence, tokens: int, hit: Hit = None) -> None:
        """Take the blocks for `tokens` more tokens, which must be free."""
        until = (hit[0] if hit else r.computed) + tokens
        self.pool.grow(r.table, until, hit)
        self.pool.cache(r.table, min(until, r.known))

    def generate(self, step: Step, r: Sequence) -> None:
        """One generation row, with its drafts; its blocks must be free."""
        drafts = self._drafts_of(r)
        self.grow(r, 1 + drafts)
        step.rows.append(Row(r, 1 + drafts, r.computed, drafts, True, r.epoch))

    def _drafts_of(self, r: Sequence) -> int:
        """Drafts of its next row: none beyond the last token that it may have."""
        return max(min(self._drafts, self.last_slot(r) - 1 - r.computed), 0)

    def generation_blocks(self, rows: list[Sequence]) -> int:
        """Free blocks that one more token for each of `rows`, and its drafts, take."""
        pool = self.pool
        for r in rows:
            pool.leave_window(r.table, r.computed - r.in_flight_tokens)
        return sum(pool.blocks_needed(r.table, r.computed + 1 + self._drafts_of(r)) for r in rows)

    def start(self, r: Sequence, hit: Hit) -> None:
        """The request, off the queue already, runs from here on, behind the cached tokens of `hit`."""
        r.computed = hit[0]
        r.status = Status.RUNNING
        self.running.append(r)

    def prefill(self, step: Step, r: Sequence, tokens: int, hit: Hit = None) -> None:
        """A context row of `tokens` tokens, whose blocks are free or taken. With `hit`, the request starts by it."""
        self.grow(r, tokens, hit)
        if hit is not None:
            self.start(r, hit)
        self.context_row(step, r, tokens, hit[0] if hit else 0)

    def context_row(self, step: Step, r: Sequence, tokens: int, cached: int) -> None:
        step.rows.append(Row(r, tokens, r.computed, 0, r.computed + tokens >= r.known, r.epoch, cached))

    def give_up(self, r: Sequence, step: Step) -> None:
        """Pause or retract a request: its KV is freed, and it is computed again from the front of the queue."""
        self.running.remove(r)
        self.pool.release(r.table)
        r.start_again()
        self.waiting.appendleft(r)
        step.preempted.append(r)

    def commit(self, step: Step) -> Step:
        """Count the scheduled tokens as computed, at once."""
        for r, tokens, _, _, yields, _, _ in step.rows:
            r.computed += tokens
            r.in_flight_tokens += tokens
            r.in_flight_yields += yields
        return step

    # account

    def update(self, step: Step) -> list[Sequence]:
        """Append what the step sampled; returns the requests that it finished, in row order."""
        for row in step.rows:
            r = row.sequence
            r.in_flight_tokens -= row.tokens
            r.in_flight_yields -= row.yields
            if not row.yields or r.status == Status.FINISHED:
                continue
            tokens = 1 if self.speculation is None else self._accept(self.speculation, r, row)
            r.known += tokens
            step.emitted.append((r, tokens))
            if r.known >= r.max_known:
                self._finish(r)
                step.finished.append(r)
        return step.finished

    def _accept(self, speculation: Speculation, r: Sequence, row: Row) -> int:
        """Tokens that a row yields, no more than the request may have; what was computed of the others is forgotten."""
        accepted = speculation.count_accepted(r, row.drafts) if row.drafts else 0
        if row.epoch == r.epoch:
            r.computed -= row.drafts - accepted
        return min(accepted + 1, r.max_known - r.known)

    def abort(self, r: Sequence) -> None:
        self._finish(r)

    def _finish(self, r: Sequence) -> None:
        if r.status == Status.WAITING:
            self.waiting.remove(r)
        else:
            self.pool.cache(r.table, min(r.computed, r.known - 1))
            self.running.remove(r)
        self.pool.release(r.table)
        r.status = Status.FINISHED
