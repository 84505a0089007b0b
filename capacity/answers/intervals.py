"""Predictions with their 90 % intervals, for all commands.

An interval combines sources of error (`interval_parts`): the error of each kind of kernel and CPU work, weighted by the
sensitivity of the latency to it (`sensitivity`); differences between deployments and runs; and unspecified settings. A
batch has no client and no queue, so its interval is the measured error of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from capacity.answers.interval_parts import (
    PERCENTILE,
    VERSION,
    Z_90,
    Part,
    PredictionContext,
    calibrated_sensitivities,
    deviation_of,
    interval_parts,
    kind_of,
    relative_ends,
)
from capacity.answers.records import Quantity
from capacity.answers.sensitivity import ObservedLoad, Sensitivities, sensitivities
from capacity.base.record import make_from
from capacity.deployment import Pool, Traffic
from capacity.deployment.client_latency import MAX_S, MIN_S
from capacity.deployment.command_words import LAUNCH_DEFAULTS
from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.measured_loads import remaining_error
from capacity.hardware.spreads import Metric, MetricSpread, load_spreads
from capacity.pool.drafting import pool_speculator
from capacity.pool.resolve import ResolvedPool
from capacity.step import prefill_shape

if TYPE_CHECKING:
    from capacity.answers.phases import Phases, RequestLengths
    from capacity.answers.served import Served
    from capacity.simulator.load_means import LoadMeans
    from capacity.step.closed_form import PhaseTimes

PROMPT_SPREAD = 0.1
"""Maximum of ln(counted / requested prompt tokens): chat templates add tens of tokens, and random prompts of benchmarks
are a few percent longer or shorter than requested. Assumed, 2026-11-24."""


class Latencies(NamedTuple):
    """Latencies that clients see, in seconds; `tpot_s` is None for requests with one output token."""

    ttft_s: Quantity
    tpot_s: Quantity | None
    e2e_s: Quantity


def with_interval(value: float, low: float | None, high: float | None) -> Quantity:
    """Return a prediction whose interval ends are given as relative errors; an end is None if its error is None."""
    return Quantity(
        value=value,
        low=None if low is None else value * (1 + low),
        high=None if high is None else value * (1 + high),
    )


def client_range_s(traffic: Traffic, adjustment: Adjustment | None) -> tuple[float, float]:
    """Return by how many seconds the real client latency may be below, and above, the client latency of the traffic."""
    if adjustment is not None and adjustment.covariance:
        place = NAMES.index("front_end")
        away_s = Z_90 * math.sqrt(adjustment.covariance_matrix[place, place])
        return away_s, away_s
    return traffic.client_latency_s - MIN_S, MAX_S - traffic.client_latency_s


def predicted_latencies(
    resolved: ResolvedPool,
    phases: Phases,
    traffic: Traffic,
    lengths: RequestLengths,
    *,
    as_found: bool = False,
) -> Latencies | None:
    """Return the latencies of a batch or a load with intervals; None without a steady state.

    Intervals apply to a server launched as predicted or, with `as_found`, to a server with unknown settings and client.
    """
    bands = bands_of(resolved, phases, traffic, lengths)
    if bands is None:
        return None
    bands = replace(bands, as_found=as_found)
    if phases.served is None:
        found = batch_latencies(resolved, phases.times, lengths, phases.requests)
    else:
        found = _served_latencies(bands, phases.served)
    ttft_s = bands.add_client_latency("ttft", found.ttft_s, traffic)
    return Latencies(ttft_s, found.tpot_s, bands.add_client_latency("e2e", found.e2e_s, traffic))


@dataclass(frozen=True)
class LoadBands:
    """Latency intervals of one load on one pool: sources of error, and interval ends relative to the prediction.

    They apply to a server launched with the settings and the release of the prediction. `as_found`: they apply to an
    existing server, on which settings that the user did not give may differ from the defaults.
    """

    resolved: ResolvedPool
    seen: ObservedLoad
    as_found: bool = False

    @cached_property
    def sensitivities(self) -> Sensitivities:
        return sensitivities(self.resolved, self.seen)

    def parts(self, metric: Metric, statistic: str = "mean") -> tuple[Part, ...]:
        """Return the sources of error of a metric, except the client latency; empty if the load has no such metric."""
        _, remaining = self.remaining_error(metric)
        return tuple(
            part if part.name == PERCENTILE else replace(part, deviation=part.deviation * remaining)
            for part in self._parts_without_loads(metric, statistic)
        )

    def _parts_without_loads(self, metric: Metric, statistic: str) -> tuple[Part, ...]:
        own = getattr(self.sensitivities, metric)
        if own is None:
            return ()
        return interval_parts(metric, own, self.prediction_context(statistic), load_spreads())

    def remaining_error(self, metric: Metric) -> tuple[float, float]:
        """Return the expected error (logarithm) at this load, from calibration runs at similar loads, and the fraction
        of its standard deviation that these runs leave; (0, 1) without such runs."""
        adjustment = self.resolved.profile.adjustment
        loads = () if adjustment is None else adjustment.loads_of(self.resolved.deployment_name)
        shares = calibrated_sensitivities(metric, self.prediction_context("mean")) if loads else {}
        if not shares:
            return 0.0, 1.0
        place = (self.seen.in_flight, self.seen.input_len, self.seen.output_len)
        deviation = deviation_of(self._parts_without_loads(metric, "mean"))
        found = [(share, remaining_error(loads, name, place, deviation)) for name, share in shares.items()]
        return sum(share * each[0] for share, each in found), sum(share * each[1] for share, each in found)

    def add_client_latency(
        self, metric: Metric, quantity: Quantity, traffic: Traffic, *, unit_s: float = 1.0
    ) -> Quantity:
        """Return `quantity`, a TTFT or E2E, with a wider interval if the client latency is unknown.

        The client latency is known if the user gave it. Its default also counts as known, except with `as_found` or in
        a calibrated profile. An unknown client latency is between `MIN_S` and `MAX_S`, as in published benchmarks, or
        in the range of the calibration runs. Calibration runs at similar loads reduce this range. Its error is
        independent of the other errors. `unit_s`: seconds per unit of the quantity.
        """
        adjustment = self.resolved.profile.adjustment
        learnt = adjustment is not None and adjustment.covariance
        if "client_latency_s" in traffic.model_fields_set or not (self.as_found or learnt):
            return quantity
        value, remaining = quantity.value, self.remaining_error(metric)[1]
        nearer, farther = (each / unit_s * remaining for each in client_range_s(traffic, adjustment))
        low = None if quantity.low is None else value - math.hypot(value - quantity.low, nearer)
        high = None if quantity.high is None else value + math.hypot(quantity.high - value, farther)
        return Quantity(value=value, low=None if low is None else max(low, 0.0), high=high)

    def kind(self, metric: Metric) -> MetricSpread:
        """Return the metric's fitted standard deviations, and its interval ends, fitted on held-out publications."""
        return kind_of(metric, self.prediction_context("mean"), load_spreads())

    def ends(self, metric: Metric, statistic: str = "mean") -> tuple[float, float]:
        """Return the 90 % interval of measured / predicted for a `statistic` of the metric, such as the mean."""
        own = relative_ends(self.parts(metric, statistic), self.kind(metric))
        if metric == "tpot":
            return own
        seen = self.seen
        other_s = time_across_graph_limit_s(self.resolved, seen.input_len + max(seen.in_flight - 1, 0))
        return widen_across_graph_limit(own, other_s, seen.ttft_s if metric == "ttft" else seen.e2e_s)

    def calibration_factor(self, metric: Metric) -> float:
        """Return the factor by which calibration runs of this deployment correct the metric; 1 without such runs."""
        adjustment = self.resolved.profile.adjustment
        if adjustment is None:
            return 1.0
        shares = calibrated_sensitivities(metric, self.prediction_context("mean"))
        known = sum(share * adjustment.mean(name) for name, share in shares.items())
        return math.exp(known + self.remaining_error(metric)[0])

    def correct(self, metric: Metric, value: float) -> Quantity:
        """Return the predicted `value`, corrected by calibration runs if any, with an interval of width 0."""
        return with_interval(value * self.calibration_factor(metric), 0.0, 0.0)

    def with_interval(self, metric: Metric, value: float, statistic: str = "mean") -> Quantity:
        """Return the predicted `value`, corrected by calibration runs if any, with its interval."""
        low, high = self.ends(metric, statistic)
        value *= self.calibration_factor(metric)
        return Quantity(value=value, low=value * low, high=value * high)

    def prediction_context(self, statistic: str) -> PredictionContext:
        """Return the context of the prediction (GPU, engine, known settings) for this statistic."""
        resolved, seen = self.resolved, self.seen
        profile, pool = resolved.profile, resolved.pool
        return make_from(
            PredictionContext,
            resolved.step_model,
            engine=resolved.engine.name,
            gpu=profile.name.split("@")[0],
            model=resolved.model.name,
            engine_label=resolved.engine.label,
            is_moe=resolved.model.is_moe,
            statistic=statistic,
            saturated=seen.load_fraction is None and seen.in_flight > _max_running_requests(resolved, seen),
            ttft_share=min(seen.ttft_s / seen.e2e_s, 1.0),
            transferred=(profile.step_time is None or profile.step_time.transferred_from is not None)
            and not resolved.step_setting.measured_on_gpu,
            unsaid=unspecified_settings(pool) if self.as_found else (),
            adjustment=profile.adjustment,
            length_spread=length_spread(resolved),
        )


def length_spread(resolved: ResolvedPool) -> float:
    """Return the standard deviation of ln(tokens per verification step); 0 without drafts or if it is given."""
    if resolved.pool.speculator is None:
        return 0.0
    return pool_speculator(resolved.pool, resolved.model).length_spread


def time_across_graph_limit_s(resolved: ResolvedPool, tokens: float) -> float:
    """Return the change of a prefill step's time (s) if its tokens were on the other side of the largest CUDA graph; 0
    if `tokens` is not close to that size.

    Larger steps are launched kernel by kernel and are up to several times slower (a scheduler log of vLLM 0.15,
    gpt-oss-120b: 23 ms for 1,024 tokens, 64 ms for 1,050 to 1,500). So near that size an interval covers both cases.
    """
    steps = resolved.step_model
    largest = steps.largest_prefill_graph
    if largest is None or abs(math.log(tokens / largest)) > PROMPT_SPREAD:
        return 0.0
    replayed, launched = (steps.step_seconds(prefill_shape(1, rows)) for rows in (largest, largest + 1))
    return launched - replayed if tokens <= largest else replayed - launched


def widen_across_graph_limit(ends: tuple[float, float], other_s: float, own_s: float) -> tuple[float, float]:
    """Return the interval `ends` of measured / predicted time, widened to include a step on the other side of the CUDA
    graph limit. The predicted time is `own_s`; on the other side it changes by `other_s` (may be negative)."""
    ratio = max(1 + other_s / own_s, 0.0)
    return ends[0] * min(1.0, ratio), ends[1] * max(1.0, ratio)


def unspecified_settings(pool: Pool) -> tuple[str, ...]:
    """Return the names of the launch settings that the user did not give; a default that was given counts as given."""
    given = pool.model_fields_set
    names = [
        name for name, usual in LAUNCH_DEFAULTS.items() if getattr(pool, name) == usual and name not in given
    ]
    return (*([] if "@" in pool.engine else [VERSION]), *names)


def _max_running_requests(resolved: ResolvedPool, seen: ObservedLoad) -> float:
    """Return an estimate of the number of requests of this load that the engine runs at a time."""
    tokens = max(round(seen.input_len + seen.output_len), 1)
    held = min(resolved.concurrent_requests(tokens), resolved.max_num_seqs)
    return max(held, 1) * resolved.pool.data_parallel_size


def load_bands(
    resolved: ResolvedPool,
    means: LoadMeans,
    lengths: tuple[float, float],
    *,
    client_latency_s: float,
    load_fraction: float | None,
) -> LoadBands:
    """Return the latency intervals of a load from its mean latencies and its mean prompt and output `lengths`.

    If all requests arrive at once (`load_fraction` is infinite), the load is treated as a closed loop of all requests.
    """
    seen = make_from(
        ObservedLoad,
        means,
        input_len=lengths[0],
        output_len=lengths[1],
        server_s=client_latency_s + resolved.engine.server_latency_s(lengths[0]),
        load_fraction=None if load_fraction == math.inf else load_fraction,
    )
    return LoadBands(resolved, seen)


def bands_of(
    resolved: ResolvedPool, phases: Phases, traffic: Traffic, lengths: RequestLengths
) -> LoadBands | None:
    """Return the latency intervals of a batch or of a simulated load; None if the load has no steady state."""
    load = phases.served
    if load is None:
        return batch_bands(resolved, phases.times, lengths, phases.requests)
    if load.steady is None or traffic.input_len is None or traffic.output_len is None:
        return None
    return load_bands(
        resolved,
        load.steady,
        (traffic.input_len, traffic.output_len),
        client_latency_s=traffic.client_latency_s,
        load_fraction=load.verdict.load_fraction if traffic.concurrency is None else None,
    )


def _served_latencies(bands: LoadBands, load: Served) -> Latencies:
    """Return the mean latencies of a load in its steady state, with intervals.

    The intervals include the means over the whole run. Close to the capacity, TTFT and E2E have no upper end.
    """
    assert load.steady is not None
    covered = _latencies(load.steady, bands.with_interval)
    if load.whole is not None:
        whole = _latencies(load.whole, bands.correct)
        covered = Latencies(
            covered.ttft_s.cover(whole.ttft_s),
            None if covered.tpot_s is None else covered.tpot_s.cover(whole.tpot_s),
            covered.e2e_s.cover(whole.e2e_s),
        )
    if load.verdict.verdict == "saturated" and load.verdict.load_fraction is not None:
        ttft_s, e2e_s = (replace(each, high=None) for each in (covered.ttft_s, covered.e2e_s))
        return Latencies(ttft_s, covered.tpot_s, e2e_s)
    return covered


def _latencies(means: LoadMeans | PhaseTimes, predicted: Callable[[Metric, float], Quantity]) -> Latencies:
    tpot = None if means.tpot_s is None else predicted("tpot", means.tpot_s)
    return Latencies(predicted("ttft", means.ttft_s), tpot, predicted("e2e", means.e2e_s))


def batch_latencies(
    resolved: ResolvedPool, times: PhaseTimes, lengths: RequestLengths, batch_size: int
) -> Latencies:
    """Return the latencies of a batch. The intervals are the measured errors of its steps; with a calibrated profile,
    they are computed as for a load."""
    if resolved.profile.adjustment is not None:
        return _latencies(times, batch_bands(resolved, times, lengths, batch_size).with_interval)
    ttft = _with_step_band(resolved, "prefill", times.ttft_s)
    if ttft.low is not None and ttft.high is not None:
        other_s = time_across_graph_limit_s(resolved, lengths.input_len * batch_size)
        ends = widen_across_graph_limit((ttft.low, ttft.high), other_s, times.ttft_s)
        ttft = replace(ttft, low=ends[0], high=ends[1])
    tpot = None if times.tpot_s is None else _with_step_band(resolved, "decode", times.tpot_s)
    return Latencies(ttft, tpot, _end_to_end(times.e2e_s, ttft, tpot))


def batch_ends(
    resolved: ResolvedPool, times: PhaseTimes, lengths: RequestLengths, batch_size: int
) -> dict[str, tuple[float, float]]:
    """Return the interval ends (s) of the TTFT and TPOT of a batch, if known, with the keys `ttft_s` and `tpot_s`."""
    found = batch_latencies(resolved, times, lengths, batch_size)
    named = {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s}
    return {
        name: (each.low, each.high)
        for name, each in named.items()
        if each is not None and each.low is not None and each.high is not None
    }


def batch_bands(
    resolved: ResolvedPool, times: PhaseTimes, lengths: RequestLengths, batch_size: int
) -> LoadBands:
    """Return the latency intervals of a batch, computed as for a load without a queue."""
    seen = make_from(
        ObservedLoad,
        times,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
        in_flight=batch_size,
        server_s=resolved.engine.server_latency_s(lengths.input_len),
    )
    return LoadBands(resolved, seen)


def _with_step_band(resolved: ResolvedPool, regime: Literal["prefill", "decode"], value: float) -> Quantity:
    """Return the time `value` of prefill or decode steps (`regime`) with its 90 % interval, from the measured errors of
    such steps. For decode, the interval includes the uncertain acceptance rate of drafts."""
    residuals = resolved.step_model.residuals(regime)
    accepted = Z_90 * length_spread(resolved) if regime == "decode" else 0.0
    if not accepted:
        return with_interval(value, residuals.low, residuals.high)
    low, high = (math.hypot(math.log1p(end), accepted) for end in (residuals.low, residuals.high))
    return with_interval(value, math.expm1(-low), math.expm1(high))


def _end_to_end(value: float, ttft: Quantity, tpot: Quantity | None) -> Quantity:
    """Return E2E with its interval. The ends of TTFT and of decode time add up, because both errors may coincide."""
    if tpot is None:
        return replace(ttft, value=value)
    if ttft.low is None or ttft.high is None or tpot.low is None or tpot.high is None:
        return Quantity(value=value)
    decode_steps = (value - ttft.value) / tpot.value
    return Quantity(
        value=value, low=ttft.low + decode_steps * tpot.low, high=ttft.high + decode_steps * tpot.high
    )
