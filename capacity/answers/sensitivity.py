"""How much of a latency hangs on each class of seconds: what a factor on memory time, say, does to TTFT and TPOT.

The same numbers weigh the parts of an interval and the lessons of a measured run. They are logarithmic derivatives: 0.7
for `memory` says that kernels 10 % slower make 7 % more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from capacity.pool.resolve import ResolvedPool
from capacity.step.closed_form import closed_loop_times
from capacity.step.shape import StepShape, decode_shape
from capacity.step.time_classes import TIME_CLASSES, TimeClass, class_shares

MOST_AMPLIFIED = 4.0  # beyond, a queue follows the run's length and arrivals more than its steps
MOST_LOAD = 0.97

Shares = dict[TimeClass, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen:
    """A load as its clients see it, means in seconds: what sensitivities are of.

    `waiting_s` of `ttft_s` passes before the first token is scheduled; `server_s` of it is client and API server, which
    no step makes. `load_fraction` is that of an open loop over what the engine serves; None: a closed loop, or a batch.
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
    """Derivatives of the logarithm of each latency, by class of seconds; None without a second token.

    `queue_share` is the part of TTFT that a load adds by waiting.
    """

    ttft: Shares
    tpot: Shares | None
    e2e: Shares
    queue_share: float


def sensitivities(resolved: ResolvedPool, load: LoadSeen) -> Sensitivities:
    """What each class of seconds does to the latencies of a load."""
    prefill_shape, decode = _shapes(resolved, load)
    steps = resolved.step_model
    of_prefill = class_shares(steps.step_cost(prefill_shape))
    served_s = max(load.ttft_s - load.server_s, 0.0)
    queue_s = min(max(load.waiting_s - load.server_s, 0.0), served_s)
    own = served_s - queue_s + queue_s * _of_a_queue(load.load_fraction)
    ttft = {name: share * own / load.ttft_s for name, share in of_prefill.items()}
    tpot = None
    e2e = {name: value * load.ttft_s / load.e2e_s for name, value in ttft.items()}
    if load.tpot_s is not None and load.output_len > 1:
        cost = steps.step_cost(decode)
        decode_share = min(cost.seconds / load.tpot_s, 1.0)
        of_decode = class_shares(cost)
        more = _of_a_batch(resolved, decode, cost.seconds) if load.load_fraction is not None else 1.0
        tpot = {
            name: more * (decode_share * of_decode[name] + (1 - decode_share) * of_prefill[name])
            for name in TIME_CLASSES
        }
        decoded = (load.e2e_s - load.ttft_s) / load.e2e_s
        e2e = {name: e2e[name] + tpot[name] * decoded for name in TIME_CLASSES}
    return Sensitivities(ttft=ttft, tpot=tpot, e2e=e2e, queue_share=queue_s / load.ttft_s)


def _of_a_queue(load_fraction: float | None) -> float:
    """Waiting grows with the step's time, and with the load that it makes: as 1/(1 - load) where arrivals go on."""
    if load_fraction is None:
        return 1.0
    return min(1.0 + 1.0 / (1.0 - min(max(load_fraction, 0.0), MOST_LOAD)), MOST_AMPLIFIED)


def _of_a_batch(resolved: ResolvedPool, decode: StepShape, seconds: float) -> float:
    """Of an open loop slower steps hold more requests at a time, whose steps are slower again.

    Where a step's time grows by g in a hundred for each hundredth of requests more, that is 1 / (1 - g).
    """
    batch = decode.decode_sequences
    if batch < 2:
        return 1.0
    context = max(round(decode.decode_context_tokens / batch), 1)
    half = decode_shape(batch // 2, context, window_tokens=resolved.model.window_tokens)
    fewer_s = resolved.step_model.step_seconds(half)
    growth = (1 - fewer_s / seconds) / (1 - (batch // 2) / batch)
    return min(1.0 / max(1.0 - growth, 1e-9), MOST_AMPLIFIED)


def _shapes(resolved: ResolvedPool, load: LoadSeen) -> tuple[StepShape, StepShape]:
    """The prefill step and the decode step that stand for the load on one rank."""
    streams = min(resolved.pool.pipeline_parallel_size, max(round(load.in_flight), 1))
    most = resolved.max_num_seqs * resolved.pool.data_parallel_size
    running = max(min(load.in_flight, most), 1.0)
    share = max(math.ceil(running / resolved.independent_ranks / streams), 1)
    times = closed_loop_times(
        resolved.step_model,
        resolved.limits_from(),
        share,
        input_len=max(round(load.input_len), 1),
        output_len=max(round(load.output_len), 1),
        ranks=min(resolved.lockstep_ranks, share),
    )
    return times.prefill_shape, times.decode_shape
