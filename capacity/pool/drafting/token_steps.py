"""Step times of a pool, with or without drafting, for the closed-form estimates."""

from collections.abc import Sequence
from functools import cached_property

from capacity.pool.drafting.rounds import DraftedSteps, Speculation
from capacity.pool.drafting.speculators import check_draft_settings, pool_speculator
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepCost, StepShape
from capacity.step.setting import HostTime


class TokenSteps:
    """Step times of a pool for closed-form estimates; with drafting, the decode time per output token.

    With drafting, the decode part of a step is the time of a drafting round divided by the tokens that it yields.
    `speculation` is None if the pool does not draft. Raises InvalidInput if the drafting method does not suit the
    model.
    """

    def __init__(self, resolved: ResolvedPool) -> None:
        self.resolved = resolved
        self.speculation: Speculation | None = None
        self._drafts = 0
        check_draft_settings(resolved.pool)
        if resolved.pool.speculator is not None:
            self.speculation = Speculation(resolved, pool_speculator(resolved.pool, resolved.model))
            self._drafts = self.speculation.speculator.depth(resolved.pool.num_speculative_tokens)

    def largest_batch(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens one data-parallel rank runs at once. Raises DoesNotFit.

        The memory of a drafter is subtracted.
        """
        return min(self.concurrent_requests(tokens), self.resolved.max_num_seqs)

    def concurrent_requests(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens fit in the KV cache of one data-parallel rank.

        The memory of a drafter is subtracted. Raises DoesNotFit.
        """
        if self.speculation is not None:
            return self.speculation.concurrent_requests(tokens)
        return self.resolved.concurrent_requests(tokens)

    @cached_property
    def tokens_per_step(self) -> float:
        """Return the mean tokens that a decode step yields per request."""
        return 1.0 if self.speculation is None else self.speculation.speculator.tokens_per_round(self._drafts)

    @property
    def host(self) -> HostTime:
        return self.resolved.step_model.host if self._drafted_steps is None else self._drafted_steps.host

    def step_seconds(self, shape: StepShape) -> float:
        return self.resolved.step_model.step_seconds(shape) + self._added_seconds([shape])

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        """Return the seconds of one step of data-parallel ranks that run in lockstep.

        With drafting, the decode time of all ranks changes by the largest change of any rank.
        """
        return self.resolved.step_model.joint_seconds(shapes) + self._added_seconds(shapes)

    def step_cost(self, shape: StepShape) -> StepCost:
        """Return the step's cost table; with drafting, the table of a whole round, which yields `tokens_per_step`."""
        if self._drafted_steps is None or self.speculation is None:
            return self.resolved.step_model.step_cost(shape)
        nodes = self.speculation.speculator.verified_tokens(self._drafts)
        return self._drafted_steps.step_cost(shape._replace(draft_tokens=shape.decode_sequences * nodes))

    @cached_property
    def _drafted_steps(self) -> DraftedSteps | None:
        return None if self.speculation is None else DraftedSteps(self.speculation, self._drafts)

    def _added_seconds(self, shapes: Sequence[StepShape]) -> float:
        """Return the seconds by which drafting changes a step, per output token; negative if drafting saves time.

        The change is usually negative for decode, and positive for prompts, which a draft model also computes.
        """
        if self.speculation is None:
            return 0.0
        gained = []
        for shape in shapes:
            if rows := shape.decode_sequences:
                drafted = self.speculation.round_of(
                    rows, max(shape.decode_context_tokens // rows, 1), self._drafts
                )
                gained.append(drafted.tpot_s - drafted.plain_step_s)
        prompts = [shape for shape in shapes if shape.prefill_tokens]
        added = max((self.speculation.drafter.prompts_s(shape) for shape in prompts), default=0.0)
        return max(gained, default=0.0, key=abs) + added
