"""Sensitivity of latencies to each kind of kernel and CPU work, for example of TPOT to slower memory-bound kernels.

Sensitivities are logarithmic derivatives: 0.7 for `memory` means that memory-bound kernels that are 10 % slower
increase the latency by 7 %. They weight the sources of error in an interval, and the measured runs in a calibration.
"""

import math
from dataclasses import dataclass, replace

from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool
from capacity.step.closed_form import PhaseTimes, closed_loop_times, prefill_steps
from capacity.step.expert_load import token_log_ratio
from capacity.step.model import StepModel
from capacity.step.row_counts import all_tokens
from capacity.step.shape import StepShape, decode_shape
from capacity.step.time_classes import EFFECTS, TIME_CLASSES, Effect, class_shares

MAX_AMPLIFICATION = 8.0  # above this a queue depends on run length and arrivals more than on steps
MAX_LOAD_FRACTION = 0.97

Shares = dict[Effect, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLoad:
    """A load with the mean times (s) that its clients see, from which sensitivities are computed.

    `waiting_s`: part of `ttft_s` before the first step of the request. `server_s`: part of `ttft_s` in client and API
    server, which does not depend on steps. `load_fraction`: offered load / capacity of an open loop, else None.
    """

    input_len: float
    output_len: float
    in_flight: float
    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    server_s: float
    waiting_s: float = 0.0
    load_fraction: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Logarithmic derivatives of TTFT, TPOT and E2E with respect to the time of each kind of kernel and CPU work.

    `tpot` is None for a single output token. The derivative with respect to the token exponent of the experts' time
    (`experts_tilt`) is included, but not part of the sum over kinds. `queue_share`: fraction of TTFT in the queue.
    """

    ttft: Shares
    tpot: Shares | None
    e2e: Shares
    queue_share: float


def sensitivities(resolved: ResolvedPool, load: ObservedLoad) -> Sensitivities:
    """Return the sensitivities of a load's latencies to the time of each kind of kernel and CPU work."""
    times = _closed_form(resolved, load)
    steps = TokenSteps(resolved)
    of_prefill = _effects(resolved, steps, times.prefill_shape)
    served_s = max(load.ttft_s - load.server_s, 0.0)
    queue_s = min(max(load.waiting_s - load.server_s, 0.0), served_s)
    amplified = _tpot_amplification(resolved, load, times)
    of_ttft_s = served_s
    if amplified > 1:
        alone = prefill_steps(1, max(round(load.input_len), 1), resolved.limits)
        alone_s = min(sum(map(resolved.step_model.step_seconds, alone)), served_s)
        of_ttft_s = min(alone_s + (served_s - alone_s) * (1 + amplified), served_s * MAX_AMPLIFICATION)
    ttft = {name: share * of_ttft_s / load.ttft_s for name, share in of_prefill.items()}
    tpot = None
    e2e = {name: value * load.ttft_s / load.e2e_s for name, value in ttft.items()}
    if load.tpot_s is not None and load.output_len > 1:
        cost = steps.step_cost(times.decode_shape)
        step_s = cost.seconds / steps.tokens_per_step
        decode_share = step_s / max(load.tpot_s, step_s)  # a TPOT of 0: all drafts accepted in the first step
        of_decode = _effects(resolved, steps, times.decode_shape)
        tpot = {
            name: amplified * (decode_share * of_decode[name] + (1 - decode_share) * of_prefill[name])
            for name in EFFECTS
        }
        decoded = (load.e2e_s - load.ttft_s) / load.e2e_s
        e2e = {name: e2e[name] + tpot[name] * decoded for name in EFFECTS}
    return Sensitivities(ttft=ttft, tpot=tpot, e2e=e2e, queue_share=queue_s / load.ttft_s)


def _effects(resolved: ResolvedPool, steps: TokenSteps, shape: StepShape) -> Shares:
    """Return the sensitivities of a step's time to each kind of kernel and CPU work, and to the experts' token
    exponent. In lockstep, the experts of a rank process the tokens of all ranks."""
    found = step_shares(steps, shape)
    tokens = all_tokens(shape) * resolved.lockstep_ranks
    return {**found, "experts_tilt": found["experts"] * token_log_ratio(tokens)}


def step_shares(steps: StepModel | TokenSteps, shape: StepShape) -> Shares:
    """Return the sensitivity of one step's time to that of each kind of kernel and CPU work; they add up to 1.

    CPU and GPU work overlap, so a sensitivity is not a fraction of the step's time: only CPU time in excess of GPU time
    adds to the step. For norm(a, b) = (a**p + b**p)**(1/p) the sensitivity to a is (a / norm)**p.
    """
    cost, host = steps.step_cost(shape), steps.host
    seconds = class_shares(cost)
    of_gpu_s = cost.seconds * (1 - seconds["eager"] - seconds["host"])
    waiting_s, eager_s = (host.waiting_s, host.eager_s) if seconds["eager"] else (0.0, 0.0)
    launched_s = of_gpu_s + cost.seconds * seconds["eager"] - waiting_s
    sequences = shape.prefill_sequences + shape.decode_sequences
    serial_s = host.serial_s + host.serial_per_sequence_s * sequences
    joined_s = cost.seconds - serial_s - waiting_s if host.overlapped else launched_s
    of_gpu = (of_gpu_s / joined_s) ** host.overlap_sharpness
    rest, waiting = joined_s / cost.seconds, waiting_s / cost.seconds
    host_s = host.step_s + host.per_sequence_s * sequences
    of_eager = 1.0
    if host.overlapped:
        of_eager = eager_s / (eager_s + host_s) if eager_s + host_s else 0.0
    kernels = cost.seconds / of_gpu_s * of_gpu * rest
    shares: Shares = {name: seconds[name] * kernels for name in TIME_CLASSES}
    shares["eager"] = waiting + (1 - of_gpu) * rest * of_eager
    shares["host"] = 1 - rest - waiting + (1 - of_gpu) * rest * (1 - of_eager)
    return shares


def _tpot_amplification(resolved: ResolvedPool, load: ObservedLoad, times: PhaseTimes) -> float:
    """Return the factor by which open-loop arrivals amplify the effect of step times on TPOT, because slower steps have
    larger batches, which make them still slower.

    A step of b sequences takes a + c·b seconds, b is proportional to this time, and prefills take the fraction p of all
    time. The factor is 1 / (1 - p) / (1 - g), where g is the fraction of the step proportional to b; 1 for a closed
    loop.
    """
    decode = times.decode_shape
    batch = decode.decode_sequences
    if load.load_fraction is None:
        return 1.0
    rate = load.in_flight / load.e2e_s
    prefilling = min(times.prefill_share * rate / times.requests_per_s, MAX_LOAD_FRACTION)
    growth = 0.0
    if batch > 1:
        context = max(round(decode.decode_context_tokens / batch), 1)
        half = decode_shape(batch // 2, context, window_tokens=resolved.model.window_tokens)
        steps = TokenSteps(resolved)
        growth = (1 - steps.step_seconds(half) / steps.step_seconds(decode)) / (1 - (batch // 2) / batch)
    return min(1 / (1 - prefilling) / (1 - min(max(growth, 0.0), MAX_LOAD_FRACTION)), MAX_AMPLIFICATION)


def _closed_form(resolved: ResolvedPool, load: ObservedLoad) -> PhaseTimes:
    """Return closed-form times of a closed loop with as many requests per rank as this load."""
    streams = min(resolved.overlapping_stages, max(round(load.in_flight), 1))
    most = resolved.max_num_seqs * resolved.pool.data_parallel_size
    running = max(min(load.in_flight, most), 1.0)
    share = max(math.ceil(running / resolved.independent_ranks / streams), 1)
    times = closed_loop_times(
        TokenSteps(resolved),
        resolved.limits_from(),
        share,
        input_len=max(round(load.input_len), 1),
        output_len=max(round(load.output_len), 1),
        ranks=min(resolved.lockstep_ranks, share),
    )
    return replace(times, requests_per_s=times.requests_per_s * running / share)
