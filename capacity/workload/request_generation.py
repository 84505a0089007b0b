"""Convert the specification `Traffic` to requests, which are generated or read from a trace."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.deployment.traffic import parse_priority_shares
from capacity.deployment.use_cases import SPREAD_FIELDS, filled_notes
from capacity.workload.arrivals import (
    PartOfArrivals,
    PeriodicArrivals,
    RampArrivals,
    SteadyArrivals,
    busiest_part,
    diurnal,
    most_arrivals,
    on_off,
)
from capacity.workload.clients import Clients, client_mix, user_loop
from capacity.workload.columns import MAX_REQUEST_TOKENS, IntArray
from capacity.workload.lengths import FixedLengths, GammaLengths, Lengths, LognormalLengths, UniformLengths
from capacity.workload.randomness import random_stream
from capacity.workload.sessions import start_sessions_at_rate
from capacity.workload.synthetic import SharedPrefixes, ThinkTime, conversations, synthetic
from capacity.workload.traces import read_trace
from capacity.workload.windows import WINDOW_S, duration_text
from capacity.workload.workload import Workload

DEFAULT_NUM_PROMPTS = 1000  # as `vllm bench serve`
REQUESTS_PER_SLOT = 10  # default number of requests for each request in flight, as in published benchmarks
MAX_PROMPTS = 50_000  # limit of that number, and of a longer run to reach a steady state
# most requests of a varying rate; a longer period is reduced to its busiest part
MAX_REQUESTS_PER_PERIOD = 5_000
REQUESTS_PER_USER = 5  # default number of requests per user of a closed loop

GENERATED_FIELDS = (  # fields of generated requests, which a trace does not use
    "input_len", "output_len", "length_distribution", "input_len_cv", "output_len_cv", "length_correlation",
    "random_range_ratio", "random_prefix_len", "num_prefixes", "prefix_zipf", "turns", "think_time_s", "burstiness",
    "arrivals", "on_s", "off_s", "off_request_rate", "end_request_rate", "ramp_s", "day_peak_to_mean", "day_length_s",
    "clients", "client_zipf", "client_length_cv",
)  # fmt: skip


def workload_of(traffic: Traffic, longest_tokens: int | None = None) -> Workload:
    """Return the requests that `traffic` describes: read from a trace, or generated from lengths and arrivals.

    Unless the user sets the variation of lengths, lengths are limited so that prompt plus output is at most
    `longest_tokens`. Raises InvalidInput for no load or two loads, and MalformedFile for a trace that cannot be read.
    """
    workload = (
        _generate_with_rate(traffic, longest_tokens)
        if traffic.trace is None
        else _from_trace(traffic, traffic.trace)
    )
    workload = replace(workload, notices=(*filled_notes(traffic), *workload.notices))
    if traffic.images_per_prompt or traffic.audio_tokens is not None:
        workload = _add_images(workload, traffic)
    if traffic.turns == traffic.clients == 1 and traffic.trace is None:
        workload = _add_expected_lengths(workload, traffic)
    if traffic.max_request_tokens is not None:
        workload = workload.fit_to(traffic.max_request_tokens, how=traffic.long_requests)
    if traffic.num_adapters is not None:
        workload = _assign_adapters(workload, traffic, traffic.num_adapters)
    if traffic.priority_shares is not None:
        workload = _assign_priorities(workload, traffic, parse_priority_shares(traffic.priority_shares))
    if traffic.cache_salts is not None:
        workload = _assign_tenants(workload, traffic, traffic.cache_salts)
    return workload if traffic.max_tokens is None else _set_max_tokens(workload, traffic, traffic.max_tokens)


def _add_expected_lengths(workload: Workload, traffic: Traffic) -> Workload:
    """Return the workload with `expected_over_mean`: mean of the length distribution / mean of the drawn lengths."""
    text = _lengths(traffic, traffic.input_len or 0, traffic.input_len_cv, math.inf).mean_tokens
    output = _lengths(traffic, traffic.output_len or 0, traffic.output_len_cv, math.inf).mean_tokens
    prompt = text + traffic.random_prefix_len + float(workload.encoded_tokens[0])  # the same for all requests
    drawn_prompt, drawn_output = workload.mean_prompt_tokens, float(workload.output_tokens.mean())
    return replace(workload, expected_over_mean=(prompt / drawn_prompt, output / drawn_output))


def _generate_with_rate(traffic: Traffic, longest_tokens: int | None) -> Workload:
    """Return generated requests, with their mean rate and the part of a varying rate's period that they cover."""
    workload, rate = _generate(traffic, longest_tokens), traffic.request_rate
    if rate is None or math.isinf(rate):
        return workload
    part = _busiest_part(traffic) if traffic.arrivals != "steady" else None
    if part is not None:
        name = f"{workload.name}, {part}"
        return replace(workload, asked_per_s=part.mean_per_s, name=name, part=str(part))
    return replace(workload, asked_per_s=rate) if traffic.arrivals in ("steady", "diurnal") else workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The part of the period of a varying rate (such as a day) for which `requests` requests are generated."""

    requests: int
    arrivals: PartOfArrivals
    lasts_s: float
    mean_per_s: float
    period_s: float

    def __str__(self) -> str:
        return (
            f"the busiest {duration_text(self.lasts_s)} of {duration_text(self.period_s)} "
            f"({self.requests / self.lasts_s:,.3g} requests/s; mean {self.mean_per_s:,.3g}/s)"
        )


def _busiest_part(traffic: Traffic) -> _Part | None:
    """Return the busiest part of the period of a varying rate; None if requests are generated for a whole period.

    With `num_prompts`, the part has this many requests. Otherwise, a period of up to `MAX_REQUESTS_PER_PERIOD` requests
    is generated as a whole. Of a longer period, the part is the busiest `WINDOW_S` seconds, limited to
    `MAX_REQUESTS_PER_PERIOD` requests.
    """
    process = _varying_rate(traffic)
    mean_per_s, period_s = _mean_and_period(process)
    requests, within = traffic.num_prompts, mean_per_s * period_s
    beyond = process.end_rate_per_s if isinstance(process, RampArrivals) else 0.0  # a ramp keeps its end rate
    if requests is None:
        if within <= MAX_REQUESTS_PER_PERIOD:
            return None
        requests = round(most_arrivals(process, within + beyond * WINDOW_S, WINDOW_S))
        requests = min(max(requests, DEFAULT_NUM_PROMPTS), MAX_REQUESTS_PER_PERIOD)
    if not 0 < requests < math.floor(within):
        return None
    arrivals = busiest_part(process, within + (requests if beyond else 0), requests)
    lasts_s = float(arrivals.when_s(np.array([float(requests)]))[0])
    return _Part(
        requests=requests, arrivals=arrivals, lasts_s=lasts_s, mean_per_s=mean_per_s, period_s=period_s
    )


def _mean_and_period(process: RampArrivals | PeriodicArrivals) -> tuple[float, float]:
    """Return the mean rate (requests/s) and the period (s); the period of a ramp is `ramp_s`."""
    if isinstance(process, RampArrivals):
        return (process.start_rate_per_s + process.end_rate_per_s) / 2, process.ramp_s
    return process.mean_rate_per_s, sum(process.durations_s)


def _assign_adapters(workload: Workload, traffic: Traffic, num_adapters: int) -> Workload:
    """Assign one of `num_adapters` adapters to each request, or to each session, with Zipf popularity."""
    if workload.adapter is not None:
        raise InvalidInput("the trace has the adapter of every request: remove --num-adapters")
    rng = random_stream(traffic.seed, "adapters")
    popular = SharedPrefixes(1, num_adapters, traffic.adapter_skew)
    return replace(workload, adapter=1 + _draw_by_session(workload, lambda count: popular.pick(count, rng)))


def _assign_priorities(workload: Workload, traffic: Traffic, shares: Mapping[int, float]) -> Workload:
    """Assign a priority to each request, or to each session; `shares` is the fraction of each priority."""
    if workload.priority is not None:
        raise InvalidInput("the trace has the priority of every request: remove --priority-shares")
    rng, kinds = random_stream(traffic.seed, "priorities"), np.array(list(shares))
    return replace(
        workload, priority=_draw_by_session(workload, lambda n: rng.choice(kinds, n, p=list(shares.values())))
    )


def _assign_tenants(workload: Workload, traffic: Traffic, salts: int) -> Workload:
    """Assign one of `salts` tenants to each request, or to each session; tenants share no prefixes in the cache."""
    if workload.content is None:
        raise InvalidInput("--cache-salts has no effect, because no two prompts share a prefix: remove it")
    rng = random_stream(traffic.seed, "salts")
    salt = _draw_by_session(workload, lambda n: rng.integers(salts, size=n))
    return replace(workload, content=workload.content.add_salt(salt))


def _draw_by_session(workload: Workload, draw: Callable[[int], IntArray]) -> IntArray:
    if workload.session is None:
        return draw(len(workload))
    sessions, session = np.unique(workload.session, return_inverse=True)
    return draw(len(sessions))[session]


def _add_images(workload: Workload, traffic: Traffic) -> Workload:
    if traffic.images_per_prompt and traffic.image_tokens is None:
        raise InvalidInput("--images-per-prompt needs --image-tokens, the tokens per image")
    if workload.content is not None or traffic.num_samples > 1:
        raise InvalidInput(
            "images and audio need prompts without shared content: remove --images-per-prompt and --audio-seconds, or "
            "prefixes, turns and samples"
        )
    encoded = {"images": traffic.images_per_prompt, "image_tokens": traffic.image_tokens}
    encoded = encoded if traffic.images_per_prompt else {}
    if traffic.audio_tokens is not None:
        encoded["audio_tokens"] = traffic.audio_tokens
    columns: Mapping[str, Any] = {name: np.full(len(workload), count) for name, count in encoded.items()}
    return replace(workload, prompt_tokens=workload.prompt_tokens + traffic.encoded_tokens, **columns)


def _set_max_tokens(workload: Workload, traffic: Traffic, max_tokens: int) -> Workload:
    """Set `max_tokens` of each request: drawn with the mean `max_tokens`, but at least the output length."""
    if workload.max_tokens is not None:
        raise InvalidInput("the trace has max_tokens of every request: remove --max-tokens")
    kind = GammaLengths if traffic.length_distribution == "gamma" else LognormalLengths
    allowed = kind(max_tokens, traffic.max_tokens_cv) if traffic.max_tokens_cv else FixedLengths(max_tokens)
    drawn = allowed.draw(len(workload), random_stream(traffic.seed, "max_tokens"))
    return replace(workload, max_tokens=np.maximum(drawn, workload.output_tokens))


def _given_flags(traffic: Traffic, names: Iterable[str]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in names if name in traffic.model_fields_set]


def _from_trace(traffic: Traffic, path: str) -> Workload:
    if flags := _given_flags(traffic, GENERATED_FIELDS):
        raise InvalidInput(f"--trace and {flags[0]} exclude each other: remove one")
    workload = read_trace(path, limit=traffic.num_prompts, spread_ticks=traffic.trace_spread_ticks)
    if traffic.trace_sessions == "closed":
        workload = workload.in_session_loop()
    elif traffic.trace_sessions == "clock":
        workload = workload.in_open_loop()
    if traffic.trace_sessions_per_s is not None:
        rng = random_stream(traffic.seed, "sessions")
        workload = start_sessions_at_rate(workload, traffic.trace_sessions_per_s, rng)
    if traffic.trace_from_s or traffic.trace_until_s is not None:
        until_s = math.inf if traffic.trace_until_s is None else traffic.trace_until_s
        workload = workload.select_between(traffic.trace_from_s, until_s).shift_to_zero()
    if traffic.trace_time_scale != 1:
        workload = workload.scale_times(traffic.trace_time_scale)
    if traffic.trace_rate_factor != 1:
        workload = workload.scale_rate(traffic.trace_rate_factor)
    if traffic.request_rate is not None:
        at_once = math.isinf(traffic.request_rate)
        workload = workload.all_at_once() if at_once else workload.set_rate(traffic.request_rate)
    return workload if traffic.concurrency is None else workload.in_closed_loop(traffic.concurrency)


def _generate(traffic: Traffic, longest_tokens: int | None) -> Workload:
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput(
            "no traffic: use --trace FILE, --use-case chat (or another), or --input-len and --output-len"
        )
    if flags := _given_flags(traffic, [name for name in Traffic.model_fields if name.startswith("trace_")]):
        raise InvalidInput(f"{flags[0]} applies only to a trace: add --trace, or remove it")
    requests = _num_requests(traffic)
    times_mean = _largest_mean_multiple(traffic, longest_tokens)
    prompt = _lengths(traffic, traffic.input_len, traffic.input_len_cv, times_mean)
    output = _lengths(traffic, traffic.output_len, traffic.output_len_cv, times_mean)
    if traffic.users is not None and traffic.user_loop == "closed":
        return _make_user_loop(traffic, traffic.users, prompt, output)
    if traffic.turns > 1:
        return _make_conversations(traffic, requests, prompt, output)
    if traffic.clients > 1:
        return _make_client_mix(traffic, requests, prompt, output)
    shared = None
    if traffic.random_prefix_len:
        shared = SharedPrefixes(traffic.random_prefix_len, traffic.num_prefixes, traffic.prefix_zipf)
    return synthetic(
        num_requests=requests,
        arrivals=_arrivals(traffic),
        prompt=prompt,
        output=output,
        rank_correlation=traffic.length_correlation,
        shared_prefixes=shared,
        concurrency=traffic.concurrency,
        seed=traffic.seed,
        name="random",
    )


def _make_conversations(traffic: Traffic, requests: int, prompt: Lengths, output: Lengths) -> Workload:
    if traffic.clients > 1:
        raise InvalidInput("--turns and --clients exclude each other: remove one")
    if flags := _given_flags(traffic, ("num_prefixes", "length_correlation", "concurrency")):
        raise InvalidInput(f"--turns and {flags[0]} exclude each other: remove one")
    return conversations(
        num_sessions=-(-requests // traffic.turns),
        arrivals=_arrivals(traffic, per_request=traffic.turns),
        turns=FixedLengths(traffic.turns),
        user_tokens=prompt,
        output=output,
        think_time=ThinkTime(traffic.think_time_s),
        system_prompt_tokens=traffic.random_prefix_len,
        seed=traffic.seed,
    )


def _num_requests(traffic: Traffic) -> int:
    """Return the number of requests to generate: `num_prompts` if given. Otherwise it is the default, enough for a
    steady state at `concurrency` or, for a varying rate, the number of requests in its period or busiest part."""
    if traffic.num_prompts is not None:
        return traffic.num_prompts
    if traffic.arrivals == "steady" or traffic.request_rate is None or math.isinf(traffic.request_rate):
        return min(max(DEFAULT_NUM_PROMPTS, REQUESTS_PER_SLOT * (traffic.concurrency or 0)), MAX_PROMPTS)
    if (part := _busiest_part(traffic)) is not None:
        return part.requests
    return max(round(math.prod(_mean_and_period(_varying_rate(traffic)))), DEFAULT_NUM_PROMPTS)


def _make_user_loop(traffic: Traffic, users: int, prompt: Lengths, output: Lengths) -> Workload:
    if flags := _given_flags(traffic, ("turns", "clients", "random_prefix_len", "arrivals", "request_rate")):
        raise InvalidInput(f"--user-loop closed and {flags[0]} exclude each other: remove one")
    asked = traffic.num_prompts
    return user_loop(
        users=users,
        num_requests=max(DEFAULT_NUM_PROMPTS, REQUESTS_PER_USER * users) if asked is None else asked,
        think_time=ThinkTime(traffic.think_time_s),
        prompt=prompt,
        output=output,
        rank_correlation=traffic.length_correlation,
        seed=traffic.seed,
        name=f"{users:,} users",
    )


def _make_client_mix(traffic: Traffic, requests: int, prompt: Lengths, output: Lengths) -> Workload:
    if flags := _given_flags(traffic, ("concurrency", "num_prefixes", "length_correlation")):
        raise InvalidInput(f"--clients and {flags[0]} exclude each other: remove one")
    if traffic.request_rate is None or math.isinf(traffic.request_rate):
        raise InvalidInput("--clients need --request-rate, the total rate of all clients")
    return client_mix(
        num_requests=requests,
        clients=Clients(traffic.clients, traffic.client_zipf, traffic.burstiness, traffic.client_length_cv),
        pace=_arrivals(traffic),
        prompt=prompt,
        output=output,
        client_prompt_tokens=traffic.random_prefix_len,
        seed=traffic.seed,
        name=f"{traffic.clients} clients",
    )


def _largest_mean_multiple(traffic: Traffic, longest_tokens: int | None) -> float:
    """Return the largest multiple (at least 1) of the mean lengths with which a request fits in `longest_tokens`."""
    if longest_tokens is None:
        return math.inf
    left = (longest_tokens - traffic.random_prefix_len - traffic.encoded_tokens) / traffic.turns
    return max(left / ((traffic.input_len or 0) + (traffic.output_len or 0)), 1.0)


def _lengths(traffic: Traffic, tokens: int, cv: float, times_mean: float) -> Lengths:
    if traffic.length_distribution == "lognormal":
        if traffic.use_case is not None or SPREAD_FIELDS & traffic.model_fields_set:
            return LognormalLengths(tokens, cv)
        highest = min(tokens * times_mean, MAX_REQUEST_TOKENS)
        return LognormalLengths(tokens, cv, highest_tokens=math.floor(highest), exact_mean=True)
    if traffic.length_distribution == "gamma":
        return GammaLengths(tokens, cv)
    ratio = traffic.random_range_ratio
    return UniformLengths(tokens, ratio) if ratio else FixedLengths(tokens)


def _arrivals(
    traffic: Traffic, *, per_request: int = 1
) -> SteadyArrivals | RampArrivals | PeriodicArrivals | PartOfArrivals:
    """Return the arrival process of `traffic`; each arrival starts a session of `per_request` requests (turns)."""
    if traffic.arrivals == "steady":
        rate = math.inf if traffic.request_rate is None else traffic.request_rate / per_request
        return SteadyArrivals(rate, traffic.burstiness)
    process = _varying_rate(traffic, per_request=per_request)
    part = _busiest_part(traffic)
    return process if part is None else PartOfArrivals(process, part.arrivals.skipped / per_request)


def _varying_rate(traffic: Traffic, *, per_request: int = 1) -> RampArrivals | PeriodicArrivals:
    rate = math.inf if traffic.request_rate is None else traffic.request_rate / per_request
    if math.isinf(rate):
        raise InvalidInput(f"--arrivals {traffic.arrivals} needs a --request-rate")
    if traffic.arrivals == "on-off":
        return on_off(
            rate,
            on_s=_required_value(traffic, "on_s"),
            off_s=_required_value(traffic, "off_s"),
            off_rate_per_s=traffic.off_request_rate / per_request,
            burstiness=traffic.burstiness,
        )
    if traffic.arrivals == "ramp":
        end = _required_value(traffic, "end_request_rate") / per_request
        return RampArrivals(rate, end, _required_value(traffic, "ramp_s"), traffic.burstiness)
    return diurnal(
        rate,
        peak_to_mean=traffic.day_peak_to_mean,
        period_s=traffic.day_length_s,
        peak_at_s=traffic.day_length_s / 2,
        burstiness=traffic.burstiness,
    )


def _required_value(traffic: Traffic, name: str) -> float:
    value: float | None = getattr(traffic, name)
    if value is None:
        raise InvalidInput(f"--arrivals {traffic.arrivals} needs --{name.replace('_', '-')}")
    return value
