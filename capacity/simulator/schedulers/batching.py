"""Common parts of the SGLang, TensorRT-LLM and TGI schedulers: running and waiting requests, rows and step output.

Unlike vLLM V1, these engines have phases: a *context* (prefill) row computes the prompt, a *generation* (decode) row
one token. An overlapped engine decides the next step while one runs. For this decision, tokens in flight count as
generated, and a request that ends frees its slot and its KV only after its last step was processed. An engine that
detects the end one step late computes one more row in that step; the simulation omits that row.
"""

from capacity.simulator.kv_cache.pool import Hit, PagedPool
from capacity.simulator.schedulers.policy import QueuedPolicy, insert_loaded
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step


class Batching(QueuedPolicy):
    """Base class of the SGLang, TensorRT-LLM and TGI policies: it builds rows and applies outputs of steps. Subclasses
    add `schedule()`."""

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
        """Create a policy. If `speculation` is given, generation rows include drafts, and steps do not overlap."""
        super().__init__(limits, pool, speculation=speculation)
        self._drafts = 0 if speculation is None else speculation.k
        self.overlapped = asynchronous and limits.pipeline_stages == 1 and speculation is None
        self.steps_in_flight = limits.pipeline_stages + self.overlapped

    def add_loaded(self, sequence: Sequence) -> None:
        insert_loaded(self.waiting, sequence, self.pool)

    def generation_rows(self) -> list[Sequence]:
        """Return the running requests that get a generation row in the next step."""
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
        """Return for how many tokens a request stores KV at its maximum length: for all except the last token."""
        return min(r.asked_known, self.limits.max_model_len) - 1

    def grow(self, r: Sequence, tokens: int, hit: Hit = None) -> None:
        """Allocate blocks for `tokens` more tokens. There must be enough free blocks."""
        until = (hit[0] if hit else r.computed) + tokens
        self.pool.grow(r.table, until, hit)
        self.pool.cache(r.table, min(until, r.known))

    def add_generation_row(self, step: Step, r: Sequence) -> None:
        """Add a generation row with its drafts. There must be enough free blocks."""
        drafts = self._num_drafts(r)
        self.grow(r, 1 + drafts)
        step.rows.append(Row(r, 1 + drafts, r.computed, drafts, True, r.epoch))

    def _num_drafts(self, r: Sequence) -> int:
        """Return how many draft tokens to schedule for a request in the next step, limited by its maximum length."""
        return max(min(self._drafts, self.last_slot(r) - 1 - r.computed), 0)

    def generation_blocks(self, rows: list[Sequence]) -> int:
        """Return how many free blocks the requests in `rows` need in total for their next tokens and drafts."""
        pool = self.pool
        for r in rows:
            pool.leave_window(r.table, r.computed - r.in_flight_tokens)
        return sum(pool.blocks_needed(r.table, r.computed + 1 + self._num_drafts(r)) for r in rows)

    def start(self, r: Sequence, hit: Hit) -> None:
        """Start a request that was removed from the queue; the cached tokens of `hit` count as computed."""
        r.computed = hit[0]
        r.status = Status.RUNNING
        self.running.append(r)

    def prefill(self, step: Step, r: Sequence, tokens: int, hit: Hit = None) -> None:
        """Add a context row of `tokens` tokens and allocate its blocks; with `hit`, start the request first."""
        self.grow(r, tokens, hit)
        if hit is not None:
            self.start(r, hit)
        self.add_context_row(step, r, tokens, hit[0] if hit else 0)

    def add_context_row(self, step: Step, r: Sequence, tokens: int, cached: int) -> None:
        step.rows.append(Row(r, tokens, r.computed, 0, r.computed + tokens >= r.known, r.epoch, cached))

    def preempt(self, r: Sequence, step: Step) -> None:
        """Preempt (pause or retract) a request: free its KV and requeue it at the front for recomputation."""
        self.running.remove(r)
        self.pool.release(r.table)
        r.start_again()
        self.waiting.appendleft(r)
        step.preempted.append(r)

    def commit(self, step: Step) -> Step:
        """Count the tokens of a scheduled step as computed, although the step has not ended; return the step."""
        for r, tokens, _, _, yields, _, _ in step.rows:
            r.computed += tokens
            r.in_flight_tokens += tokens
            r.in_flight_yields += yields
        return step

    def update(self, step: Step) -> list[Sequence]:
        """Append the sampled tokens and return the finished requests in row order."""
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
        """Return how many tokens a row yields, up to the request's last token; discard rejected drafts."""
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
