"""Closed-form latency and throughput of one deployment, from the step model.

Two cases: a batch (`batch_size` prompts are prefilled together, then decoded together), and a closed loop in steady
state (`concurrency` requests in flight, whose decode steps are prolonged by the prefills of other requests). For a
closed loop the answers show its throughput and representative steps. Only the simulator models queueing. These formulas
ignore it, so no TTFT of a closed loop is shown unless it was simulated.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol, cast

from capacity.step import Bound, StepCost, StepShape, decode_shape, windowed_pairs

EMPTY_SHAPE = StepShape()
PREFILL_FIELDS = StepShape._fields.index("decode_sequences")  # prompt fields come first


class StepModelLike(Protocol):
    """Interface of a step model: seconds and cost table of a step."""

    def step_seconds(self, shape: StepShape) -> float: ...

    def step_cost(self, shape: StepShape) -> StepCost: ...


class JointStepModelLike(StepModelLike, Protocol):
    """Step model of data-parallel ranks that run every step in lockstep, with one shape per rank."""

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits on the contents of one step, and the latency of a request in addition to its steps."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    mixes_prefill_with_decode: bool
    window_tokens: int | None
    request_latency_s: float  # client to engine and back, without the tokenizer
    images_per_prompt: int = 0  # at the start of each prompt, encoded in the step that begins it
    image_tokens: int = 0
    audio_tokens: int = 0  # per clip; each prompt has one clip after its images
    input_token_s: float = 0.0  # tokenizer

    def latency_s(self, input_len: int) -> float:
        """Return the time (s) that a prompt of `input_len` tokens takes in addition to its steps."""
        return self.request_latency_s + input_len * self.input_token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Results of the formulas, in seconds; `tpot_s` is None for a single output token.

    `prefill_share` is the fraction of GPU time that prefill takes; breakdowns show `prefill_shape` and `decode_shape`
    as the representative steps of the two phases.
    """

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    requests_per_s: float
    prefill_share: float
    prefill_shape: StepShape
    decode_shape: StepShape
    decode_sequences: float


def prefill_steps(
    prompts: int, input_len: int, limits: EngineLimits, *, decode: StepShape = EMPTY_SHAPE
) -> Iterator[StepShape]:
    """Yield the steps that prefill `prompts` equal prompts in order; each step also decodes the requests of `decode`.

    With chunked prefill each step fills the token budget. Otherwise a step takes as many whole prompts as the budget
    holds.
    """
    budget = max(1, limits.max_num_batched_tokens - decode.num_tokens)
    if not limits.chunked_prefill:
        budget = max(budget // input_len, 1) * input_len
    seats = max(limits.max_num_seqs - decode.decode_sequences, 1)
    waiting, computed = prompts, 0
    while waiting:
        room = budget
        rows: list[tuple[int, int]] = []
        while room and waiting and len(rows) < seats:
            chunk = min(room, input_len - computed)
            rows.append((chunk, computed))
            room -= chunk
            computed += chunk
            if computed == input_len:
                waiting, computed = waiting - 1, 0
        shape = _add_prefill_rows(decode, rows, input_len, limits.window_tokens)
        encodes = limits.images_per_prompt or limits.audio_tokens
        yield _add_encoder_work(shape, rows, limits) if encodes else shape


def _add_encoder_work(shape: StepShape, rows: Iterable[tuple[int, int]], limits: EngineLimits) -> StepShape:
    """Return the step with the encoder work for the images and audio clips of the prompts that begin in it."""
    begun = sum(not before for _, before in rows)
    if not begun:
        return shape
    images, tokens, audio = begun * limits.images_per_prompt, limits.image_tokens, limits.audio_tokens
    return shape._replace(
        encoder_tokens=images * tokens,
        encoder_pairs=images * tokens**2,
        audio_tokens=begun * audio,
        audio_pairs=begun * audio**2,
    )


def _add_prefill_rows(
    decode: StepShape, rows: Sequence[tuple[int, int]], input_len: int, window: int | None
) -> StepShape:
    tokens = pairs = context = window_pairs = window_context = completed = 0
    for chunk, computed in rows:
        end = computed + chunk
        tokens += chunk
        pairs += windowed_pairs(chunk, computed, None)
        context += end
        if window is not None:
            window_pairs += windowed_pairs(chunk, computed, window)
            window_context += min(end, window + chunk - 1)
        completed += end == input_len
    if window is None:
        window_pairs, window_context = pairs, context
    prefill = (len(rows), tokens, pairs, context, window_pairs, window_context, completed)
    return StepShape(*prefill, *decode[PREFILL_FIELDS:])  # positional, because many shapes are created


def batch_times(
    steps: StepModelLike, limits: EngineLimits, batch_size: int, *, input_len: int, output_len: int
) -> PhaseTimes:
    """Return the times of a batch that starts together: TTFT of the last request, TPOT at context input + output/2."""
    prefill = list(prefill_steps(batch_size, input_len, limits))
    prefill_s = sum(steps.step_seconds(shape) for shape in prefill)
    decode = decode_shape(batch_size, input_len + (output_len + 1) // 2, window_tokens=limits.window_tokens)
    tpot_s = steps.step_seconds(decode) if output_len > 1 else None
    decode_s = (output_len - 1) * (tpot_s or 0.0)
    ttft_s = limits.latency_s(input_len) + prefill_s
    return PhaseTimes(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=ttft_s + decode_s,
        requests_per_s=batch_size / (prefill_s + decode_s),
        prefill_share=prefill_s / (prefill_s + decode_s),
        prefill_shape=prefill[0],
        decode_shape=decode,
        decode_sequences=batch_size,
    )


def closed_loop_times(
    steps: StepModelLike,
    limits: EngineLimits,
    concurrency: int,
    *,
    input_len: int,
    output_len: int,
    ranks: int = 1,
) -> PhaseTimes:
    """Return the times of a closed loop in which `concurrency` requests are always in flight.

    In one cycle each of the C = `concurrency` requests takes one prefill and output - 1 decode steps. Prefills that run
    in the same step as a decode prolong the step; in each step, a request is delayed by (C - 1)/output prolongations. A
    cycle is the decode steps plus all C prolongations, and the throughput is C requests per cycle. In a step, C/output
    requests end and as many begin. If their ends are independent (Poisson), the prompts that begin in one step are
    prefilled together and share its fixed costs. The number of requests that decode at once follows from Little's law
    for the prefill phase, by iteration.

    With `ranks`, the C requests are spread over this many synchronised data-parallel ranks (`steps` then has
    `joint_seconds`): a prefill on any of them prolongs the step of all.

    Not modelled: arrivals wait for the running step and for other prefills (half a step or more of TTFT), and requests
    of equal lengths may stay synchronised.
    """
    context = input_len + (output_len + 1) // 2
    joining = concurrency / output_len
    together = min(joining / -math.expm1(-joining), concurrency)
    seconds = get_joint_seconds(steps, ranks)
    most = decoding = math.ceil(concurrency / ranks)  # per rank
    for _ in range(8):
        others = decode_shape(max(decoding - 1, 0), context, window_tokens=limits.window_tokens)
        decode_part = others if limits.mixes_prefill_with_decode else StepShape()
        prefill = list(prefill_steps(1, input_len, limits, decode=decode_part))
        prefill_s = sum(seconds([shape, *[decode_part] * (ranks - 1)]) for shape in prefill)
        decode = decode_shape(decoding, context, window_tokens=limits.window_tokens)
        decode_step_s = seconds([decode] * ranks)
        prolongation_s = prefill_prolongation_s(
            seconds, limits, together, input_len=input_len, decode_part=decode_part, ranks=ranks
        )
        cycle_s = (
            (output_len - 1) * decode_step_s + concurrency * prolongation_s + limits.latency_s(input_len)
        )
        prefilling = most * prefill_s / max(cycle_s, prefill_s)
        expected = min(max(round(most - prefilling), 1), most)
        if expected == decoding:
            break
        decoding = expected
    tpot_s = decode_step_s + (concurrency - 1) * prolongation_s / output_len if output_len > 1 else None
    ttft_s = limits.latency_s(input_len) + prefill_s
    busy_s = (output_len - 1) * decode_step_s + concurrency * prolongation_s
    return PhaseTimes(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=ttft_s + (output_len - 1) * (tpot_s or 0.0),
        requests_per_s=concurrency / cycle_s,
        prefill_share=concurrency * prolongation_s / busy_s,
        prefill_shape=prefill[0],
        decode_shape=decode,
        decode_sequences=decoding * ranks,
    )


JointSeconds = Callable[[Sequence[StepShape]], float]


def get_joint_seconds(steps: StepModelLike, ranks: int) -> JointSeconds:
    """Return a function that computes the seconds of one step of all ranks from one shape per rank."""
    if ranks == 1:
        return lambda shapes: steps.step_seconds(shapes[0])
    return cast("JointStepModelLike", steps).joint_seconds


def prefill_prolongation_s(
    seconds: JointSeconds,
    limits: EngineLimits,
    together: float,
    *,
    input_len: int,
    decode_part: StepShape,
    ranks: int,
) -> float:
    """Return the seconds by which the prefill of one prompt prolongs the steps in which it runs.

    `decode_part`: shape of the decodes of one rank in each of these steps. `together`: mean number of prompts that
    start in the same step, at least 1.
    """
    undisturbed_s = seconds([decode_part] * ranks) if decode_part.decode_sequences else 0.0

    def added_s(prompts: int) -> float:
        shares = [prompts // ranks + (rank < prompts % ranks) for rank in range(ranks)]
        queues = (prefill_steps(share, input_len, limits, decode=decode_part) for share in shares)
        return sum(
            max(seconds(shapes) - undisturbed_s, 0.0)
            for shapes in zip_longest(*queues, fillvalue=decode_part)
        )

    fewer = math.floor(together)
    more_share = together - fewer
    mean_s = (1 - more_share) * added_s(fewer) + (more_share * added_s(fewer + 1) if more_share else 0.0)
    return mean_s / together


def first_failing(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 1 to `most` for which `holds` is false; None if it is true for all.

    The search tries powers of two and then bisects, so it may miss a number below the result for which
    `holds` is false too (for example the size of a CUDA graph).
    """
    low, high = 0, 1
    while holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def main_bound(cost: StepCost) -> Bound:
    """Return the resource that bounds the largest part of a step's time."""
    seconds: dict[Bound, float] = {}
    for op in cost.operators:
        seconds[op.bound] = seconds.get(op.bound, 0.0) + op.seconds
    return max(seconds, key=lambda bound: seconds[bound])
