"""Step times of a pool for closed forms: what a token of every request takes, drafted or not."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.pool.drafting.rounds import Speculation
from capacity.pool.drafting.speculators import speculator_of
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepCost, StepShape


class TokenSteps:
    """The pool's step times, decode at the price of a token of drafted rounds where it drafts.

    A round yields several tokens: its time over them stands for the decode part of every step. `speculation` is None
    where the pool drafts nothing. Raises InvalidInput where the way to draft does not suit the model.
    """

    def __init__(self, resolved: ResolvedPool) -> None:
        self.resolved = resolved
        self.speculation: Speculation | None = None
        self._drafts = 0
        if resolved.pool.speculator is not None:
            self.speculation = Speculation(resolved, speculator_of(resolved.pool))
            self._drafts = self.speculation.speculator.depth(resolved.pool.num_speculative_tokens)

    def largest_batch(self, tokens: int) -> int:
        """The most requests of so many tokens that a rank runs at once, beside the drafter where there is one.

        Raises DoesNotFit where that leaves no room.
        """
        if self.speculation is not None:
            return self.speculation.largest_batch(tokens)
        return self.resolved.largest_batch(tokens)

    def step_seconds(self, shape: StepShape) -> float:
        """The step in seconds."""
        return self.resolved.step_model.step_seconds(shape) + self._gained_s(shape)

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        """Of data-parallel ranks in lock-step; they gain what the fullest gains."""
        gained = max(map(self._gained_s, shapes), default=0.0, key=abs)
        return self.resolved.step_model.joint_seconds(shapes) + gained

    def step_cost(self, shape: StepShape) -> StepCost:
        """The plain step's table."""
        return self.resolved.step_model.step_cost(shape)

    def _gained_s(self, shape: StepShape) -> float:
        """What a token of a drafted round takes longer than one of a plain step; mostly below 0."""
        if self.speculation is None or not shape.decode_sequences:
            return 0.0
        context = max(shape.decode_context_tokens // shape.decode_sequences, 1)
        drafted = self.speculation.round(shape.decode_sequences, context, self._drafts)
        return drafted.tpot_s - drafted.plain_step_s
