"""SLOs: limits of the latency of each request, or of a latency percentile over all requests."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.latency_metrics import ALIASES, METRICS

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_GOODPUT_UNIT_S = 1e-3  # unit of a bare number, as in vLLM's --goodput
_FORM = "write it as ttft:p95:500ms, or ttft:500 for 500 ms of every request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """One latency limit: on a percentile over all requests or, if `percentile` is None, on each request.

    Limits are inclusive, as in `vllm bench serve --goodput`.
    """

    metric: str
    limit_s: float
    percentile: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UnknownName("latency metric", str(self.metric), METRICS, aliases=ALIASES)
        if not 0 < self.limit_s < math.inf:
            raise InvalidInput(f"the {self.metric} limit must be finite and above 0 s, not {self.limit_s}")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise InvalidInput(
                f"the {self.metric} percentile must be above 0 and at most 100, not {self.percentile}"
            )
        if self.percentile is None and not self.applies_to_requests:
            raise InvalidInput(
                f"{self.metric} limits gaps, not requests: add a percentile, as in {self.metric}:p99:50ms"
            )

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Parse `metric:pNN:time` or `metric:milliseconds`; times in us, ms, s or min (default: ms)."""
        parts = [part.strip() for part in text.strip().lower().split(":")]
        if len(parts) not in (2, 3):
            raise InvalidInput(f"SLO {text!r} is not a metric and its limit; {_FORM}")
        metric = ALIASES.get(parts[0], parts[0])
        percentile = _percentile(text, parts[1]) if len(parts) == 3 else None
        return cls(metric=metric, limit_s=_limit_s(text, parts[-1]), percentile=percentile)

    def __str__(self) -> str:
        limit = f"{self.limit_s:g}s" if self.limit_s >= 1 else f"{self.limit_s * 1e3:g}ms"
        return (
            f"{self.metric}:{limit}"
            if self.percentile is None
            else f"{self.metric}:p{self.percentile:g}:{limit}"
        )

    @property
    def applies_to_requests(self) -> bool:
        """Return whether the metric has one value per request; ITL has one value per gap between tokens."""
        return METRICS[self.metric].span is not None

    @property
    def includes_wait(self) -> bool:
        """Return whether the metric includes the time in the queue."""
        return METRICS[self.metric].from_arrival

    def is_met(self, value_s: float | None) -> bool:
        """Return whether the latency of a request, or a percentile of latencies, is within the limit.

        Without a value, a TPOT or ITL limit is met, because a response of one token has no gap and counts as 0 in
        vLLM's goodput; other limits are missed, because a request without a first token has failed. NaN misses every
        limit.
        """
        if value_s is None:
            return not self.includes_wait
        return value_s <= self.limit_s

    def value_s(self, values_s: npt.ArrayLike) -> float | None:
        """Return this SLO's percentile of `values_s`, linearly interpolated as in vLLM; None without values."""
        if self.percentile is None:
            raise InvalidInput(f"{self} applies to every request: it has no percentile to compute")
        values = np.asarray(values_s, dtype=np.float64)
        return float(np.percentile(values, self.percentile)) if values.size else None


def parse_slos(texts: str | Iterable[str]) -> tuple[Slo, ...]:
    """Parse values of `--slo`, separated by spaces or commas. Raises InvalidInput if two limit the same metric."""
    words = [
        word
        for text in ([texts] if isinstance(texts, str) else texts)
        for word in re.split(r"[\s,]+", text)
        if word
    ]
    slos = tuple(Slo.parse(word) for word in words)
    seen: dict[tuple[str, float | None], Slo] = {}
    for slo in slos:
        other = seen.setdefault((slo.metric, slo.percentile), slo)
        if other is not slo:
            raise InvalidInput(f"{other} and {slo} limit the same metric; use one of them")
    return slos


def parse_goodput_ms(texts: Iterable[str]) -> dict[str, float] | None:
    """Return the limits of `--goodput` in ms by metric; None if there are none. Raises InvalidInput."""
    slos = parse_slos(texts)
    for slo in slos:
        if slo.percentile is not None:
            raise InvalidInput(f"--goodput {slo}: these limits apply to every request; remove the percentile")
    return {slo.metric: slo.limit_s * 1e3 for slo in slos} or None


def _percentile(text: str, part: str) -> float:
    if part == "median":
        return 50.0
    match = re.fullmatch(r"p([0-9]+(?:\.[0-9]+)?)", part)
    if match is None:
        raise InvalidInput(f"SLO {text!r}: {part!r} is not a percentile; {_FORM}")
    return float(match[1])


def _limit_s(text: str, part: str) -> float:
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(us|ms|s|min)?", part)
    if match is None:
        raise InvalidInput(f"SLO {text!r}: {part!r} is not a time above 0; {_FORM}")
    unit_s = _UNITS_S[match[2]] if match[2] else _GOODPUT_UNIT_S
    return float(match[1]) * unit_s
