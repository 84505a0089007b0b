"""Interface between the step model and all other packages: shapes (`StepShape`) and costs (`StepCost`) of engine
steps.

Static, continuous, chunked, mixed and speculative steps are all described by shapes. The estimator, the simulator, the
planner and the calibration use only these records; only the step model depends on hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from capacity.base.errors import InvalidInput

Bound = Literal["compute", "memory", "communication", "launch", "host"]


class StepShape(NamedTuple):
    """Sums (whole numbers) over the requests of one engine step; its time depends on no other property of them.

    A *pair* is one new token that attends to itself or an earlier token: a prefill chunk of q new tokens after c
    computed ones adds q·c + q·(q+1)/2 pairs. The `window_` fields are the same sums with each query's context clipped
    to the model's sliding window; without a window they equal the unclipped sums. Contexts count the tokens whose KV is
    read, including the new ones.
    """

    prefill_sequences: int = 0
    prefill_tokens: int = 0  # new prompt tokens, cached ones excluded
    prefill_pairs: int = 0  # query x context pairs of prefill rows
    prefill_context_tokens: int = 0  # KV tokens read by prefill rows: computed + new, summed
    prefill_window_pairs: int = 0
    prefill_window_context_tokens: int = 0
    prompts_completed: int = 0  # prefill rows that sample their first output token in this step
    decode_sequences: int = 0
    draft_tokens: int = 0  # extra query tokens of decode rows that verify drafts
    decode_context_tokens: int = 0  # KV tokens read by decode rows, summed
    decode_window_context_tokens: int = 0
    encoder_tokens: int = 0  # image tokens that the vision encoder computes before this step
    encoder_pairs: int = 0  # sum of the squared tokens of each image
    audio_tokens: int = 0  # the same for audio clips, by the audio encoder
    audio_pairs: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the number of rows of each GEMM: all new tokens of the step."""
        return self.prefill_tokens + self.decode_sequences + self.draft_tokens

    @property
    def sampled_tokens(self) -> int:
        """Return the number of rows of the LM head: one for each decode request, draft token and completed prompt."""
        return self.prompts_completed + self.decode_sequences + self.draft_tokens


def prefill_shape(
    prompts: int, new_tokens: int, *, cached_tokens: int = 0, window_tokens: int | None = None
) -> StepShape:
    """Return the shape that prefills `prompts` prompts of `new_tokens` plus `cached_tokens` tokens each."""
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    window_pairs = windowed_pairs(new_tokens, cached_tokens, window_tokens)
    context = cached_tokens + new_tokens
    window_context = context if window_tokens is None else min(context, window_tokens + new_tokens - 1)
    return StepShape(
        prefill_sequences=prompts,
        prefill_tokens=prompts * new_tokens,
        prefill_pairs=prompts * pairs,
        prefill_context_tokens=prompts * context,
        prefill_window_pairs=prompts * window_pairs,
        prefill_window_context_tokens=prompts * window_context,
        prompts_completed=prompts,
    )


def decode_shape(sequences: int, context_tokens: int, *, window_tokens: int | None = None) -> StepShape:
    """Return the shape of a step that decodes `sequences` requests; each reads `context_tokens` tokens of KV."""
    window_context = context_tokens if window_tokens is None else min(context_tokens, window_tokens)
    return StepShape(
        decode_sequences=sequences,
        decode_context_tokens=sequences * context_tokens,
        decode_window_context_tokens=sequences * window_context,
    )


def without_kv_cache(shape: StepShape, *, window_tokens: int | None = None) -> StepShape:
    """Return the same step without a KV cache: each request is a prompt of its whole context length.

    This is exact for requests with equal contexts, as in a padded static batch. Unequal contexts are
    replaced by their mean, which underestimates the query-key pairs of attention. Raises InvalidInput for drafts, which
    are not supported without a cache.
    """
    if shape.draft_tokens:
        raise InvalidInput("drafts need a KV cache: remove --no-use-cache or --speculator")
    prompts = _equal_prompts(shape.prefill_sequences, shape.prefill_context_tokens, window_tokens)
    outputs = _equal_prompts(shape.decode_sequences, shape.decode_context_tokens, window_tokens)
    summed = StepShape(*(mine + other for mine, other in zip(prompts, outputs, strict=True)))
    return summed._replace(
        prompts_completed=shape.prompts_completed + shape.decode_sequences,
        encoder_tokens=shape.encoder_tokens,
        encoder_pairs=shape.encoder_pairs,
        audio_tokens=shape.audio_tokens,
        audio_pairs=shape.audio_pairs,
    )


def _equal_prompts(sequences: int, context_tokens: int, window_tokens: int | None) -> StepShape:
    """Return the shape of `sequences` prompts of `context_tokens` tokens in total, as equal as possible."""
    if not sequences:
        return StepShape()
    each, longer = divmod(context_tokens, sequences)
    parts = [
        prefill_shape(count, length, window_tokens=window_tokens)
        for count, length in ((sequences - longer, each), (longer, each + 1))
        if count
    ]
    return StepShape(*(sum(values) for values in zip(*parts, strict=True)))


def windowed_pairs(new_tokens: int, cached_tokens: int, window_tokens: int | None) -> int:
    """Return the query-key pairs of a chunk; a query attends to itself and at most `window_tokens` - 1 others."""
    if window_tokens is None or cached_tokens + new_tokens <= window_tokens:
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    growing = max(0, window_tokens - cached_tokens)  # queries whose window is not yet full
    growing_pairs = growing * cached_tokens + growing * (growing + 1) // 2
    return growing_pairs + (new_tokens - growing) * window_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Cost of one operator over all layers, on one GPU of the group: FLOPs, bytes, seconds, and what bounds it."""

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Cost of a step as the tuple of its operators, whose seconds add up to the step time."""

    operators: tuple[OpCost, ...]

    @property
    def seconds(self) -> float:
        return sum(op.seconds for op in self.operators)

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.operators)

    @property
    def bytes(self) -> float:
        return sum(op.bytes for op in self.operators)


PS_PER_S = 10**12  # simulated time is whole picoseconds, so sums of steps are exact in any order


def picoseconds(seconds: float) -> int:
    """Round seconds to whole picoseconds; all rounding of times and coefficients uses this function."""
    return round(seconds * PS_PER_S)


class DecodePiece(NamedTuple):
    """Step time of one decode batch as an affine function of its context sums, from the given shape up to its limits.

    A step with the same `decode_sequences` and `draft_tokens` and no prefill takes exactly `base_ps + context_ps ·
    decode_context_tokens + window_context_ps · decode_window_context_tokens` while neither sum exceeds its limit
    (inclusive; None: no limit).
    """

    base_ps: int
    context_ps: int = 0
    window_context_ps: int = 0
    max_context_tokens: int | None = None
    max_window_context_tokens: int | None = None


class StepTimes(Protocol):
    """Interface of a step model for the simulator: step times in whole picoseconds, and affine functions for decode
    steps.

    `step_ps` and `decode_piece` must agree to the picosecond: for any shape s without prefill, `step_ps(s)` equals the
    affine function `decode_piece(s)` evaluated at s; it also gives the time of every later shape within its limits. So
    round the coefficients once (base and slopes to whole picoseconds), never the total. In both methods, linearise a
    p-norm or another curve between the same fixed knots of the context sum; a CUDA-graph size or a roofline corner ends
    a piece. Step times are at least 1 ps. `decode_piece` returns None if no affine piece exists (for example, for a
    random step time); the simulator then calls `step_ps` for each step.
    """

    def step_ps(self, shape: StepShape) -> int: ...

    def decode_piece(self, shape: StepShape) -> DecodePiece | None: ...


class JointStepTimes(Protocol):
    """Interface of step times for data-parallel ranks that run in lockstep: the time of one step of all ranks.

    There is one shape per rank, in rank order. A rank without work has an empty shape and runs a dummy row.
    """

    def joint_ps(self, shapes: Sequence[StepShape]) -> int: ...


class SlowestRank:
    """Step times of ranks that begin steps together and exchange nothing: the time of the slowest rank."""

    def __init__(self, step_times: StepTimes) -> None:
        self.step_times = step_times

    def step_ps(self, shape: StepShape) -> int:
        return self.step_times.step_ps(shape)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:
        return self.step_times.decode_piece(shape)

    def joint_ps(self, shapes: Sequence[StepShape]) -> int:
        """Return the time of the slowest rank; if no rank has tokens, the time of an empty step."""
        busy = [shape for shape in shapes if shape.num_tokens]
        return max(self.step_times.step_ps(shape) for shape in busy or [StepShape()])


class AffineStepTimes:
    """Step time `base_s + per_token_s · rows + per_context_token_s · decode context tokens`, for reference runs."""

    def __init__(self, base_s: float, per_token_s: float, *, per_context_token_s: float = 0.0) -> None:
        self.base_ps = picoseconds(base_s)
        self.per_token_ps = picoseconds(per_token_s)
        self.per_context_token_ps = picoseconds(per_context_token_s)

    def step_ps(self, shape: StepShape) -> int:
        rows = shape[1] + shape[7] + shape[8]  # num_tokens, without the cost of attribute look-ups
        return self.base_ps + self.per_token_ps * rows + self.per_context_token_ps * shape[9]

    def decode_piece(self, shape: StepShape) -> DecodePiece:
        rows = shape.decode_sequences + shape.draft_tokens
        return DecodePiece(self.base_ps + self.per_token_ps * rows, self.per_context_token_ps)
