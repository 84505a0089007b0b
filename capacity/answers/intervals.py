"""Predictions with the interval that their kind has earned: of step times, and of means over served runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from capacity.answers.records import Quantity
from capacity.deployment import Traffic
from capacity.deployment.client_latency import LEAST_S, MOST_S
from capacity.hardware.served_bands import served_band
from capacity.pool.resolve import ResolvedPool

if TYPE_CHECKING:
    from capacity.answers.served import Served
    from capacity.simulator.load_means import LoadMeans
    from capacity.step.closed_form import PhaseTimes


class Latencies(NamedTuple):
    """What clients see; `tpot_s` is None for single output tokens."""

    ttft_s: Quantity
    tpot_s: Quantity | None
    e2e_s: Quantity


def with_interval(value: float, low: float | None, high: float | None) -> Quantity:
    """A prediction with the relative errors that bound it, where there are any."""
    return Quantity(
        value=value,
        low=None if low is None else value * (1 + low),
        high=None if high is None else value * (1 + high),
    )


def beside_client(quantity: Quantity, traffic: Traffic, *, unit_s: float = 1.0) -> Quantity:
    """A time to first token, or to the last, with what is not known of its client: nothing where the traffic says it.

    Clients of published benchmarks are `LEAST_S` to `MOST_S` away; that and the rest of the interval are independent.
    `unit_s`: seconds of the quantity's unit.
    """
    if "client_latency_s" in traffic.model_fields_set:
        return quantity
    value, low, high = quantity.value, quantity.low, quantity.high
    nearer, farther = ((limit_s - traffic.client_latency_s) / unit_s for limit_s in (LEAST_S, MOST_S))
    return Quantity(
        value=value,
        low=None if low is None else value - math.hypot(value - low, nearer),
        high=None if high is None else value + math.hypot(high - value, farther),
    )


def served_mean(metric: Literal["ttft", "tpot"], value: float, resolved: ResolvedPool) -> Quantity:
    """A simulated mean with the band that such means earned against served runs."""
    band = served_band(metric, is_moe=resolved.model.is_moe).widened(resolved.step_model.error_factor)
    return with_interval(value, band.low, band.high)


def batch_latencies(resolved: ResolvedPool, times: PhaseTimes) -> Latencies:
    """The closed form of a batch with the bands of its steps."""
    ttft = _of_steps(resolved, "prefill", times.ttft_s)
    tpot = None if times.tpot_s is None else _of_steps(resolved, "decode", times.tpot_s)
    return Latencies(ttft, tpot, _end_to_end(times.e2e_s, ttft, tpot))


def _of_steps(resolved: ResolvedPool, regime: Literal["prefill", "decode"], value: float) -> Quantity:
    """The 90 % band of measured over predicted steps of one regime."""
    residuals = resolved.step_model.residuals(regime)
    return with_interval(value, residuals.low, residuals.high)


def served_latencies(resolved: ResolvedPool, load: Served) -> Latencies | None:
    """Means of a load's steady state; None where it has none.

    Their intervals hold those of the regimes that the traffic leaves open, and the mean over the whole run. Of arrivals
    close to what the engine serves, TTFT and E2E have no upper end.
    """
    if load.steady is None:
        return None
    own = _of_means(resolved, load.steady)
    regimes = [own, *(_of_means(resolved, means) for means in (load.differing,) if means is not None)]
    if load.whole is not None:
        regimes.append(_as_they_are(load.whole))
    covered = Latencies(
        own.ttft_s.covering(*(each.ttft_s for each in regimes)),
        None if own.tpot_s is None else own.tpot_s.covering(*(each.tpot_s for each in regimes)),
        own.e2e_s.covering(*(each.e2e_s for each in regimes)),
    )
    if load.verdict.verdict == "saturated" and load.verdict.load_fraction is not None:
        unbounded = (replace(each, high=None) for each in (covered.ttft_s, covered.e2e_s))
        return Latencies(next(unbounded), covered.tpot_s, next(unbounded))
    return covered


def _of_means(resolved: ResolvedPool, means: LoadMeans) -> Latencies:
    ttft = served_mean("ttft", means.ttft_s, resolved)
    tpot = None if means.tpot_s is None else served_mean("tpot", means.tpot_s, resolved)
    return Latencies(ttft, tpot, _end_to_end(means.e2e_s, ttft, tpot))


def _as_they_are(means: LoadMeans) -> Latencies:
    """Means without an error of their own."""
    ttft, e2e = (with_interval(value, 0.0, 0.0) for value in (means.ttft_s, means.e2e_s))
    return Latencies(ttft, None if means.tpot_s is None else with_interval(means.tpot_s, 0.0, 0.0), e2e)


def _end_to_end(value: float, ttft: Quantity, tpot: Quantity | None) -> Quantity:
    """E2E from its parts: their errors may coincide, so their bounds add."""
    if tpot is None:
        return replace(ttft, value=value)
    if ttft.low is None or ttft.high is None or tpot.low is None or tpot.high is None:
        return Quantity(value=value)
    decode_steps = (value - ttft.value) / tpot.value
    return Quantity(
        value=value, low=ttft.low + decode_steps * tpot.low, high=ttft.high + decode_steps * tpot.high
    )
