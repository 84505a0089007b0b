"""`estimate`: latency, throughput, cost and energy, for one batch in closed form or for a load with queueing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capacity.answers.costs import ServedLoad, cost_of
from capacity.answers.drawn_energy import drawn_energy
from capacity.answers.fit import draft_memory_notes, drafting_notes, fit_with, stored_kv_format
from capacity.answers.intervals import Latencies, predicted_latencies
from capacity.answers.phases import Phases, is_synchronised, phases_of, request_lengths, tower_notes
from capacity.answers.records import (
    Bounds,
    Breakdown,
    Energy,
    Estimate,
    Intensity,
    LaunchSettings,
    OperatorTime,
    Quantity,
    RunMeans,
)
from capacity.base.latency_metrics import FURTHER_METRICS
from capacity.base.record import make_from
from capacity.deployment import Traffic
from capacity.hardware.cost_estimate import CostEstimate, joules_per_token
from capacity.hardware.pricing import Price, price_cautions
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.memory import memory_fraction
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepCost
from capacity.step.closed_form import PhaseTimes, main_bound

if TYPE_CHECKING:
    from capacity.answers.phases import RequestLengths
    from capacity.answers.served import Served


def estimate_of(resolved: ResolvedPool, traffic: Traffic, price: Price | None) -> Estimate:
    """Return the latency, throughput, cost and energy of a batch or a load on one engine.

    Raises DoesNotFit if the model or this many requests do not fit in memory, and InvalidInput for impossible input.
    """
    lengths = request_lengths(resolved, traffic)
    resolved.memory.require_fit()
    phases = phases_of(resolved, traffic, lengths)
    load = phases.served
    latencies = predicted_latencies(resolved, phases, traffic, lengths)
    found = predicted_latencies(resolved, phases, traffic, lengths, as_found=True)
    of_drafts = (*drafting_notes(resolved), *draft_memory_notes(resolved))
    notes = (*resolved.step_model.notes, *of_drafts, *phases.warnings, *price_cautions(price))
    return make_from(
        Estimate,
        fit_with(resolved, notes),
        lengths,
        traffic,
        verdict=None if load is None else load.verdict.verdict,
        verdict_reason=None if load is None else load.verdict.reason,
        in_step=None if load is None else is_synchronised(traffic),
        launch=make_from(
            LaunchSettings,
            resolved,
            traffic,
            engine=resolved.engine.label,
            gpu_memory_utilization=memory_fraction(resolved),
            kv_cache_dtype=stored_kv_format(resolved),
        ),
        **_latencies_by_field(latencies, lengths.output_len),
        ttft_parts_s=None
        if latencies is None
        else _ttft_parts(resolved, lengths.input_len, traffic.client_latency_s, latencies, load),
        as_found=None if found is None else _latencies_by_field(found, lengths.output_len),
        whole_run=_whole_run(load),
        **_step_fields(resolved, phases.times),
        **_rate_fields(resolved, traffic, lengths, phases, latencies, price),
        basis="assumed"
        if tower_notes(resolved, pictured=bool(lengths.images))
        else resolved.step_model.basis,
    )


def _step_fields(resolved: ResolvedPool, times: PhaseTimes) -> dict[str, object]:
    """Return the fields of `Estimate` that describe a prefill step and a decode step of this load."""
    steps = TokenSteps(resolved)
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    return {
        "tokens_per_step": steps.tokens_per_step,
        "bound": Bounds(prefill=main_bound(prefill), decode=None if decode is None else main_bound(decode)),
        "arithmetic_intensity": Intensity(
            prefill_flops_per_byte=prefill.flops / prefill.bytes,
            decode_flops_per_byte=None if decode is None else decode.flops / decode.bytes,
            ridge_flops_per_byte=resolved.ridge_flops_per_byte,
        ),
        "breakdown": breakdown(prefill, decode),
    }


def _rate_fields(
    resolved: ResolvedPool,
    traffic: Traffic,
    lengths: RequestLengths,
    phases: Phases,
    latencies: Latencies | None,
    price: Price | None,
) -> dict[str, object]:
    """Return the fields of `Estimate` on throughput, and on the cost and energy at this throughput."""
    requests_per_s = _throughput(traffic, phases.times, latencies, phases.served)
    billed = _billed_load(lengths, phases).at_rate(requests_per_s.value)
    output_rate = requests_per_s.scale(billed.output_tokens)
    in_flight = _in_flight(phases, requests_per_s, latencies)
    bill = cost_of(price, [(resolved, 1)], billed)
    watts, gpus = resolved.profile.system_watts_per_gpu, resolved.pool.num_gpus
    return {
        "requests_in_flight": in_flight,
        "output_tokens_per_s": output_rate,
        "output_tokens_per_s_per_gpu": output_rate.scale(1 / gpus),
        "output_tokens_per_s_per_user": _tokens_per_s_per_user(
            output_rate, in_flight, latencies, lengths.output_len
        ),
        "requests_per_s": requests_per_s,
        "cost": bill,
        "usd_per_million_input_tokens": _price(bill, "usd_per_million_input_tokens", requests_per_s),
        "usd_per_million_output_tokens": _price(bill, "usd_per_million_output_tokens", requests_per_s),
        "energy": Energy(
            watts_per_gpu=watts,
            joules_per_output_token=joules_per_token(watts, gpus, output_rate.value),
            drawn=drawn_energy([(resolved, 1)], billed, requests_per_s),
        ),
    }


def _latencies_by_field(latencies: Latencies | None, output_len: int) -> dict[str, Quantity | None]:
    """Return the latency fields of `Estimate`. TTFT, TPOT and E2E are predicted, the others are computed from them."""
    found: dict[str, Quantity | None] = (
        dict.fromkeys(Latencies._fields) if latencies is None else latencies._asdict()
    )
    return found | {f"{key}_s": _further_latency(key, latencies, output_len) for key in FURTHER_METRICS}


def _further_latency(key: str, latencies: Latencies | None, output_len: int) -> Quantity | None:
    if latencies is None:
        return None
    from capacity.simulator.metrics import request_latency_s  # loads numpy

    ttft, e2e = latencies.ttft_s, latencies.e2e_s
    value, low, high = (
        None if ttft_s is None or e2e_s is None else request_latency_s(key, ttft_s, e2e_s, output_len)
        for ttft_s, e2e_s in ((ttft.value, e2e.value), (ttft.low, e2e.low), (ttft.high, e2e.high))
    )
    return None if value is None else Quantity(value=value, low=low, high=high)


def _throughput(
    traffic: Traffic, times: PhaseTimes, latencies: Latencies | None, load: Served | None
) -> Quantity:
    """Return requests per second: the served rate for open-loop arrivals, else requests in flight / E2E."""
    if latencies is None:
        return Quantity(value=times.requests_per_s)
    if traffic.request_rate is not None and traffic.concurrency is None:
        served = None if load is None else load.load
        return Quantity(value=traffic.request_rate if served is None else served.requests_per_s)
    own_s = times.e2e_s if load is None or load.steady is None else load.steady.e2e_s
    return latencies.e2e_s.inverse(times.requests_per_s * own_s)


def _billed_load(lengths: RequestLengths, phases: Phases) -> ServedLoad:
    """Return the load for which the cost is computed: the steady-state load of the simulated run, else the batch."""
    if phases.served is not None and phases.served.load is not None:
        return phases.served.load
    return ServedLoad(
        requests_per_s=1.0,
        input_tokens=float(lengths.input_len),
        output_tokens=float(lengths.output_len),
        in_flight=None if phases.served is not None else float(phases.requests),
    )


def _tokens_per_s_per_user(
    output_rate: Quantity, in_flight: float | None, latencies: Latencies | None, output_len: int
) -> Quantity | None:
    """Return the output tokens per second of one user: the output rate / requests in flight or, if arrivals set the
    rate, the output length / E2E. None if the number of requests in flight is unknown."""
    if in_flight is None:
        return None
    if latencies is not None and output_rate.low is None and latencies.e2e_s.low is not None:
        return latencies.e2e_s.inverse(output_len)
    return output_rate.scale(1 / in_flight)


def _in_flight(phases: Phases, requests_per_s: Quantity, latencies: Latencies | None) -> float | None:
    """Return the number of running and waiting requests: the batch size, else the number by Little's law. None if the
    queue grows without bound."""
    if phases.served is None:
        return float(phases.requests)
    return None if latencies is None else requests_per_s.value * latencies.e2e_s.value


def _ttft_parts(
    resolved: ResolvedPool, input_len: int, client_s: float, latencies: Latencies, load: Served | None
) -> Mapping[str, float]:
    """Return the parts of TTFT in seconds, with the same names as in `simulate`."""
    server_s = resolved.engine.server_latency_s(input_len)
    queue_s = 0.0
    if load is not None and load.steady is not None:
        way_s = server_s - resolved.engine.response_latency_s + client_s / 2
        queue_s = max(load.steady.waiting_s - way_s, 0.0)
    return {
        "client": client_s,
        "api server": server_s,
        "queue": queue_s,
        "prefill": latencies.ttft_s.value - client_s - server_s - queue_s,
    }


def _whole_run(load: Served | None) -> RunMeans | None:
    if load is None or load.whole is None or load.steady is None:
        return None
    return make_from(RunMeans, load.whole, num_prompts=load.num_prompts)


def breakdown(prefill: StepCost, decode: StepCost | None) -> Breakdown:
    """Return the operators of one prefill step and of one decode step, with their times."""
    return Breakdown(prefill=_operators(prefill), decode=() if decode is None else _operators(decode))


def _operators(cost: StepCost) -> tuple[OperatorTime, ...]:
    return tuple(make_from(OperatorTime, operator) for operator in cost.operators)


def _price(bill: CostEstimate | None, name: str, requests_per_s: Quantity) -> Quantity | None:
    """Return the field `name` of the bill, in $, with an interval that follows from the interval of the throughput."""
    if bill is None:
        return None
    return requests_per_s.inverse(getattr(bill, name) * requests_per_s.value)
