"""GPU time of one request: what its prompt adds to the steps, and its part of the steps that decode.

The one rule by which input and output tokens share a bill. It asks for a load alone, requests per second of mean
lengths, so that a closed form, a simulation and a plan that serve the same load share it alike; a few steps are looked
at, and nothing jumps as the load grows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from capacity.step.closed_form import EngineLimits, StepModelLike, joint_seconds_of, shared_prolongation_s
from capacity.step.shape import StepShape, decode_shape

PRECISION = 1e-3  # of the number of sequences that decode
NO_DECODE = StepShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What one engine serves: requests per second of mean lengths (infinite: it is full), at most `most_decoding` at a
    time.

    `in_flight`: those of a closed loop; None: they arrive by the clock. Of prompts, `hit_fraction` is in the prefix
    cache. `ranks`: data-parallel ranks in lock-step, over which all of this is spread.
    """

    requests_per_s: float
    input_len: int
    output_len: int
    most_decoding: int
    in_flight: float | None = None
    hit_fraction: float = 0.0
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSeconds:
    """GPU time of one request on one engine, in seconds of all its GPUs."""

    prefill_s: float
    decode_s: float


def request_seconds(steps: StepModelLike, limits: EngineLimits, load: EngineLoad) -> RequestSeconds:
    """The GPU time that one request of `load` takes: prefill at its margin, decode in its part of the batch.

    How many decode at a time follows from Little's law: b = rate x (output - 1) x step(b) / (1 - rate x prefill), for
    the steps are prolonged by the prefills that share them. Of C users that each decode with probability b / C, those
    who do share their steps among b / (1 - (1 - b / C) ** C) on average, Poisson where they come by the clock.
    Leaves out that a prompt which the cache holds in part attends to all of itself, and that requests of equal
    lengths prefill in larger groups. Steps between two batch sizes are taken on the line.
    """
    prefill_s, seconds = _prefill(steps, limits, load), joint_seconds_of(steps, load.ranks)
    step_s = _on_line(lambda batch: seconds([_decoding(max(batch, 1), limits, load)] * load.ranks))
    decoded = load.output_len - 1
    if not decoded:
        return RequestSeconds(prefill_s=prefill_s(0.0), decode_s=0.0)

    def spare(decoding: float) -> float:
        """Above 0 where the engine keeps up with that many decoding; rises with them."""
        free = 1 - load.requests_per_s * prefill_s(decoding)
        return decoding * free - load.requests_per_s * decoded * step_s(decoding) / load.ranks

    most = float(load.most_decoding)
    if load.in_flight is not None:
        most = min(most, max(load.in_flight / load.ranks, 1.0))
    decoding = most if math.isinf(load.requests_per_s) else _first_root(spare, most)
    batch = _shared_among(decoding, load)
    return RequestSeconds(
        prefill_s=prefill_s(decoding), decode_s=decoded * step_s(batch) / batch / load.ranks
    )


def _first_root(spare: Callable[[float], float], most: float) -> float:
    """Where `spare` comes to 0 first, between 0 and `most`; `most` where it never does: the engine is full."""
    low, high = 0.0, min(1.0, most)
    while spare(high) < 0:
        if high >= most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spare(middle) < 0 else (low, middle)
    return high


def _shared_among(decoding: float, load: EngineLoad) -> float:
    """The mean batch of a decode step where `decoding` is that over all time; at least one."""
    if not decoding:
        return 1.0
    if load.in_flight is None:
        return max(decoding / -math.expm1(-decoding), 1.0)
    users = max(load.in_flight / load.ranks, 1.0)
    if decoding >= users:
        return max(decoding, 1.0)
    return max(decoding / -math.expm1(users * math.log1p(-decoding / users)), 1.0)


def _prefill(steps: StepModelLike, limits: EngineLimits, load: EngineLoad) -> Callable[[float], float]:
    """What a prompt adds to the steps of an engine on which so many sequences of each rank decode, on average."""
    seconds = joint_seconds_of(steps, load.ranks)
    others = 1.0 if load.in_flight is None else max(1 - load.ranks / max(load.in_flight, load.ranks), 0.0)

    def beside(batch: int) -> float:
        mixed = batch if limits.mixes_prefill_with_decode else 0
        joining = batch * load.ranks / load.output_len  # requests that end in a step, and as many begin
        together = joining / -math.expm1(-joining) if joining else 1.0
        added_s = shared_prolongation_s(
            seconds,
            limits,
            together,
            input_len=load.input_len,
            beside=_decoding(mixed, limits, load),
            ranks=load.ranks,
        )
        return added_s * (1 - load.hit_fraction)

    line = _on_line(beside)
    return lambda decoding: line(decoding * others)


def _decoding(batch: int, limits: EngineLimits, load: EngineLoad) -> StepShape:
    """The decode rows of a step, each halfway through its output."""
    if not batch:
        return NO_DECODE
    context = load.input_len + (load.output_len + 1) // 2
    return decode_shape(batch, context, window_tokens=limits.window_tokens)


def _on_line(of_batch: Callable[[int], float]) -> Callable[[float], float]:
    """A function of whole batches, between two of them on the line; each is asked once."""
    known: dict[int, float] = {}

    def at(batch: int) -> float:
        if batch not in known:
            known[batch] = of_batch(batch)
        return known[batch]

    def line(batch: float) -> float:
        below = math.floor(batch)
        above_share = batch - below
        return at(below) + (above_share * (at(below + 1) - at(below)) if above_share else 0.0)

    return line
