"""A scheduling policy driven step by step, and the policies that every test of them all tries."""

from __future__ import annotations

from typing import Any

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.schedulers import SchedulerLimits, Sequence, make_policy


class Bench:
    """A policy with its pool, driven step by step: `run()` decides a step and processes it at once."""

    def __init__(
        self,
        name: str,
        *,
        blocks: int = 100,
        block_size: int = 4,
        options: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.pool = BlockPool(blocks, block_size, prefix_caching=False)
        settings_ = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **limits}
        given_options = {"asynchronous": False, **(options or {})}
        self.policy = make_policy(name, SchedulerLimits(**settings_), self.pool, **given_options)
        self.count = 0

    def add(self, prompt: int, output: int, *, max_tokens: int | None = None) -> Sequence:
        index = self.count
        self.count += 1
        sequence = Sequence(
            index,
            id=index,
            arrival=0,
            prompt_tokens=prompt,
            max_known=prompt + output,
            asked_known=prompt + (output if max_tokens is None else max_tokens),
            priority=0,
            table=self.pool.table(Content(index)),
        )
        self.policy.add(sequence)
        return sequence

    def run(self) -> list[tuple[int, int]]:
        """(request, tokens) of every row."""
        step = self.policy.schedule(0)
        rows = [(row.sequence.index, row.tokens) for row in step.rows]
        self.policy.update(step)
        return rows
