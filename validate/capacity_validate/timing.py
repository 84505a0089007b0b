"""Reliable timing: warm-up, rotated inputs, many repetitions, and statistics of their spread.

On a GPU, time is measured with CUDA events; short kernels are captured in one graph of many calls to exclude launch
gaps. With one CPU thread, it is the thread's own CPU time, which other processes on the core do not lengthen (wall
time on a shared machine doubled for seconds at a time). Calls rotate over several times as many weights and caches as
the processor's cache holds, because in serving other layers run between two uses of the same data.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from capacity_validate.capture import GraphCapturer

Call = Callable[[], object]
How = Literal["thread time", "wall time", "events", "graph"]

GRAPH_BELOW_S = 1e-3  # shorter calls are timed inside a graph, because a launch takes 3-10 us
GRAPH_S = 3e-3  # approximate time of one replay
GRAPH_CALLS = 32  # maximum number of calls in one replay
WARM_UP_CALLS = 3
WARM_UP_S = 0.02  # minimum on a GPU, because clocks fall when it idles between cases
WARM_UP_MOST_S = 0.3
SETTLED = 0.02  # relative difference of two medians at which clocks are stable
SAMPLES_KEPT = 200  # per case, in the file
BATCH = 16  # samples between two checks of their standard error
MIN_PRECISE_SAMPLES = 32
PRECISE_ENOUGH = 0.002  # relative standard error of the median, far below the error of a fit
# input sets over the size of the L2 cache; with random replacement, less than 1 % of a set survives until its next use.
# FlashInfer and SGLang rotate over as much
CACHES_ROTATED = 5.0
OUTLIER_FACTOR = 2.0  # factor on the median
# normal distribution: sqrt(pi / 2) for the median; the 10-90 % range is 2.56 standard deviations
MEDIAN_OVER_SPREAD = 1.2533 / 2.5631


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one case in s. `seconds` is the median; `drift` the relative change from first to last third.

    A sample is the time of one call, or with a graph the mean of `calls_per_sample` calls. `samples` are the samples
    used, evenly thinned if there are many. `held_down` counts samples excluded because the clocks were reduced; if
    hardly any remain, `slowed` is true and all samples are used.
    """

    seconds: float
    low_s: float  # 10 % quantile
    high_s: float  # 90 % quantile
    repetitions: int
    outliers: int
    drift: float
    how: How
    calls_per_sample: int = 1
    samples: tuple[float, ...] = ()
    held_down: int = 0
    slowed: bool = False

    @property
    def spread(self) -> float:
        """Return (90 % quantile - 10 % quantile) / median."""
        return (self.high_s - self.low_s) / self.seconds if self.seconds else 0.0

    @property
    def standard_error(self) -> float:
        """Return the median's relative standard error, for a normal distribution with the observed 10-90 % range."""
        return MEDIAN_OVER_SPREAD * self.spread / math.sqrt(self.repetitions)


class Samples(NamedTuple):
    """Samples from one use of a stopwatch. `began_s` and `ended_s` are values of `time.monotonic`."""

    seconds: list[float]
    how: How
    calls: int = 1  # calls per sample
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def instants(self) -> list[float]:
        """Return the approximate time at which each sample was taken, assuming that samples ran back to back."""
        seconds = np.array(self.seconds)
        middles = (np.cumsum(seconds) - seconds / 2) / (seconds.sum() or 1.0)
        return list(self.began_s + (self.ended_s - self.began_s) * middles)


def summarise_samples(
    samples: Sequence[float], how: How, *, calls: int = 1, held_down: int = 0, slowed: bool = False
) -> Timing:
    """Return the statistics of samples, given in the order in which they were taken. Needs at least one sample."""
    ordered = sorted(samples)
    median = statistics.median(ordered)
    third = max(1, len(samples) // 3)
    first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
    return Timing(
        seconds=median,
        low_s=float(np.quantile(ordered, 0.1)),
        high_s=float(np.quantile(ordered, 0.9)),
        repetitions=len(samples),
        outliers=sum(sample > OUTLIER_FACTOR * median for sample in samples),
        drift=last / first - 1 if first else 0.0,
        how=how,
        calls_per_sample=calls,
        samples=tuple(float(f"{sample:.4g}") for sample in samples[:: -(-len(samples) // SAMPLES_KEPT)]),
        held_down=held_down,
        slowed=slowed,
    )


def is_precise(samples: Sequence[float]) -> bool:
    """Return whether the median's standard error is so small that this pass needs no more samples.

    Neighbouring samples share a clock and a temperature, so the standard error of independent samples is multiplied by
    sqrt((1 + r) / (1 - r)), where r is their autocorrelation.
    """
    if len(samples) < MIN_PRECISE_SAMPLES:
        return False
    r = autocorrelation(samples)
    widening = math.sqrt((1 + r) / (1 - r)) if r < 1 else math.inf
    return summarise_samples(samples, "events").standard_error * widening <= PRECISE_ENOUGH


def autocorrelation(samples: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of samples in the order in which they were taken, at least 0."""
    values = np.array(samples) - np.mean(samples)
    variance = float(values @ values)
    return max(0.0, float(values[1:] @ values[:-1]) / variance) if variance else 0.0


class CpuStopwatch:
    """Times calls by the thread's CPU time, or by wall time if torch uses several threads.

    `sample` returns the seconds of single calls in order; the calls use several sets of inputs in turn. It stops when
    the median is precise; with `sustained`, only after `budget_s` seconds.
    """

    spoiled = False

    def __init__(self, *, threads: int = 1) -> None:
        self._how: How = "thread time" if threads == 1 else "wall time"
        self._clock = time.thread_time if threads == 1 else time.perf_counter

    def sample(
        self,
        calls: Sequence[Call],
        *,
        budget_s: float,
        at_least: int,
        at_most: int,
        sustained: bool = False,
        **_: bool,
    ) -> Samples:
        clock, began_s = self._clock, time.monotonic()
        for call in calls[:WARM_UP_CALLS]:
            call()
        samples: list[float] = []
        deadline = time.perf_counter() + budget_s
        while len(samples) < at_most and (len(samples) < at_least or time.perf_counter() < deadline):
            if not sustained and len(samples) % BATCH == 0 and is_precise(samples):
                break
            call = calls[len(samples) % len(calls)]
            start = clock()
            call()
            samples.append(clock() - start)
        return Samples(samples, self._how, began_s=began_s, ended_s=time.monotonic())


class RunClock:
    """Wall clock of a whole run: `now_s()` is the time since its start, and `wait_until` sleeps until a time."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, instant_s: float) -> None:
        time.sleep(max(0.0, instant_s - self.now_s()))


class ThreadClock(RunClock):
    """Clock of this thread's CPU time, unaffected by other processes; waits advance it without sleeping."""

    def __init__(self) -> None:
        self._start = time.thread_time()

    def now_s(self) -> float:
        return time.thread_time() - self._start

    def wait_until(self, instant_s: float) -> None:
        self._start -= max(0.0, instant_s - self.now_s())


class CudaStopwatch:
    """Times calls by CUDA events, short kernels in a graph. `spoiled`: a failed capture made the device unusable."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._captures = GraphCapturer(torch, device)

    @property
    def spoiled(self) -> bool:
        return self._captures.spoiled

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def sample(
        self,
        calls: Sequence[Call],
        *,
        budget_s: float,
        at_least: int,
        at_most: int,
        capturable: bool = True,
        sustained: bool = False,
    ) -> Samples:
        once = self._warm_up(calls)
        if sustained:
            return self._sample_for(calls, budget_s)
        if capturable and once < GRAPH_BELOW_S and not self.spoiled:
            inner = max(1, min(GRAPH_CALLS, int(GRAPH_S / max(once, 1e-6))))
            graphed = self._time_graph(calls, inner, budget_s=budget_s, at_least=at_least, at_most=at_most)
            if graphed is not None:
                return graphed
        count = _repetitions(once, budget_s=budget_s, at_least=at_least, at_most=at_most)
        began_s = time.monotonic()
        # on the side stream, where its memory is already cached
        seconds: Any = self._captures.run_on_side_stream(lambda: self._sample_until_precise(calls, count))
        return Samples(seconds, "events", began_s=began_s, ended_s=time.monotonic())

    def _sample_for(self, calls: Sequence[Call], budget_s: float) -> Samples:
        """Return samples of back-to-back calls whose times add up to `budget_s` seconds."""

        def fill() -> list[float]:
            seconds: list[float] = []
            taken_s = 0.0
            while taken_s < budget_s:
                batch = self._time_calls(calls, BATCH)
                taken_s += max(sum(batch), 1e-6)
                seconds += batch
            return seconds

        began_s = time.monotonic()
        seconds: Any = self._captures.run_on_side_stream(fill)
        return Samples(seconds, "events", began_s=began_s, ended_s=time.monotonic())

    def _warm_up(self, calls: Sequence[Call]) -> float:
        """Run the calls until two medians agree; return the seconds of a call. Also compiles Triton kernels."""
        count = max(WARM_UP_CALLS, min(len(calls), 8))

        def settle() -> float:
            began, before, median = time.perf_counter(), math.inf, math.inf
            while time.perf_counter() - began < WARM_UP_MOST_S:
                before, median = median, statistics.median(self._time_calls(calls, count))
                settled = abs(median - before) <= SETTLED * median
                if settled and time.perf_counter() - began >= WARM_UP_S:
                    break
            return median

        seconds: Any = self._captures.run_on_side_stream(settle)
        self.synchronize()
        return float(seconds)

    def _time_calls(self, calls: Sequence[Call], count: int) -> list[float]:
        """Return the seconds of `count` calls, each between two events, which are read after all calls have run."""
        pairs = []
        for index in range(count):
            start = self._torch.cuda.Event(enable_timing=True)
            end = self._torch.cuda.Event(enable_timing=True)
            start.record()
            calls[index % len(calls)]()
            end.record()
            pairs.append((start, end))
        self.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

    def _sample_until_precise(self, calls: Sequence[Call], most: int) -> list[float]:
        """Return at most `most` samples; stop early if their median is precise. Work is queued in batches."""
        seconds: list[float] = []
        while len(seconds) < most and not is_precise(seconds):
            turned = len(seconds) % len(calls)
            seconds += self._time_calls([*calls[turned:], *calls[:turned]], min(BATCH, most - len(seconds)))
        return seconds

    def _time_graph(
        self, calls: Sequence[Call], wanted: int, *, budget_s: float, at_least: int, at_most: int
    ) -> Samples | None:
        """Return the seconds per call in each replay of a graph of `wanted` or more calls; None if capture fails."""
        rounds = math.ceil(wanted / len(calls))
        inner = rounds * len(calls)

        def body() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        try:
            graph, _ = self._captures.capture(body)
        except RuntimeError:
            self.synchronize()
            return None
        replay = [graph.replay]
        self._time_calls(replay, 2)
        once = statistics.median(self._time_calls(replay, 3))
        count = _repetitions(once, budget_s=budget_s, at_least=at_least, at_most=at_most)
        began_s = time.monotonic()
        seconds = [replayed / inner for replayed in self._sample_until_precise(replay, count)]
        ended_s = time.monotonic()
        graph.reset()
        return Samples(seconds, "graph", calls=inner, began_s=began_s, ended_s=ended_s)


Stopwatch = CpuStopwatch | CudaStopwatch


def _repetitions(once_s: float, *, budget_s: float, at_least: int, at_most: int) -> int:
    """Return how many repetitions of `once_s` fill `budget_s`, limited to `at_least` and `at_most`."""
    return max(at_least, min(at_most, int(budget_s / max(once_s, 1e-6))))


def make_stopwatch(torch: Any, device: str, *, threads: int = 1) -> Stopwatch:
    return CpuStopwatch(threads=threads) if device == "cpu" else CudaStopwatch(torch, device)


def make_run_clock(device: str, *, threads: int = 1) -> RunClock:
    """Return a clock that starts now: CPU time of this thread on a CPU with one thread, otherwise wall time."""
    return ThreadClock() if device == "cpu" and threads == 1 else RunClock()


def rotations(bytes_per_set: int, cache_bytes: int) -> int:
    """Return how many input sets exceed `CACHES_ROTATED` caches in total, so that calls find no inputs in the cache."""
    return max(1, math.ceil(CACHES_ROTATED * cache_bytes / max(1, bytes_per_set)))
