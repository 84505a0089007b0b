"""Waste of a simulated engine: decode tokens, prompt tokens and KV slots that served no request."""

from typing import cast

from capacity.simulator.engine import Engine
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers import Step
from capacity.simulator.schedulers.policy import QueuedPolicy


class Waste:
    """Observer that counts decode tokens, prompt tokens and KV slots of a run, and how many of each served a request.

    KV slots are weighted by the time that they stay allocated, from the end of the first step on.
    """

    def __init__(self) -> None:
        self.decode_rows = self.decode_rows_used = 0
        self.prefill_tokens = self.prefill_tokens_used = 0
        self.reserved_token_ps = self.stored_token_ps = 0
        self._last_ps: int | None = None
        self._reserved = self._stored = 0

    def __call__(self, step: Step, engine: Engine) -> None:
        for r, tokens, computed, _, yields, *_ in step.rows:
            if computed >= r.prompt_tokens and tokens == 1:
                self.decode_rows += 1
                self.decode_rows_used += yields
            else:
                known = r.known - yields  # when the step was decided
                self.prefill_tokens += tokens
                self.prefill_tokens_used += min(tokens, max(known - computed, 0))
        self._weigh_kv(step, engine)

    def _weigh_kv(self, step: Step, engine: Engine) -> None:
        if self._last_ps is not None:
            self.reserved_token_ps += self._reserved * (step.end - self._last_ps)
            self.stored_token_ps += self._stored * (step.end - self._last_ps)
        self._last_ps = step.end
        pool, running = cast(PagedPool, engine.pool), cast(QueuedPolicy, engine.policy).running
        windows = getattr(pool, "windows", (None,))
        self._reserved = sum(pool.held_blocks(r.table) for r in running) * pool.block_size
        self._stored = sum(
            min(r.computed - r.in_flight_tokens, window or r.max_known)
            for r in running
            if r.known < r.max_known
            for window in windows
        )

    @property
    def slots(self) -> float | None:
        """Return the fraction of decode tokens that served no request; None without decode tokens."""
        return 1 - self.decode_rows_used / self.decode_rows if self.decode_rows else None

    @property
    def padding(self) -> float | None:
        """Return the fraction of computed prefill tokens that were padding; None without prefill tokens."""
        return 1 - self.prefill_tokens_used / self.prefill_tokens if self.prefill_tokens else None

    @property
    def kv(self) -> float | None:
        """Return the fraction of reserved KV slots, over time, that are empty or of ended requests."""
        return 1 - self.stored_token_ps / self.reserved_token_ps if self.reserved_token_ps else None
