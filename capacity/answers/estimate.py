"""`estimate`: latency, throughput, cost and energy of a batch or a closed loop, in closed form."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from capacity.answers.fit import fit_with, without_drafts
from capacity.answers.phases import estimate_fields, phases_of, request_lengths
from capacity.answers.records import (
    Bounds,
    Breakdown,
    Energy,
    Estimate,
    Fit,
    Intensity,
    OperatorTime,
    Quantity,
)
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, deployment_of
from capacity.hardware.pricing import CostEstimate, Price, cost_estimate, joules_per_token, price_of
from capacity.model import ModelSpec
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import StepCost
from capacity.step.closed_form import PhaseTimes, main_bound


@documented(Pool, Traffic, Cost)
def estimate(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Estimate:
    """TTFT, TPOT, throughput, cost and energy at a `batch_size` or a closed loop's `concurrency`.

    Raises DoesNotFit where the model, or that many requests, exceed the memory; InvalidInput for what cannot be.
    """
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    deployment = deployment_of(
        model, pool=pool, traffic=estimate_fields(traffic), cost=cost, question="estimate"
    )
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles, download=download)
    return estimate_of(resolved, deployment.traffic, price_of(resolved.profile.name, deployment.cost))


def estimate_of(resolved: ResolvedPool, traffic: Traffic, price: Price | None) -> Estimate:
    """`estimate` of what was looked up before: of many points, the pool's once. Raises as `estimate`."""
    lengths = request_lengths(without_drafts(resolved), traffic)
    resolved.memory.require_fit()
    phases = phases_of(resolved, traffic, lengths)
    times, steps = phases.times, resolved.step_model
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    ttft = with_interval(times.ttft_s, *_band(resolved, "prefill"))
    tpot = None if times.tpot_s is None else with_interval(times.tpot_s, *_band(resolved, "decode"))
    e2e = _sum_interval(times.e2e_s, ttft, tpot, lengths.output_len - 1)
    requests_per_s = e2e.inverse(times.requests_per_s * e2e.value)
    output_rate = requests_per_s.scaled(lengths.output_len)
    bill = cost_of(
        price,
        times,
        num_gpus=resolved.pool.num_gpus,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
    )
    memory = fit_with(resolved, (*steps.notes, *phases.warnings))
    return Estimate(
        **{field.name: getattr(memory, field.name) for field in fields(Fit)},
        input_len=lengths.input_len,
        output_len=lengths.output_len,
        batch_size=traffic.batch_size,
        concurrency=traffic.concurrency,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        output_tokens_per_s=output_rate,
        output_tokens_per_s_per_gpu=output_rate.scaled(1 / resolved.pool.num_gpus),
        output_tokens_per_s_per_user=output_rate.scaled(1 / (traffic.batch_size or traffic.concurrency or 1)),
        requests_per_s=requests_per_s,
        bound=Bounds(prefill=main_bound(prefill), decode=None if decode is None else main_bound(decode)),
        arithmetic_intensity=_intensity(resolved, prefill, decode),
        breakdown=breakdown(prefill, decode),
        cost=bill,
        usd_per_million_input_tokens=_price(bill, "usd_per_million_input_tokens", requests_per_s),
        usd_per_million_output_tokens=_price(bill, "usd_per_million_output_tokens", requests_per_s),
        energy=_energy(resolved, output_rate.value),
        basis=steps.basis,
    )


def with_interval(value: float, low: float | None, high: float | None) -> Quantity:
    """A prediction with the relative errors that bound it, where there are any."""
    return Quantity(
        value=value,
        low=None if low is None else value * (1 + low),
        high=None if high is None else value * (1 + high),
    )


def _band(resolved: ResolvedPool, regime: Literal["prefill", "decode"]) -> tuple[float | None, float | None]:
    """The 90 % band of measured over predicted, minus one, of one regime."""
    residuals = resolved.step_model.residuals(regime)
    return (residuals.low, residuals.high)


def _sum_interval(value: float, ttft: Quantity, tpot: Quantity | None, decode_steps: int) -> Quantity:
    """E2E from its parts: their errors may coincide, so their bounds add."""
    if tpot is None:
        return ttft
    if ttft.low is None or ttft.high is None or tpot.low is None or tpot.high is None:
        return Quantity(value=value)
    return Quantity(
        value=value, low=ttft.low + decode_steps * tpot.low, high=ttft.high + decode_steps * tpot.high
    )


def breakdown(prefill: StepCost, decode: StepCost | None) -> Breakdown:
    """The operators of both phases' steps."""
    return Breakdown(prefill=_operators(prefill), decode=() if decode is None else _operators(decode))


def _operators(cost: StepCost) -> tuple[OperatorTime, ...]:
    return tuple(
        OperatorTime(name=op.name, seconds=op.seconds, flops=op.flops, bytes=op.bytes, bound=op.bound)
        for op in cost.operators
    )


def _intensity(resolved: ResolvedPool, prefill: StepCost, decode: StepCost | None) -> Intensity:
    return Intensity(
        prefill_flops_per_byte=prefill.flops / prefill.bytes,
        decode_flops_per_byte=None if decode is None else decode.flops / decode.bytes,
        ridge_flops_per_byte=resolved.ridge_flops_per_byte,
    )


def cost_of(
    price: Price | None, times: PhaseTimes, *, num_gpus: int, input_len: int, output_len: int
) -> CostEstimate | None:
    """What a load costs that runs at the speed of its closed form; None without a price."""
    if price is None:
        return None
    return cost_estimate(
        price,
        num_gpus=num_gpus,
        requests_per_s=times.requests_per_s,
        input_tokens=input_len,
        output_tokens=output_len,
        prefill_share=times.prefill_share,
    )


def _price(bill: CostEstimate | None, name: str, requests_per_s: Quantity) -> Quantity | None:
    """A price per token with the interval of the throughput that it divides by."""
    if bill is None:
        return None
    return requests_per_s.inverse(getattr(bill, name) * requests_per_s.value)


def _energy(resolved: ResolvedPool, output_tokens_per_s: float) -> Energy:
    watts = resolved.profile.system_watts_per_gpu
    return Energy(
        watts_per_gpu=watts,
        joules_per_output_token=joules_per_token(watts, resolved.pool.num_gpus, output_tokens_per_s),
    )
