"""A scrape of an engine's /metrics as a record: counters, gauges, histograms, labels; and differences of scrapes.

Names are those of the engine without its prefix (`vllm:prompt_tokens_total` is `prompt_tokens_total`). Samples that
differ only in their labels (engines, finish reasons) are added up. Source of the names: vLLM 0.6 to 0.33,
v1/metrics/loggers.py; SGLang 0.4 to 0.5, srt/observability/metrics_collector.py. Written without prometheus_client,
because its parser rejects a whole scrape for one malformed line, and does not assemble histograms.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.latency_metrics import RUNNING, WAITING
from capacity.workload.columns import FloatArray

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
_SAMPLE = re.compile(
    r"(?:(vllm|sglang):)?([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? +([-+0-9.eE]+|[+-]?Inf|NaN)(?: +(\d+))?"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_START = "process_start_time_seconds"
MAX_VALUE = 1e15
SAME_START_S = 1.0  # two scrapes of one process may round its start differently


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A Prometheus histogram: numbers of observations up to each bound (ascending, the last is inf), and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    count: float
    total: float

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count > 0 else None

    def minus(self, earlier: "Histogram | None") -> "Histogram":
        """Return the observations since an earlier scrape of the same server."""
        if earlier is None:
            return self
        before = dict(zip(earlier.bounds, earlier.counts, strict=True))
        counts = tuple(
            count - before.get(bound, 0.0) for bound, count in zip(self.bounds, self.counts, strict=True)
        )
        return Histogram(
            bounds=self.bounds,
            counts=counts,
            count=self.count - earlier.count,
            total=self.total - earlier.total,
        )

    def buckets(self) -> Iterator[tuple[float, float, float]]:
        """Yield lower bound, upper bound and number of observations of each bucket that is not empty."""
        edges = zip(pairwise((0.0, *self.bounds)), pairwise((0.0, *self.counts)), strict=True)
        for (low, high), (before, count) in edges:
            if count > before:
                yield low, high, count - before

    def quantile(self, share: float) -> tuple[float, float] | None:
        """Return the quantile `share` (0 to 1), interpolated in its bucket, and the standard deviation of its
        logarithm that follows from the bucket's width. None if the quantile lies above the highest finite bound."""
        found = self.bucket(share)
        if found is None:
            return None
        low, high, below = found
        return low + (high - low) * below, math.log(high / max(low, high / 10)) / math.sqrt(12)

    def bucket(self, share: float) -> tuple[float, float, float] | None:
        """Return the bounds of the bucket of the quantile `share`, and the fraction of its values below the quantile;
        None above the highest finite bound."""
        below, wanted = 0.0, share * self.count
        for low, high, number in self.buckets():
            if below + number >= wanted > 0:
                return None if math.isinf(high) else (low, high, (wanted - below) / number)
            below += number
        return None

    def spread_values(self, number: int) -> FloatArray:
        """Return `number` values in ascending order with the histogram's shares per bucket and exactly its mean.

        Values are uniform within a bucket; all buckets are moved towards one of their ends by the same fraction of
        their width, so that the mean fits. Needs a mean above 0.
        """
        parts = list(self.buckets())
        highest = max((low for low, high, _ in parts if math.isinf(high)), default=0.0)
        beyond = max(2 * highest, 1.0)  # upper end of observations above the highest bound
        lows, highs, weights = np.array(
            [(low, beyond if math.isinf(high) else high, count) for low, high, count in parts]
        ).T
        weights /= weights.sum()
        middles, halves = (lows + highs) / 2, (highs - lows) / 2
        shift = float(np.clip((self.total / self.count - weights @ middles) / (weights @ halves), -1, 1))
        positions = (np.arange(number) + 0.5) / number
        ends = np.cumsum(weights)
        index = np.minimum(np.searchsorted(ends, positions), len(parts) - 1)
        inside = (positions - (ends - weights)[index]) / weights[index]
        width = halves * (1 - abs(shift))
        values: FloatArray = (middles + shift * halves)[index] + width[index] * (2 * inside - 1)
        values *= self.total / self.count / values.mean()
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """The metrics of one server at one time, or since an earlier scrape (`minus`).

    `gauges`: one value per label set. `labels`: the labels of metrics that describe the server (`cache_config_info`).
    `start_s`: when the process started. `since_s` and `scraped_s`: start and end of the period in which events were
    counted. All three are in seconds since 1970, or None if unknown.
    """

    path: str
    engine: str
    models: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    start_s: float | None = None
    scraped_s: float | None = None
    earlier: str | None = None  # path of the earlier scrape, if this is a difference
    since_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """Return the seconds in which events were counted; None if a clock is missing or not plausible."""
        if self.since_s is None or self.scraped_s is None or self.scraped_s <= self.since_s:
            return None
        return self.scraped_s - self.since_s

    @property
    def served(self) -> int:
        """Return the number of completed requests."""
        names = ("request_success_total", "num_requests_total")
        found = next((self.counters[name] for name in names if self.counters.get(name, 0) > 0), None)
        if found is None:
            found = next(
                (h.count for name in ("e2e_request_latency_seconds",) if (h := self.histogram(name))), 0
            )
        return int(found) if found < 1e12 else 0

    def histogram(self, *names: str) -> Histogram | None:
        """Return the first histogram in `names` that has observations; None if there is none."""
        return next(
            (h for name in names if (h := self.histograms.get(name)) is not None and h.count > 0), None
        )

    def counter(self, *names: str) -> float | None:
        """Return the first counter in `names` that exists; None if there is none."""
        return next((self.counters[name] for name in names if name in self.counters), None)

    def gauge(self, *names: str) -> float | None:
        """Return the first gauge in `names` that exists, summed over its label sets; None if there is none."""
        return next((sum(self.gauges[name]) for name in names if name in self.gauges), None)

    @property
    def running(self) -> float | None:
        """Return the number of requests in execution at the scrape."""
        return self.gauge(*RUNNING)

    @property
    def waiting(self) -> float | None:
        """Return the number of queued requests at the scrape."""
        return self.gauge(*WAITING)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Return the share of prompt tokens found in the prefix cache during the counted period; None if unknown."""
        pairs = (
            ("prefix_cache_hits_total", "prefix_cache_queries_total"),
            ("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
            ("cached_tokens_total", "prompt_tokens_total"),
        )
        for hits, asked in pairs:
            total = self.counters.get(asked, 0.0)
            if hits in self.counters and total > 0:
                return min(self.counters[hits] / total, 1.0)
        return None

    def follows(self, earlier: "ServerMetrics") -> bool:
        """Return whether this is the same or a later scrape of the same process. No counter has decreased then."""
        if (self.engine, self.models) != (earlier.engine, earlier.models):
            return False
        if "://" in self.path and "://" in earlier.path and self.path != earlier.path:
            return False
        starts = (self.start_s, earlier.start_s)
        if None not in starts and abs(starts[0] - starts[1]) > SAME_START_S:  # type: ignore[operator]
            return False
        return all(self.counters.get(name, 0.0) >= value for name, value in earlier.counters.items()) and all(
            (own := self.histograms.get(name)) is not None and own.count >= before.count
            for name, before in earlier.histograms.items()
        )

    def minus(self, earlier: "ServerMetrics") -> "ServerMetrics":
        """Return the counts since an earlier scrape of the same server, with the gauges and labels of this scrape.

        Raises InvalidInput if `earlier` comes from another process, or later.
        """
        if not self.follows(earlier):
            raise InvalidInput(
                f"{earlier.path} is not an earlier scrape of the server of {self.path}: a counter decreased, or the "
                "process or model differs"
            )
        return replace(
            self,
            counters={name: value - earlier.counters.get(name, 0.0) for name, value in self.counters.items()},
            histograms={name: h.minus(earlier.histograms.get(name)) for name, h in self.histograms.items()},
            earlier=earlier.path,
            since_s=earlier.scraped_s,
        )


def parse_metrics(path: str, text: str, *, scraped_s: float | None = None) -> ServerMetrics:
    """Return the metrics in a Prometheus text. `scraped_s`: when it was read, if its samples have no timestamps.

    Raises MalformedFile unless it has metrics of exactly one of vLLM and SGLang.
    """
    parts = _Parts()
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        if found is not None:
            parts.add(*found.groups())
    if len(parts.engines) != 1:
        wrong = "of both vLLM and SGLang" if parts.engines else "of neither vLLM nor SGLang"
        raise MalformedFile(path, f"contains metrics {wrong}: give the /metrics of one engine")
    return ServerMetrics(
        path=path,
        engine=next(iter(parts.engines)),
        models=tuple(sorted(parts.models)),
        counters=parts.counters,
        gauges={name: tuple(values) for name, values in parts.gauges.items()},
        histograms=dict(parts.histograms()),
        labels=parts.labels,
        start_s=parts.began_s,
        scraped_s=parts.scraped_s or scraped_s,
        since_s=parts.began_s,
    )


class _Parts:
    """Collects the samples of a scrape by kind."""

    def __init__(self) -> None:
        self.engines: set[str] = set()
        self.models: set[str] = set()
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, list[float]] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self.start_s: float | None = None
        self.scraped_s: float | None = None
        self._created_s = math.inf
        self._buckets: dict[str, dict[float, float]] = {}
        self._sums: dict[str, float] = {}

    def add(
        self, engine: str | None, name: str, label_text: str | None, number: str, stamp: str | None
    ) -> None:
        try:
            value = float(number)
        except ValueError:  # such as 1e
            return
        if engine is None:
            if name == _START and 0 < value < MAX_VALUE:
                self.start_s = value
            return
        labels = dict(_LABEL.findall(label_text or ""))
        if not 0 <= value < math.inf or labels.get("priority"):
            return  # SGLang repeats the total of all priorities by priority
        if name.endswith("_created"):
            self._created_s = min(value, self._created_s)
            return
        self.engines.add(engine)
        if model := labels.get("model_name") or labels.get("name"):
            self.models.add(model)
        if value >= MAX_VALUE:
            return
        if stamp is not None:
            self.scraped_s = int(stamp) / 1e3
        if name.endswith("_info"):
            self.labels.setdefault(name, labels)
        elif name.endswith("_bucket"):
            bounds = self._buckets.setdefault(name.removesuffix("_bucket"), {})
            try:
                bound = float(labels.get("le", ""))
            except ValueError:
                return
            if 0 < bound < MAX_VALUE:  # +Inf has the count
                bounds[bound] = bounds.get(bound, 0.0) + value
        elif name.endswith(("_sum", "_count")):
            self._sums[name] = self._sums.get(name, 0.0) + value
        elif name.endswith("_total"):
            self.counters[name] = self.counters.get(name, 0.0) + value
        else:
            self.gauges.setdefault(name, []).append(value)

    @property
    def began_s(self) -> float | None:
        """Return when the process started, or else when its first metric was created."""
        return self.start_s or (self._created_s if 0 < self._created_s < MAX_VALUE else None)

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        names = dict.fromkeys(name.removesuffix("_count") for name in self._sums if name.endswith("_count"))
        for name in names:
            count, total = self._sums[f"{name}_count"], self._sums.get(f"{name}_sum", math.nan)
            bounds = sorted({**self._buckets.get(name, {}), math.inf: count}.items())
            yield (
                name,
                Histogram(
                    bounds=tuple(bound for bound, _ in bounds),
                    counts=tuple(np.maximum.accumulate([number for _, number in bounds]).tolist()),
                    count=count,
                    total=total,
                ),
            )
