"""A deployment with as many requests in flight as it holds, for ever: the load that its price is best divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.answers.costs import ServedLoad, prefill_share
from capacity.answers.intervals import load_bands
from capacity.base.errors import InvalidInput
from capacity.planning.bills.billing import Rates
from capacity.planning.evaluation.step_error import Factors
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.load_means import LoadMeans
from capacity.step import StepShape
from capacity.step.closed_form import PhaseTimes, closed_loop_times


class _StretchedSteps(TokenSteps):
    """Step times of an engine for closed forms, stretched by `factors`."""

    def __init__(self, resolved: ResolvedPool, factors: Factors) -> None:
        super().__init__(resolved)
        self._factors = factors

    def step_seconds(self, shape: StepShape) -> float:
        factor = self._factors.prefill if shape.prefill_tokens else self._factors.decode
        return super().step_seconds(shape) * factor

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        prefill = any(shape.prefill_tokens for shape in shapes)
        return super().joint_seconds(shapes) * (self._factors.prefill if prefill else self._factors.decode)


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
    stream = _full_stream(resolved, lengths, factors or Factors())
    times = stream.times
    prefill = min(max(times.prefill_share, 0.0), 1.0)
    busy = 1 - prefill * hit_fraction  # of the time that it took without hits
    streams = resolved.independent_ranks * stream.stages * replicas
    load = ServedLoad(
        requests_per_s=times.requests_per_s * streams / busy,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        in_flight=float(stream.in_flight * streams),
        hit_fraction=hit_fraction,
    )
    return rates_of([(resolved, replicas)], load)


@dataclass(frozen=True, slots=True)
class _Stream:
    """One stream of steps at full load, of as many as the engine has stages: its times, and its requests."""

    times: PhaseTimes
    in_flight: int
    stages: int


def _full_stream(resolved: ResolvedPool, lengths: tuple[float, float], factors: Factors) -> _Stream:
    """Raises InvalidInput where not one request fits."""
    input_len, output_len = max(round(lengths[0]), 1), max(round(lengths[1]), 1)
    steps = _StretchedSteps(resolved, factors)
    each = steps.largest_batch(input_len + output_len)  # of a data-parallel rank
    if each < 1:
        raise InvalidInput(
            f"one request of {input_len + output_len:,} tokens exceeds the KV cache; {resolved.more_memory}"
        )
    ranks, stages = resolved.lockstep_ranks, min(resolved.pool.pipeline_parallel_size, each)
    in_flight = each // stages * ranks
    times = closed_loop_times(
        steps, resolved.limits, in_flight, input_len=input_len, output_len=output_len, ranks=ranks
    )
    return _Stream(times, in_flight, stages)


def full_load_ends(resolved: ResolvedPool, lengths: tuple[float, float]) -> tuple[float, float]:
    """The 90 % interval of E2E at full load, over its prediction: that of the throughput is one over it."""
    stream = _full_stream(resolved, lengths, Factors())
    times = stream.times
    means = LoadMeans(
        requests=stream.in_flight,
        ttft_s=times.ttft_s,
        waiting_s=0.0,
        tpot_s=times.tpot_s,
        e2e_s=times.e2e_s,
        requests_per_s=times.requests_per_s,
        in_flight=float(stream.in_flight),
    )
    return load_bands(resolved, means, lengths, client_latency_s=0.0, load_fraction=None).ends("e2e")


def rates_of(pools: Sequence[tuple[ResolvedPool, int]], load: ServedLoad) -> Rates:
    """A load with the prompts' part of GPU time at it."""
    return Rates(
        requests_per_s=load.requests_per_s,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        prefill_share=prefill_share(pools, load),
    )
