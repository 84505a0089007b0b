"""Traffic: the requests of a question, as a user writes them."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from capacity.base.clock import LATEST_S
from capacity.base.spec import Spec
from capacity.deployment.client_latency import CLIENTS, USUAL_S, LatencySeconds
from capacity.deployment.field_flags import FiniteOrInf, Need, flag
from capacity.deployment.use_cases import USE_CASES, filled_fields, find_use_case

SECONDS_PER_DAY = 86_400
MOST_PRIORITY_CLASSES = 100


class Traffic(Spec):
    """The requests: their lengths, and how they arrive (a batch, a closed loop, a rate, or a trace)."""

    input_len: int | None = flag(
        None, "Prompt tokens of a request.", "--isl", "--random-input-len", ge=1, le=1 << 40
    )
    output_len: int | None = flag(
        None, "Output tokens of a request.", "--osl", "--random-output-len", ge=1, le=1 << 40
    )
    use_case: str | None = flag(
        None,
        f"What requests are like: {', '.join(USE_CASES)} (`capacity use-cases`): lengths, service levels and think "
        "time where nothing else says them.",
    )
    max_tokens: int | None = flag(
        None,
        "Output tokens that clients allow (max_tokens), at least those that come: what SGLang, TensorRT-LLM and TGI "
        "reserve; a trace may have its own; default: as many as come.",
        ge=1,
        le=1 << 24,
        read_by="schedule",
    )
    max_tokens_cv: float = flag(
        0.0,
        "Coefficient of variation of --max-tokens: lognormal, or gamma as lengths are.",
        ge=0,
        le=100,
        needs=Need("max_tokens"),
    )
    num_adapters: int | None = flag(
        None,
        "LoRA adapters that requests are for; a trace may have a column adapter (0: none).",
        ge=1,
        le=1 << 24,
    )
    adapter_skew: float = flag(
        0.0, "Zipf exponent of their popularity; 0: all equal.", ge=0, le=100, needs=Need("num_adapters")
    )
    priority_shares: str | None = flag(
        None,
        "Priorities of requests and their shares, as 0:0.2,1:0.8: the lower is served first.",
        needs=Need("scheduling_policy", ("priority",)),
    )
    cache_salts: int | None = flag(
        None,
        "Tenants, whose prefixes are cached apart (cache_salt): each request is one's, each conversation all of one's.",
        ge=1,
        le=1 << 24,
        needs=(Need("random_prefix_len"), Need("turns"), Need("trace")),
    )
    images_per_prompt: int = flag(
        0,
        "Images of a prompt, at its start, on top of --input-len, which counts text.",
        ge=0,
        le=1 << 16,
        read_by="steps",
    )
    image_tokens: int | None = flag(
        None,
        "Tokens of an image; default: the model's, where all its images have as many, or by --image-size.",
        ge=1,
        le=1 << 24,
        needs=Need("images_per_prompt"),
    )
    image_size: str | None = flag(
        None, "Pixels of an image, WIDTHxHEIGHT, for its tokens.", needs=Need("images_per_prompt")
    )
    audio_seconds: float | None = flag(
        None,
        "Seconds of audio in every prompt, at its start, of a model that hears; on top of --input-len.",
        gt=0,
        le=86_400,
        read_by="steps",
    )
    audio_tokens: int | None = flag(
        None,
        "Tokens of that audio; default: the model's, by --audio-seconds.",
        ge=1,
        le=1 << 24,
        needs=Need("audio_seconds"),
    )
    batch_size: int | None = flag(None, "Requests prefilled and decoded together.", ge=1, le=1 << 24)
    concurrency: int | None = flag(
        None, "Requests in flight in a closed loop.", "--max-concurrency", ge=1, le=1 << 24
    )
    request_rate: FiniteOrInf | None = flag(
        None, "Requests per second; inf: all at once.", "--rate", gt=0, read_by="rate"
    )
    requests_per_day: float | None = flag(
        None,
        "Requests in 24 hours, which come evenly: --request-rate N / 86,400, and kept as that.",
        gt=0,
        read_by="rate",
    )
    users: int | None = flag(
        None,
        "Number of concurrent users; request rate = users / (think time + response time), see --think-time-s and "
        "--response-s.",
        ge=1,
        le=1 << 30,
        read_by="rate",
    )
    user_loop: Literal["open", "closed"] = flag(
        "open",
        "Users come at that rate whatever answers take (open), or each waits for the answer (closed).",
        needs=Need("users"),
        read_by="schedule",
    )
    response_s: float = flag(
        0.0,
        "Seconds that an answer takes, for the rate of --users; 0: none, the most that they ask.",
        ge=0,
        le=LATEST_S,
        needs=Need("users"),
        read_by="rate",
    )
    num_prompts: int | None = flag(
        None,
        "Number of requests; default 1,000, or the period of a varying rate or its busiest 15 min. Fewer: the busiest.",
        "--num-requests",
        ge=0,
        le=50_000_000,
    )
    burstiness: FiniteOrInf = flag(
        1.0,
        "Shape of the gamma-distributed gaps; 1: Poisson; inf: constant.",
        gt=0,
        needs=Need("request_rate", finite=True),
    )
    random_range_ratio: float = flag(
        0.0,
        "Request lengths are uniform within ± this share of their means; 0: all equal.",
        ge=0,
        lt=1,
        needs=Need("length_distribution", ("uniform",)),
    )
    length_distribution: Literal["uniform", "lognormal", "gamma"] = flag(
        "uniform",
        "Distribution of request lengths around their means: uniform, lognormal, gamma; default: lognormal, as varied "
        "as measured chat traffic (Azure 2023); a --batch-size has equal lengths.",
    )
    input_len_cv: float = flag(
        1.0,
        "Coefficient of variation of prompts, lognormal or gamma; default: 1, or the measured one.",
        ge=0,
        le=100,
        needs=Need("length_distribution", ("lognormal", "gamma")),
    )
    output_len_cv: float = flag(
        1.0, "The same of outputs.", ge=0, le=100, needs=Need("length_distribution", ("lognormal", "gamma"))
    )
    length_correlation: float = flag(
        0.0,
        "Rank correlation of prompt and output lengths.",
        ge=-1,
        le=1,
        needs=(Need("length_distribution", ("lognormal", "gamma")), Need("random_range_ratio")),
    )
    random_prefix_len: int = flag(
        0, "Tokens of a system prompt that requests begin with, on top of --input-len.", ge=0, le=1 << 40
    )
    num_prefixes: int = flag(
        1, "Different system prompts.", ge=1, le=1 << 24, needs=Need("random_prefix_len")
    )
    prefix_zipf: float = flag(
        0.0, "Zipf exponent of their popularity; 0: all equal.", ge=0, le=100, needs=Need("num_prefixes")
    )
    arrivals: Literal["steady", "on-off", "ramp", "diurnal"] = flag(
        "steady",
        "How the rate varies: steady, on-off (--request-rate: while on), ramp (at its start), diurnal (the mean).",
    )
    on_s: float | None = flag(
        None, "on-off: seconds at --request-rate.", gt=0, needs=Need("arrivals", ("on-off",))
    )
    off_s: float | None = flag(
        None, "on-off: seconds at --off-request-rate.", gt=0, needs=Need("arrivals", ("on-off",))
    )
    off_request_rate: float = flag(
        0.0, "on-off: requests per second while off.", ge=0, needs=Need("arrivals", ("on-off",))
    )
    end_request_rate: float | None = flag(
        None, "ramp: requests per second at its end, and after.", gt=0, needs=Need("arrivals", ("ramp",))
    )
    ramp_s: float | None = flag(
        None, "ramp: seconds from the first rate to the last.", gt=0, needs=Need("arrivals", ("ramp",))
    )
    day_peak_to_mean: float = flag(
        1.5, "diurnal: highest rate over the mean.", ge=1, le=2, needs=Need("arrivals", ("diurnal",))
    )
    day_length_s: float = flag(
        86_400.0,
        "diurnal: seconds of a day, which begins at night.",
        gt=0,
        needs=Need("arrivals", ("diurnal",)),
    )
    clients: int = flag(
        1,
        "Clients with rates and lengths of their own; --burstiness is each one's, --random-prefix-len too.",
        ge=1,
        le=1 << 24,
    )
    client_zipf: float = flag(
        1.5, "Zipf exponent of the clients' rates; 0: all equal.", ge=0, le=100, needs=Need("clients")
    )
    client_length_cv: float = flag(
        0.5, "Coefficient of variation of the clients' mean lengths.", ge=0, le=100, needs=Need("clients")
    )
    turns: int = flag(
        1, "Questions of a session; each prompt repeats what was said, --input-len is new.", ge=1, le=10_000
    )
    think_time_s: float = flag(
        0.0,
        "Mean seconds between an answer and the next question.",
        ge=0,
        le=LATEST_S,
        needs=(Need("turns"), Need("users")),
    )
    client_latency_s: LatencySeconds = flag(
        USUAL_S,
        "Seconds that client and network add to a time to first token, there and back, or whose they are: "
        f"{', '.join(client.name for client in CLIENTS)}.",
        "--client-latency",
        ge=0,
        le=60,
    )
    trace: str | None = flag(
        None,
        "A trace file, CSV or JSON lines, gzip or not; one in no known format is refused with those known; -: stdin.",
    )
    trace_from_s: float = flag(0.0, "Leave out what arrives earlier in the trace.", ge=0, needs=Need("trace"))
    trace_until_s: float | None = flag(
        None, "Leave out what arrives from then on.", gt=0, needs=Need("trace")
    )
    trace_spread_ticks: bool = flag(
        False,
        "Spread what a trace's coarse clock put at one instant over the time to its next tick.",
        needs=Need("trace"),
    )
    trace_sessions: Literal["open", "closed", "clock"] = flag(
        "open",
        "Turns of a trace's sessions: open (as its format has them), closed (a gap after the turn before ends), "
        "clock (at their recorded times, whatever has ended by then).",
        needs=Need("trace"),
    )
    trace_sessions_per_s: float | None = flag(
        None,
        "Sessions of a trace begin at this rate, each as a whole, by chance; default: as the trace says.",
        gt=0,
        needs=Need("trace"),
    )
    trace_time_scale: float = flag(
        1.0, "Multiply every time of the trace, thinking included.", gt=0, needs=Need("trace")
    )
    trace_rate_factor: float = flag(
        1.0, "The trace's shape at so many times its rate.", gt=0, needs=Need("trace")
    )
    max_request_tokens: int | None = flag(
        None, "Drop or clip requests of more tokens, prompt and output.", ge=2, le=1 << 40
    )
    long_requests: Literal["drop", "clip"] = flag(
        "drop", "What to do with them: drop, or clip.", needs=Need("max_request_tokens")
    )
    scheduling: Literal["continuous", "static"] = flag(
        "continuous", "Batching: continuous, or static (padded)."
    )
    num_samples: int = flag(
        1, "Answers to every prompt, which share its KV (n of the API).", "--n", ge=1, le=1024
    )
    seed: int = flag(0, "Seed of everything random.", ge=0, le=2**63 - 1)

    @model_validator(mode="before")
    @classmethod
    def _rate_of_day(cls, fields: Any) -> Any:
        """Requests of a day as their rate; what is no number, or stands beside a rate, is left to be refused."""
        if not isinstance(fields, Mapping) or fields.get("request_rate") is not None:
            return fields
        try:
            per_day = float(fields.get("requests_per_day") or "")
        except (TypeError, ValueError):
            return fields
        if not 0 < per_day < math.inf:
            return fields
        others = {name: value for name, value in fields.items() if name != "requests_per_day"}
        return {**others, "request_rate": per_day / SECONDS_PER_DAY}

    @field_validator("priority_shares")
    @classmethod
    def _shares(cls, value: str | None) -> str | None:
        if value is not None:
            priority_shares(value)
        return value

    @field_validator("requests_per_day")
    @classmethod
    def _one_rate(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("request_rate") is not None:
            raise ValueError("the rate is given already (request_rate): give one of them")
        return value

    @field_validator("use_case")
    @classmethod
    def _known_use_case(cls, value: str | None) -> str | None:
        if value is not None:
            find_use_case(value)
        return value

    @field_validator("users")
    @classmethod
    def _users_or_a_rate(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("request_rate") is not None:
            raise ValueError("the rate is given already (request_rate): give one of them")
        return value

    @model_validator(mode="after")
    def _as_the_use_case(self) -> Self:
        """Fields that the use case and the users say: they have a value, and nobody has set them."""
        for name, value in filled_fields(self).items():
            self.__dict__[name] = value
        return self


def priority_shares(text: str) -> dict[int, float]:
    """Each priority and its share of the requests; shares add up to 1. ValueError, in one line, for what is none."""
    shares: dict[int, float] = {}
    for part in text.split(","):
        priority, colon, share = part.partition(":")
        try:
            number, amount = int(priority), float(share)
        except ValueError:
            raise ValueError("must be PRIORITY:SHARE,... such as 0:0.2,1:0.8") from None
        if not colon or number in shares or not 0 < amount < math.inf or abs(number) > 1 << 30:
            raise ValueError(f"{part.strip()!r} is a priority twice, or a share that is not above 0")
        shares[number] = amount
    if len(shares) > MOST_PRIORITY_CLASSES:
        raise ValueError(f"at most {MOST_PRIORITY_CLASSES} priorities")
    total = sum(shares.values())
    return {number: amount / total for number, amount in sorted(shares.items())}
