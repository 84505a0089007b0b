"""Traffic input: the requests of an analysis."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from capacity.deployment.client_latency import CLIENTS, USUAL_S, LatencySeconds
from capacity.deployment.field_flags import FiniteOrInf, FlagSpec
from capacity.deployment.use_cases import USE_CASES, filled_fields, find_use_case

SECONDS_PER_DAY = 86_400
MAX_PRIORITY_CLASSES = 100


class Traffic(FlagSpec):
    """Requests of an analysis: their lengths, and their arrivals (a batch, a closed loop, a rate, or a trace)."""

    input_len: int | None = None
    output_len: int | None = None
    use_case: str | None = Field(
        default=None,
        description=f"Use case ({', '.join(USE_CASES)}): sets lengths, SLO and think time (`capacity use-cases`).",
    )
    max_tokens: int | None = None
    max_tokens_cv: float = 0.0
    num_adapters: int | None = None
    adapter_skew: float = 0.0
    priority_shares: str | None = None
    cache_salts: int | None = None
    images_per_prompt: int = 0
    image_tokens: int | None = None
    image_size: str | None = None
    audio_seconds: float | None = None
    audio_tokens: int | None = None
    batch_size: int | None = None
    concurrency: int | None = None
    request_rate: FiniteOrInf | None = None
    requests_per_day: float | None = None
    users: int | None = None
    user_loop: Literal["open", "closed"] = "open"
    response_s: float = 0.0
    num_prompts: int | None = None
    burstiness: FiniteOrInf = 1.0
    random_range_ratio: float = 0.0
    length_distribution: Literal["uniform", "lognormal", "gamma"] = "uniform"
    input_len_cv: float = 1.0
    output_len_cv: float = 1.0
    length_correlation: float = 0.0
    random_prefix_len: int = 0
    num_prefixes: int = 1
    prefix_zipf: float = 0.0
    arrivals: Literal["steady", "on-off", "ramp", "diurnal"] = "steady"
    on_s: float | None = None
    off_s: float | None = None
    off_request_rate: float = 0.0
    end_request_rate: float | None = None
    ramp_s: float | None = None
    day_peak_to_mean: float = 1.5
    day_length_s: float = 86_400.0
    clients: int = 1
    client_zipf: float = 1.5
    client_length_cv: float = 0.5
    turns: int = 1
    think_time_s: float = 0.0
    client_latency_s: LatencySeconds = Field(
        default=USUAL_S,
        description="Seconds that client and network add to TTFT (round trip), or the name of a client: "
        f"{', '.join(client.name for client in CLIENTS)}.",
    )
    trace: str | None = None
    trace_from_s: float = 0.0
    trace_until_s: float | None = None
    trace_spread_ticks: bool = False
    trace_sessions: Literal["open", "closed", "clock"] = "open"
    trace_sessions_per_s: float | None = None
    trace_time_scale: float = 1.0
    trace_rate_factor: float = 1.0
    max_request_tokens: int | None = None
    long_requests: Literal["drop", "clip"] = "drop"
    scheduling: Literal["continuous", "static"] = "continuous"
    num_samples: int = 1
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _convert_daily_requests(cls, fields: Any) -> Any:
        """Convert requests per day to a rate. An invalid number, or one given with a rate, is left to validation."""
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

    @field_validator("priority_shares", "use_case")
    @classmethod
    def _check_readable(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            (find_use_case if info.field_name == "use_case" else parse_priority_shares)(value)
        return value

    @field_validator("requests_per_day", "users")
    @classmethod
    def _check_single_rate(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("request_rate") is not None:
            raise ValueError("request_rate already sets the rate: use one of them")
        return value

    @model_validator(mode="after")
    def _fill_in_use_case(self) -> Self:
        """Fill in unset fields from the use case and the number of users, without marking them as set."""
        for name, value in filled_fields(self).items():
            self.__dict__[name] = value
        return self

    @property
    def encoded_tokens(self) -> int:
        """Return the image and audio tokens of each generated prompt."""
        return self.images_per_prompt * (self.image_tokens or 0) + (self.audio_tokens or 0)


def parse_priority_shares(text: str) -> dict[int, float]:
    """Return the fraction of requests of each priority; the sum is 1. Raises ValueError with a one-line message."""
    shares: dict[int, float] = {}
    for part in text.split(","):
        priority, colon, share = part.partition(":")
        try:
            number, amount = int(priority), float(share)
        except ValueError:
            raise ValueError("must be PRIORITY:SHARE,... such as 0:0.2,1:0.8") from None
        if not colon or number in shares or not 0 < amount < math.inf or abs(number) > 1 << 30:
            raise ValueError(f"{part.strip()!r} repeats a priority, or its share is not above 0")
        shares[number] = amount
    if len(shares) > MAX_PRIORITY_CLASSES:
        raise ValueError(f"at most {MAX_PRIORITY_CLASSES} priorities")
    total = sum(shares.values())
    return {number: amount / total for number, amount in sorted(shares.items())}
