"""Prefill and decode of one load on one pool, in closed form: what `estimate` and `explain` stand on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import CLOSED_FORM_TRAFFIC, Traffic, build
from capacity.pool.resolve import ResolvedPool
from capacity.step.closed_form import EngineLimits, PhaseTimes, batch_times, closed_loop_times


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths:
    """Tokens of a typical request."""

    input_len: int
    output_len: int

    @property
    def tokens(self) -> int:
        """What its KV cache holds at its end."""
        return self.input_len + self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Times of `requests` requests at a time, of those that the traffic asks for."""

    times: PhaseTimes
    requests: int
    warnings: tuple[str, ...]


def estimate_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The traffic's keywords as they are. Raises InvalidInput for one that only a simulation answers to."""
    for name in fields:
        if name not in CLOSED_FORM_TRAFFIC:
            raise InvalidInput(f"estimate takes no {name!r}: `simulate` does")
    return fields


def traffic_of(fields: Mapping[str, Any]) -> Traffic:
    """The traffic of an estimate. Raises InvalidInput."""
    return build(Traffic, estimate_fields(fields))


def request_lengths(resolved: ResolvedPool, traffic: Traffic) -> RequestLengths:
    """The lengths of the traffic's requests. Raises InvalidInput without them, or without one load."""
    if traffic.input_len is None or traffic.output_len is None:
        missing = "--input-len" if traffic.input_len is None else "--output-len"
        raise InvalidInput(f"no {missing}: give the tokens of a typical request")
    if (traffic.batch_size is None) == (traffic.concurrency is None):
        raise InvalidInput("give one of --batch-size (a batch alone) and --concurrency (a closed loop)")
    lengths = RequestLengths(input_len=traffic.input_len, output_len=traffic.output_len)
    check_length(resolved, lengths.tokens)
    return lengths


def check_length(resolved: ResolvedPool, tokens: int) -> None:
    """Raises InvalidInput for a request that is longer than the engine takes."""
    if tokens > resolved.max_model_len:
        raise InvalidInput(
            f"a request of {tokens} tokens exceeds max_model_len {resolved.max_model_len}: "
            "shorten --input-len or --output-len, or raise --max-model-len"
        )


def phases_of(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> Phases:
    """The closed form of the traffic. Raises DoesNotFit, and InvalidInput for a batch beyond max_num_seqs."""
    requests = _requests_at_a_time(resolved, traffic, lengths)
    return Phases(
        times=phase_times(resolved, traffic, requests, lengths),
        requests=requests,
        warnings=_closed_loop_notes(resolved, traffic.concurrency, requests),
    )


def phase_times(
    resolved: ResolvedPool, traffic: Traffic, requests: int, lengths: RequestLengths
) -> PhaseTimes:
    """`requests` at a time, as a batch or in a closed loop, whichever the traffic is."""
    formula = _batch_over_ranks if traffic.batch_size is not None else _loop_over_ranks
    return formula(resolved, resolved.limits_from(traffic.client_latency_s), requests, lengths)


def _batch_over_ranks(
    resolved: ResolvedPool, limits: EngineLimits, batch_size: int, lengths: RequestLengths
) -> PhaseTimes:
    """A batch spread over the data-parallel ranks; the fullest takes as long as all."""
    share = math.ceil(batch_size / resolved.pool.data_parallel_size)
    times = batch_times(
        resolved.step_model,
        limits,
        share,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
    )
    return replace(times, requests_per_s=times.requests_per_s * batch_size / share)


def _loop_over_ranks(
    resolved: ResolvedPool, limits: EngineLimits, concurrency: int, lengths: RequestLengths
) -> PhaseTimes:
    """A closed loop spread over the data-parallel ranks: in lock-step, or each on its own."""
    share = math.ceil(concurrency / resolved.independent_ranks)
    times = closed_loop_times(
        resolved.step_model,
        limits,
        share,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
        ranks=resolved.lockstep_ranks,
    )
    return replace(times, requests_per_s=times.requests_per_s * concurrency / share)


def _requests_at_a_time(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> int:
    """How many run at once; a batch that cannot raises, a closed loop waits."""
    plan, ranks = resolved.memory, resolved.pool.data_parallel_size
    tokens = _reserved_tokens(resolved, traffic, lengths)
    held, seats = ranks * resolved.concurrent_requests(tokens), ranks * resolved.max_num_seqs
    wanted = traffic.batch_size or traffic.concurrency or 1
    if traffic.batch_size is not None and traffic.batch_size > seats:
        raise InvalidInput(
            f"--batch-size {traffic.batch_size} exceeds max_num_seqs {seats}: raise --max-num-seqs"
        )
    if held < 1 or (traffic.batch_size is not None and held < traffic.batch_size):
        needed = 1 if held < 1 else wanted
        raise DoesNotFit(
            f"{needed} x {tokens} tokens exceed the KV cache of {ranks * plan.kv_capacity_tokens} tokens, "
            f"which holds {held} such requests; {resolved.more_memory}",
            needed_bytes=needed * tokens * plan.kv_bytes_per_token,
            usable_bytes=plan.kv_cache_bytes,
        )
    return min(wanted, held, seats)


def _reserved_tokens(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> int:
    """Tokens that a request keeps from others: what it holds at its end, or all that it asks for (max_tokens)."""
    if traffic.max_tokens is None or not resolved.engine.reserves_output:
        return lengths.tokens
    return min(lengths.input_len + max(traffic.max_tokens, lengths.output_len), resolved.max_model_len)


def _closed_loop_notes(resolved: ResolvedPool, concurrency: int | None, requests: int) -> tuple[str, ...]:
    """What the closed form of a loop leaves out; nothing of a batch."""
    if concurrency is None:
        return ()
    notes = ["ttft_s is without queueing behind other requests; `capacity simulate` gives it with queueing"]
    if requests < concurrency:
        seats = resolved.pool.data_parallel_size * resolved.max_num_seqs
        bound = "max_num_seqs" if requests == seats else "the KV cache"
        notes.append(f"{bound} holds {requests} of the {concurrency} requests at a time; the others wait")
    if resolved.lockstep_ranks > 1:
        notes.append("the prefill step shown is one in which every data-parallel rank prefills")
    return tuple(notes)
