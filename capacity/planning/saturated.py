"""A deployment with as many requests in flight as it holds, for ever: the load that its price is best divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.planning.billing import Rates
from capacity.planning.step_error import Factors
from capacity.pool.drafting import Speculation, speculator_of
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepCost, StepShape
from capacity.step.closed_form import closed_loop_times


@dataclass(frozen=True, slots=True)
class PricedSteps:
    """Step times of an engine for closed forms: stretched by `factors`, and decode at the price of drafted rounds.

    A round yields several tokens: its time over them stands for the decode part of every step.
    """

    resolved: ResolvedPool
    factors: Factors
    speculation: Speculation | None
    draft_tokens: int

    def step_seconds(self, shape: StepShape) -> float:
        factor = self.factors.prefill if shape.prefill_tokens else self.factors.decode
        return (self.resolved.step_model.step_seconds(shape) + self._gained_s(shape)) * factor

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        """Of data-parallel ranks in lock-step; they gain what the fullest gains."""
        prefill = any(shape.prefill_tokens for shape in shapes)
        factor = self.factors.prefill if prefill else self.factors.decode
        gained = max(map(self._gained_s, shapes), default=0.0, key=abs)
        return (self.resolved.step_model.joint_seconds(shapes) + gained) * factor

    def step_cost(self, shape: StepShape) -> StepCost:
        return self.resolved.step_model.step_cost(shape)

    def _gained_s(self, shape: StepShape) -> float:
        """What a token of a drafted round takes longer than one of a plain step; mostly below 0."""
        if self.speculation is None or not shape.decode_sequences:
            return 0.0
        context = max(shape.decode_context_tokens // shape.decode_sequences, 1)
        drafted = self.speculation.round(shape.decode_sequences, context, self.draft_tokens)
        return drafted.tpot_s - drafted.plain_step_s


def full_load(
    resolved: ResolvedPool,
    lengths: tuple[float, float],
    replicas: int,
    *,
    factors: Factors | None = None,
    hit_fraction: float = 0.0,
) -> Rates:
    """As many requests in flight as the limits and the KV cache hold, for ever, on `replicas` engines.

    Of prefill, `hit_fraction` falls away: a little more than a prefix cache saves, whose hits are still attended to.
    Blocks that requests share, and so more of them at once, are left out. Raises InvalidInput where not one fits.
    """
    input_len, output_len = max(round(lengths[0]), 1), max(round(lengths[1]), 1)
    speculation = _speculation(resolved)
    tokens = input_len + output_len  # each of a data-parallel rank
    held = resolved.largest_batch(tokens)
    each = held if speculation is None else speculation.largest_batch(tokens)
    if each < 1:
        raise InvalidInput(
            f"one request of {input_len + output_len:,} tokens exceeds the KV cache; {resolved.more_memory}"
        )
    pool = resolved.pool
    drafts = 0 if speculation is None else speculation.speculator.depth(pool.num_speculative_tokens)
    steps = PricedSteps(resolved, factors or Factors(), speculation, drafts)
    ranks = resolved.lockstep_ranks
    times = closed_loop_times(
        steps, resolved.limits, each * ranks, input_len=input_len, output_len=output_len, ranks=ranks
    )
    prefill = min(max(times.prefill_share, 0.0), 1.0)
    busy = 1 - prefill * hit_fraction  # of the time that it took without hits
    return Rates(
        requests_per_s=times.requests_per_s * resolved.independent_ranks * replicas / busy,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        prefill_share=prefill * (1 - hit_fraction) / busy,
    )


def _speculation(resolved: ResolvedPool) -> Speculation | None:
    return None if resolved.pool.speculator is None else Speculation(resolved, speculator_of(resolved.pool))
