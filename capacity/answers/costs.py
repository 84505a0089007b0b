"""Cost of a deployment at the load that it serves. All commands compute costs with `cost_of`.

A load is a request rate with mean lengths. The bill covers whole instances, whether they are busy or idle. It is split
over input and output tokens in proportion to the GPU time of prefill and decode at full load (`step.time_shares`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from capacity.hardware.cost_estimate import CostEstimate, cost_estimate
from capacity.hardware.pricing import Price
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool
from capacity.step.time_shares import EngineLoad, RequestSeconds, request_seconds

Pools = Sequence[tuple[ResolvedPool, int]]  # with their replicas
Prices = Mapping[str, Price]  # by the name of the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """The load that all replicas of a deployment serve together: requests per second with mean lengths in tokens.

    `in_flight`: concurrency of a closed loop; None for an open loop. `hit_fraction`: fraction of prompt tokens that
    came from the prefix cache.
    """

    requests_per_s: float
    input_tokens: float
    output_tokens: float
    in_flight: float | None = None
    hit_fraction: float = 0.0

    def at_rate(self, requests_per_s: float) -> "ServedLoad":
        """Return the load with the rate `requests_per_s` and the same lengths."""
        return replace(self, requests_per_s=requests_per_s)

    def limited_to_rate(self, requests_per_s: float) -> "ServedLoad":
        """Return the load with its rate limited to `requests_per_s`."""
        return self.at_rate(min(self.requests_per_s, requests_per_s))


def cost_of(price: Price | Prices | None, pools: Pools, load: ServedLoad) -> CostEstimate | None:
    """Return the cost of `pools` at `load`; None without a price. `prices`: one price, or a price for each GPU type.

    Raises InvalidInput for an empty load.
    """
    if price is None:
        return None
    gpus: Counter[str] = Counter()
    for pool, replicas in pools:
        gpus[pool.profile.name] += pool.pool.num_gpus * replicas
    return cost_estimate(
        {name: (price if isinstance(price, Price) else price[name], count) for name, count in gpus.items()},
        requests_per_s=load.requests_per_s,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        prefill_share=prefill_share(pools, load),
    )


def prefill_share(pools: Pools, load: ServedLoad) -> float:
    """Return the fraction of the GPU time of a request that its prefill takes at full load, over all `pools`.

    It is computed at full load, because idle time belongs neither to prefill nor to decode. With separate pools, all
    time of prefill GPUs is prefill, and all time of decode GPUs is decode.
    """
    load = replace(load, requests_per_s=math.inf, in_flight=None)
    prefill_gpu_s = decode_gpu_s = 0.0
    for role in ("both", "prefill", "decode"):
        kind = [(pool, count) for pool, count in pools if pool.pool.role == role]
        replicas = sum(count for _, count in kind)
        for pool, count in kind:
            each = _stream_request_seconds(pool, load, replicas)
            gpus = pool.pool.num_gpus / _streams(pool) * count / replicas
            prefill_gpu_s += gpus * each.prefill_s
            decode_gpu_s += gpus * each.decode_s
    return prefill_gpu_s / (prefill_gpu_s + decode_gpu_s)


LARGEST_BATCH_POWER = 11  # power of two: batches of up to 1,024 requests


def max_requests_per_s(pools: Pools, load: ServedLoad) -> float:
    """Return the estimated maximum requests/s of all engines; infinite if a pool only prefills or only decodes.

    For each pool the best batch size is used, because a batch that exceeds the largest CUDA graph can be slower.
    """
    if any(pool.pool.role != "both" for pool, _ in pools):
        return math.inf
    rate = 0.0
    for pool, count in pools:
        streams = _streams(pool)
        batches = (None, *(float(streams * 2**power) for power in range(LARGEST_BATCH_POWER)))
        each = (
            _stream_request_seconds(pool, replace(load, requests_per_s=math.inf, in_flight=b), 1)
            for b in batches
        )
        rate += count * streams * max(1 / (seconds.prefill_s + seconds.decode_s) for seconds in each)
    return rate


def saturated_load(pools: Pools, load: ServedLoad) -> ServedLoad:
    """Return the closed loop `load` with the request rate that follows from its step times if no request waits.

    With separate prefill and decode pools, the slower one determines the rate. An open loop is returned unchanged.
    """
    if not math.isinf(load.requests_per_s):
        return load
    replicas, rates = Counter[str](), dict[str, float]()
    for pool, count in pools:
        replicas[pool.pool.role] += count
    for pool, count in pools:
        each = _stream_request_seconds(pool, load, replicas[pool.pool.role])
        stage = "prefill" if pool.pool.role == "prefill" else "decode"
        rates[stage] = rates.get(stage, 0.0) + count * _streams(pool) / each.total_s
    return load.at_rate(min(rates.values()))


def _streams(pool: ResolvedPool) -> int:
    """Return the number of batches of an engine that step independently: independent ranks x pipeline stages."""
    return pool.independent_ranks * pool.overlapping_stages


def _stream_request_seconds(pool: ResolvedPool, load: ServedLoad, replicas: int) -> RequestSeconds:
    """Return the GPU time of a request in one of the independent batches (`_streams`) of `replicas` engines.

    In a prefill-only pool the request has a single output token. In a decode-only pool its prompt is already computed.
    """
    steps = TokenSteps(pool)
    return request_seconds(steps, pool.limits, stream_load(steps, load, replicas))


def stream_load(steps: TokenSteps, load: ServedLoad, replicas: int) -> EngineLoad:
    """Return the load of one independent batch (`_streams`) of `replicas` engines, which share `load` equally."""
    pool = steps.resolved
    streams, role = replicas * _streams(pool), pool.pool.role
    input_len, output_len = max(round(load.input_tokens), 1), max(round(load.output_tokens), 1)
    most = steps.largest_batch(input_len + output_len) // pool.overlapping_stages
    return EngineLoad(
        requests_per_s=load.requests_per_s / streams,
        input_len=input_len,
        output_len=1 if role == "prefill" else output_len,
        most_decoding=max(most, 1),
        in_flight=None if load.in_flight is None else load.in_flight / streams,
        hit_fraction=1.0 if role == "decode" else load.hit_fraction,
        ranks=pool.lockstep_ranks,
    )
