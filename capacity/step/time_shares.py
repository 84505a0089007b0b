"""GPU time of one request: the time that its prefill adds to steps, and its share of decode steps.

This is the only rule that divides cost between input and output tokens. It depends only on the load (requests per
second of mean lengths), so the closed form, the simulation and the plan agree for the same load. It evaluates only a
few steps, and its results are continuous in the load.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from capacity.step.closed_form import EngineLimits, StepModelLike, get_joint_seconds, prefill_prolongation_s
from capacity.step.shape import StepShape, decode_shape

PRECISION = 1e-3  # relative, of the number of decoding sequences
NO_DECODE = StepShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """Load of one engine: requests per second of mean lengths (infinite: saturated).

    `most_decoding`: most requests that decode at once. `in_flight`: number of requests in a closed loop; None for
    open-loop arrivals. `hit_fraction`: fraction of prompt tokens in the prefix cache. `ranks`: synchronised
    data-parallel ranks that share this load.
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
    """One request's share of the step time of its engine, in seconds of the whole engine.

    Times the number of GPUs of the engine, these are GPU-seconds.

    `decode_batch`: mean requests in a decode step of one rank; 0 if requests have a single output token.
    """

    prefill_s: float
    decode_s: float
    decode_batch: float = 0.0

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s


def request_seconds(steps: StepModelLike, limits: EngineLimits, load: EngineLoad) -> RequestSeconds:
    """Return the GPU time of one request of `load`: the marginal time of its prefill, and its share of decode batches.

    The number of decoding requests follows from Little's law: b = rate x (output - 1) x step(b) / (1 - rate x
    prefill), because prefills prolong the steps in which they run. In a closed loop of C users that each decode with
    probability b / C, a decode step has b / (1 - (1 - b / C) ** C) requests on average; with open-loop arrivals the
    number is Poisson.

    A partly cached prompt takes the whole prompt's time multiplied by the uncached fraction. Not modelled: requests of
    equal lengths prefill in larger groups. Steps between two batch sizes are interpolated.
    """
    prefill_s, seconds = _make_prefill_seconds(steps, limits, load), get_joint_seconds(steps, load.ranks)
    step_s = _interpolate_batches(
        lambda batch: seconds([mean_decode_shape(max(batch, 1), limits, load)] * load.ranks)
    )
    decoded = load.output_len - 1
    if not decoded:
        return RequestSeconds(prefill_s=prefill_s(0.0), decode_s=0.0)

    def spare(decoding: float) -> float:
        """Return decode capacity minus load if `decoding` requests decode at once; below 0 the queue grows."""
        free = 1 - load.requests_per_s * prefill_s(decoding)
        return decoding * free - load.requests_per_s * decoded * step_s(decoding) / load.ranks

    most = float(load.most_decoding)
    if load.in_flight is not None:
        most = min(most, max(load.in_flight / load.ranks, 1.0))
    decoding = most if math.isinf(load.requests_per_s) else _first_root(spare, most)
    batch = _mean_decode_batch(decoding, load)
    return RequestSeconds(
        prefill_s=prefill_s(decoding),
        decode_s=decoded * step_s(batch) / batch / load.ranks,
        decode_batch=batch,
    )


def _first_root(spare: Callable[[float], float], most: float) -> float:
    """Return the smallest number of decoding requests up to `most` for which `spare` is not negative, else `most`."""
    low, high = 0.0, min(1.0, most)
    while spare(high) < 0:
        if high >= most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spare(middle) < 0 else (low, middle)
    return high


def _mean_decode_batch(decoding: float, load: EngineLoad) -> float:
    """Return the mean batch size of decode steps, at least 1; `decoding`: time-averaged decoding requests."""
    if not decoding:
        return 1.0
    if load.in_flight is None:
        return max(decoding / -math.expm1(-decoding), 1.0)
    users = max(load.in_flight / load.ranks, 1.0)
    if decoding >= users:
        return max(decoding, 1.0)
    return max(decoding / -math.expm1(users * math.log1p(-decoding / users)), 1.0)


def _make_prefill_seconds(
    steps: StepModelLike, limits: EngineLimits, load: EngineLoad
) -> Callable[[float], float]:
    """Return a function from the mean decoding requests per rank to the seconds that one prompt adds to steps."""
    seconds = get_joint_seconds(steps, load.ranks)
    others = 1.0 if load.in_flight is None else max(1 - load.ranks / max(load.in_flight, load.ranks), 0.0)

    def added_time(batch: int) -> float:
        mixed = batch if limits.mixes_prefill_with_decode else 0
        joining = batch * load.ranks / load.output_len  # requests that end in a step; as many begin
        together = joining / -math.expm1(-joining) if joining else 1.0
        added_s = prefill_prolongation_s(
            seconds,
            limits,
            together,
            input_len=load.input_len,
            decode_part=mean_decode_shape(mixed, limits, load),
            ranks=load.ranks,
        )
        return added_s * (1 - load.hit_fraction)

    line = _interpolate_batches(added_time)
    return lambda decoding: line(decoding * others)


def mean_decode_shape(batch: int, limits: EngineLimits, load: EngineLoad) -> StepShape:
    """Return the shape of a step that decodes `batch` requests, each halfway through its output."""
    if not batch:
        return NO_DECODE
    context = load.input_len + (load.output_len + 1) // 2
    return decode_shape(batch, context, window_tokens=limits.window_tokens)


def _interpolate_batches(of_batch: Callable[[int], float]) -> Callable[[float], float]:
    """Return `of_batch` with linear interpolation for fractional batch sizes; each whole size is evaluated once."""
    known_at = cache(of_batch)

    def line(batch: float) -> float:
        below = math.floor(batch)
        above_share = batch - below
        return known_at(below) + (
            above_share * (known_at(below + 1) - known_at(below)) if above_share else 0.0
        )

    return line
