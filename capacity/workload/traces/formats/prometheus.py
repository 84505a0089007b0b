"""Read the result of a Prometheus range query: requests per interval, and histograms of their lengths."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from capacity.workload.columns import FloatArray, IntArray
from capacity.workload.randomness import random_stream
from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines, short_repr
from capacity.workload.workload import Workload

# vllm:request_prompt_tokens, sglang:prompt_tokens_histogram
PROMPTS = re.compile(r"prompt_tokens(_histogram)?_bucket$")
OUTPUTS = re.compile(r"generation_tokens(_histogram)?_bucket$")
QUERY = '{__name__=~".*(prompt|generation)_tokens(_histogram)?_bucket"}'
MAX_SAMPLES = 5_000_000


class Histogram(NamedTuple):
    """Numbers of requests, a row for each interval of `at_s`; `bounds`: upper ends of the length buckets in tokens."""

    at_s: FloatArray
    bounds: FloatArray
    counts: FloatArray


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Generate the requests of each interval at random times, with lengths drawn from the histograms.

    Counts of several servers are added up. A counter that decreases counts as reset. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    series = _series(lines, first.record)
    prompts, outputs = _histogram(lines, series, PROMPTS), _histogram(lines, series, OUTPUTS)
    coming = np.rint(prompts.counts.sum(axis=1)).astype(np.int64)
    requests = int(coming.sum())
    if not requests:
        lines.reject("no request arrived during the query")
    lines.count_row(requests)
    rng = random_stream(0, "arrivals")
    begins_s, ends_s = prompts.at_s[:-1], prompts.at_s[1:]
    arrival_s = np.repeat(begins_s, coming) + rng.random(requests) * np.repeat(ends_s - begins_s, coming)
    lengths = random_stream(0, "lengths")
    span = f"{len(coming):,} intervals of {float(np.median(ends_s - begins_s)):g} s"
    workload = Workload.sort_arrivals(
        arrival_s=arrival_s - float(prompts.at_s[0]),
        prompt_tokens=_draw_lengths(prompts, coming, lengths),
        output_tokens=_draw_lengths(outputs, coming, lengths),
        name=options.name,
        source=lines.path,
        notices=(
            f"{span}: requests counted by the query arrive at random times within each interval; lengths are "
            "drawn uniformly within the histograms' buckets",
        ),
        remark=False,
    )
    return workload if options.limit is None else workload.head(options.limit)


def _series(lines: TraceLines, record: Mapping[str, object]) -> list[Mapping[str, object]]:
    data = record.get("data")
    found = data.get("result") if isinstance(data, Mapping) else None
    if not isinstance(found, list) or not isinstance(data, Mapping) or data.get("resultType") != "matrix":
        lines.reject(
            f"is not the result of a range query: data.resultType must be 'matrix'; use query_range with {QUERY}"
        )
    return [entry for entry in found if isinstance(entry, Mapping)]


def _histogram(lines: TraceLines, series: list[Mapping[str, object]], name: re.Pattern[str]) -> Histogram:
    """Return the increase of each bucket between consecutive samples, summed over servers."""
    rises: dict[float, dict[float, float]] = {}  # by upper bound and time
    samples = 0
    for entry in series:
        metric = entry.get("metric")
        if not isinstance(metric, Mapping) or not name.search(str(metric.get("__name__", ""))):
            continue
        values = _values(lines, entry.get("values"))
        samples += len(values)
        if samples > MAX_SAMPLES:
            lines.reject(f"has more than {MAX_SAMPLES:,} samples: use a longer step")
        rise = rises.setdefault(_number(lines, "le", metric.get("le")), {})
        for (_, before), (at_s, after) in pairwise(values):
            rise[at_s] = rise.get(at_s, 0.0) + (after - before if after >= before else after)
    instants = sorted({at_s for rise in rises.values() for at_s in rise})
    if math.inf not in rises or not instants:
        lines.reject(
            f'has no buckets of {name.pattern!r} with two samples, including le="+Inf"; query {QUERY}'
        )
    bounds = sorted(rises)
    cumulative = np.array([[rises[bound].get(at_s, 0.0) for bound in bounds] for at_s in instants])
    counts = np.maximum(np.diff(cumulative, axis=1, prepend=0.0), 0.0)
    steps_s = np.diff(instants)
    first_s = instants[0] - (float(np.median(steps_s)) if len(steps_s) else 60.0)
    return Histogram(np.array([first_s, *instants]), np.array(bounds), counts)


def _values(lines: TraceLines, values: object) -> list[tuple[float, float]]:
    if not isinstance(values, list):
        lines.reject(f"values {short_repr(values)} is not a list of samples")
    found = []
    for sample in values:
        if not isinstance(sample, list) or len(sample) != 2:
            lines.reject(f"{short_repr(sample)} is not a sample: must be a time and a value")
        at_s, value = _number(lines, "time", sample[0]), _number(lines, "value", sample[1])
        if not (0 <= at_s < 1e10 and 0 <= value < 1e15):
            lines.reject(f"{short_repr(sample)} is not a sample of a counter")
        found.append((at_s, value))
    return found


def _number(lines: TraceLines, field: str, value: object) -> float:
    number = math.nan
    with suppress(ValueError, OverflowError):
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
    if math.isnan(number):
        lines.reject(f"{field} {short_repr(value)} is not a number")
    return number


def _draw_lengths(histogram: Histogram, coming: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw a length for each request of each interval: a bucket with a probability proportional to its count, then a
    uniform length in the bucket.

    An interval without counts uses the totals of all intervals. The last bucket has no upper bound; its width is
    assumed to equal its lower bound.
    """
    upper = histogram.bounds.copy()
    upper[-1] = 2 * upper[-2] if len(upper) > 1 else 2.0
    lower = np.concatenate(([0.0], upper[:-1]))
    everywhere = histogram.counts.sum(axis=0)
    drawn = []
    for place, count in enumerate(coming.tolist()):
        shares = histogram.counts[place] if place < len(histogram.counts) else everywhere
        shares = shares if shares.sum() > 0 else everywhere
        if shares.sum() == 0:
            shares = np.ones(len(upper))
        bucket = rng.choice(len(upper), size=count, p=shares / shares.sum())
        drawn.append(lower[bucket] + (upper - lower)[bucket] * rng.random(count))
    tokens: IntArray = np.maximum(np.ceil(np.concatenate(drawn)), 1).astype(np.int64)
    return tokens


FORMAT = TraceFormat(
    name="prometheus",
    title="Prometheus range queries",
    recognises=lambda first: isinstance(first, JsonLines) and {"status", "data"} <= set(first.record),
    read=_read,
)
