"""Prefill and decode steps of one load on a pool of equal engines, from which `estimate` and `explain` are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import ESTIMATE_TRAFFIC, Traffic, build
from capacity.deployment.use_cases import filled_notes
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool
from capacity.step import decode_shape
from capacity.step.closed_form import EngineLimits, PhaseTimes, batch_times, closed_loop_times

if TYPE_CHECKING:
    from capacity.answers.served import Served

REQUEST_FIELDS = (
    "input_len", "output_len", "max_tokens", "images_per_prompt", "image_tokens", "image_size", "audio_seconds",
    "audio_tokens", "batch_size", "client_latency_s",
)  # fmt: skip
# range ratio below which requests still wait for each other's prefills: assumed
SYNCHRONISED_RANGE_RATIO = 0.1
EAGER_NOTE_RATIO = 1.1  # minimum ratio, for a note, of decode step times without and with a CUDA graph
ONE_LOAD = (
    "give exactly one of --batch-size (single batch), --concurrency (closed loop), --request-rate (arrivals) and "
    "--users"
)
LOAD_FIELDS = tuple(name for name in ESTIMATE_TRAFFIC if name not in REQUEST_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths:
    """Tokens of a typical request. Its prompt begins with `images` x `image_tokens` tokens, then an audio clip."""

    input_len: int
    output_len: int
    images: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the KV cache at the end of a request."""
        return self.input_len + self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """A load on a pool: its prefill and decode steps in closed form, and the latencies of its clients.

    `requests`: number of requests that run at a time, which is an estimate for a request rate. `times`: simulated times
    of a load, or closed-form times of a batch. `served`: the simulated load; None for a batch, which has no queue.
    """

    times: PhaseTimes
    requests: int
    served: Served | None
    warnings: tuple[str, ...]


def estimate_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keywords of traffic unchanged. Raises InvalidInput for a keyword that only `simulate` supports."""
    for name in fields:
        if name not in ESTIMATE_TRAFFIC:
            raise InvalidInput(f"estimate does not take {name!r}: use `simulate`")
    return fields


def traffic_of(fields: Mapping[str, Any]) -> Traffic:
    """Return the traffic of an estimate from its keywords. Raises InvalidInput."""
    return build(Traffic, estimate_fields(fields))


def request_lengths(resolved: ResolvedPool, traffic: Traffic) -> RequestLengths:
    """Return the lengths of a typical request. Raises InvalidInput without lengths, or unless one load is set."""
    if traffic.input_len is None or traffic.output_len is None:
        missing = "--input-len" if traffic.input_len is None else "--output-len"
        raise InvalidInput(
            f"no {missing}: give --input-len and --output-len (tokens of a typical request), or --use-case chat"
        )
    loaded = traffic.concurrency is not None or traffic.request_rate is not None
    if loaded == (traffic.batch_size is not None):
        raise InvalidInput(ONE_LOAD)
    _check_load(traffic)
    check_output_len(resolved, traffic.output_len)
    images, size, audio = traffic.images_per_prompt, traffic.image_tokens or 0, traffic.audio_tokens or 0
    lengths = RequestLengths(
        input_len=traffic.input_len + images * size + audio,
        output_len=traffic.output_len,
        images=images,
        image_tokens=size,
        audio_tokens=audio,
    )
    check_length(resolved, lengths.tokens)
    return lengths


def _check_load(traffic: Traffic) -> None:
    """Raise InvalidInput for options that do not apply to a batch, and for an infinite request rate."""
    if traffic.request_rate == math.inf:
        raise InvalidInput("--request-rate inf sends all at once: use `capacity simulate`, or --batch-size N")
    if traffic.batch_size is None:
        return
    given, fields = traffic.model_fields_set, type(traffic).model_fields
    if idle := [n for n in LOAD_FIELDS if n in given and getattr(traffic, n) != fields[n].default]:
        flag = idle[0].replace("_", "-")
        raise InvalidInput(
            f"--{flag} has no effect with --batch-size, whose requests are identical and start together: "
            "leave it out, or give --concurrency or --request-rate"
        )


def check_output_len(resolved: ResolvedPool, output_len: int | None) -> None:
    """Raise InvalidInput for more than one output token of a model that generates no tokens."""
    if resolved.model.task == "embed" and output_len not in (None, 1):
        raise InvalidInput(f"{resolved.model.name} generates no tokens: use --output-len 1")


def check_length(resolved: ResolvedPool, tokens: int) -> None:
    """Raise InvalidInput for a request without tokens or longer than the engine accepts."""
    if tokens < 1:
        raise InvalidInput(f"a request must have at least 1 token, not {tokens}")
    if tokens > resolved.max_model_len:
        raise InvalidInput(
            f"a request of {tokens} tokens exceeds max_model_len {resolved.max_model_len}: "
            "shorten --input-len or --output-len, or raise --max-model-len"
        )


def tower_notes(resolved: ResolvedPool, *, pictured: bool) -> tuple[str, ...]:
    """Return a note on the assumed vision tower that encodes images; empty without images."""
    tower = resolved.model.vision
    if tower is None or tower.assumed is None or not pictured:
        return ()
    return (
        f"The vision tower of {resolved.model.name} is assumed to be {tower.assumed}; its time was not measured.",
    )


def is_synchronised(traffic: Traffic) -> bool:
    """Return whether the requests of a closed loop have equal lengths, so that they start and end together."""
    loop = traffic.trace is None and traffic.request_rate is None and (traffic.concurrency or 1) > 1
    return (
        loop
        and traffic.length_distribution == "uniform"
        and traffic.random_range_ratio < SYNCHRONISED_RANGE_RATIO
    )


def equal_length_notes(traffic: Traffic) -> tuple[str, ...]:
    """Return a note on the effect of equal lengths in a closed loop; empty for other traffic."""
    if not is_synchronised(traffic):
        return ()
    return (
        "With identical request lengths, a closed loop synchronises: requests queue behind each other's prefills. "
        "Set --random-range-ratio if your lengths vary, because TTFT is then lower.",
    )


def phases_of(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> Phases:
    """Return the steps of a batch in closed form, or of a simulated load. Raises DoesNotFit or InvalidInput."""
    slots = _slots(resolved, traffic, lengths)
    seen = tower_notes(resolved, pictured=bool(lengths.images))
    if traffic.batch_size is not None:
        limits = _limits(resolved, traffic, lengths)
        times = batch_over_ranks(resolved, limits, traffic.batch_size, lengths)
        notes = (*filled_notes(traffic), *seen, *resolved.split_notes(lengths.input_len, traffic.batch_size))
        notes += _eager_notes(resolved, traffic.batch_size, lengths)
        return Phases(times=times, requests=traffic.batch_size, served=None, warnings=notes)
    times, load = load_times(resolved, traffic, lengths)
    requests = _running_requests(load, slots)
    return Phases(
        times=times,
        requests=requests,
        served=load,
        warnings=(
            *filled_notes(traffic),
            *seen,
            *_load_notes(resolved, traffic, slots),
            *_eager_notes(resolved, requests, lengths),
            *resolved.split_notes(lengths.input_len),
        ),
    )


def _eager_notes(resolved: ResolvedPool, requests: int, lengths: RequestLengths) -> tuple[str, ...]:
    """Return a note if this many requests run without a CUDA graph: none has their size, or decode is much slower."""
    steps, rows = resolved.step_model, math.ceil(requests / resolved.pool.data_parallel_size)
    most = steps.largest_graph
    if most is None or resolved.pool.speculator is not None or lengths.output_len < 2:
        return ()
    if rows <= most and steps.graph_rows(rows) is None:
        return (
            f"No CUDA graph has {rows} requests, and batches are not padded, so decode steps are launched kernel by "
            f"kernel. Set --cudagraph-padding, or --max-cudagraph-capture-size {rows}.",
        )
    if rows <= most:
        return ()
    within, beyond = (steps.step_seconds(decode_shape(n, lengths.input_len)) for n in (most, most + 1))
    if beyond < EAGER_NOTE_RATIO * within:
        return ()
    return (
        f"{rows} requests per step exceed the largest CUDA graph ({most}), so decode steps are launched kernel by "
        f"kernel: {beyond * 1e3:.3g} ms for {most + 1} requests, {within * 1e3:.3g} ms for {most}. Set --max-num-seqs "
        f"{most}, or raise --max-cudagraph-capture-size if the engine supports it.",
    )


def _limits(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> EngineLimits:
    limits = resolved.limits_from(traffic.client_latency_s)
    return replace(
        limits,
        images_per_prompt=lengths.images,
        image_tokens=lengths.image_tokens,
        audio_tokens=lengths.audio_tokens,
    )


def load_times(
    resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths
) -> tuple[PhaseTimes, Served]:
    """Return the times of a load as its clients see them, and its simulated run. Raises as `phases_of`."""
    from capacity.answers.served import serve_load  # loads the simulator

    slots = _slots(resolved, traffic, lengths)
    load = serve_load(resolved, traffic, slots)
    limits = _limits(resolved, traffic, lengths)
    return _with_client_times(
        _loop_over_ranks(resolved, limits, _running_requests(load, slots), lengths), load
    ), load


def _running_requests(load: Served, slots: int) -> int:
    """Return the number of requests that run at a time: the mean number in flight, limited to `slots`."""
    in_flight = slots if load.steady is None else load.steady.in_flight
    return max(min(round(in_flight), slots), 1)


def _with_client_times(form: PhaseTimes, load: Served) -> PhaseTimes:
    """Return the closed-form times with the latencies and the request rate that clients see. Without a steady state,
    only the rate is replaced, by the maximum throughput."""
    means = load.steady
    if means is None:
        most = load.verdict.capacity_requests_per_s
        return form if most is None else replace(form, requests_per_s=most)
    return replace(
        form, ttft_s=means.ttft_s, tpot_s=means.tpot_s, e2e_s=means.e2e_s, requests_per_s=means.requests_per_s
    )


def batch_over_ranks(
    resolved: ResolvedPool, limits: EngineLimits, batch_size: int, lengths: RequestLengths
) -> PhaseTimes:
    """Return the times of a batch that is divided over data-parallel ranks, for the rank with the most requests."""
    share = math.ceil(batch_size / resolved.pool.data_parallel_size)
    times = batch_times(
        TokenSteps(resolved), limits, share, input_len=lengths.input_len, output_len=lengths.output_len
    )
    return replace(times, requests_per_s=times.requests_per_s * batch_size / share)


def _loop_over_ranks(
    resolved: ResolvedPool, limits: EngineLimits, concurrency: int, lengths: RequestLengths
) -> PhaseTimes:
    """Return the times of a closed loop whose requests are divided over data-parallel ranks, which step together or
    independently, and over one micro-batch per pipeline stage."""
    streams = min(resolved.overlapping_stages, concurrency)
    share = math.ceil(concurrency / resolved.independent_ranks / streams)
    times = closed_loop_times(
        TokenSteps(resolved),
        limits,
        share,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
        ranks=min(resolved.lockstep_ranks, share),
    )
    return replace(times, requests_per_s=times.requests_per_s * concurrency / share)


def _slots(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> int:
    """Return how many requests of these lengths run at once at most. Raises an error if one or the batch cannot run."""
    plan, ranks = resolved.memory, resolved.pool.data_parallel_size
    tokens = _reserved_tokens(resolved, traffic, lengths)
    held, seats = ranks * TokenSteps(resolved).concurrent_requests(tokens), ranks * resolved.max_num_seqs
    if traffic.batch_size is not None and traffic.batch_size > seats:
        raise InvalidInput(
            f"--batch-size {traffic.batch_size} exceeds max_num_seqs {seats}: {resolved.concurrency_advice}"
        )
    needed = traffic.batch_size or 1
    if held < needed:
        fewer = f", or --batch-size {held}" if held else ""
        drafter = "" if resolved.pool.speculator is None else " in addition to the drafter"
        raise DoesNotFit(
            f"{needed} x {tokens} tokens exceed the KV cache of {ranks * plan.kv_capacity_tokens} tokens, "
            f"which holds {held} such requests{drafter}; {resolved.memory_advice}{fewer}",
            needed_bytes=needed * tokens * plan.kv_bytes_per_token,
            usable_bytes=plan.kv_cache_bytes,
        )
    return min(held, seats)


def _reserved_tokens(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> int:
    """Return the KV tokens that a request reserves: its final length or, for some engines, prompt plus max_tokens."""
    if traffic.max_tokens is None or not resolved.engine.reserves_output:
        return lengths.tokens
    return min(lengths.input_len + max(traffic.max_tokens, lengths.output_len), resolved.max_model_len)


def _load_notes(resolved: ResolvedPool, traffic: Traffic, slots: int) -> tuple[str, ...]:
    """Return notes on a load: synchronised requests, waiting requests, and when data-parallel ranks prefill."""
    notes = list(equal_length_notes(traffic))
    concurrency = traffic.concurrency or 0
    if slots < concurrency:
        seats = resolved.pool.data_parallel_size * resolved.max_num_seqs
        bound = "max_num_seqs" if slots == seats else "the KV cache"
        notes.append(f"Only {slots} of the {concurrency} requests run at a time (limit: {bound}).")
    if resolved.lockstep_ranks > 1:
        notes.append("The prefill step shown assumes that all data-parallel ranks prefill at the same time.")
    return tuple(notes)
