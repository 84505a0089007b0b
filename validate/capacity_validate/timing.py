"""Timing that can be trusted: warm-up, rotated inputs, many repetitions, and what their spread says.

On a GPU: CUDA events; short kernels are captured into one graph of many calls, so that launch gaps stay out. On one
CPU thread: that thread's own CPU time, which a neighbour who takes the core does not lengthen (wall time on a shared
machine was seen to double for seconds at a time). Weights and caches rotate over more memory than the cache holds,
because in serving other layers run between two uses of the same.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from capacity_validate.capture import Captures

Call = Callable[[], object]
How = Literal["thread time", "wall time", "events", "graph"]

GRAPH_BELOW_S = 1e-3  # calls shorter than this are timed inside a graph: each launch on the way takes 3-10 us
GRAPH_S = 3e-3  # of one replay, about
GRAPH_CALLS = 32  # in one replay, at most
WARM_UP_CALLS = 3
WARM_UP_S = 0.02  # on a GPU, at least: clocks fall when it idles between two cases
WARM_UP_MOST_S = 0.3
SETTLED = 0.02  # two medians that differ by less: the clocks have risen
SAMPLES_KEPT = 200  # of one case, in the file
BATCH = 16  # samples between two looks at their standard error
FEWEST_KNOWN = 32
KNOWN = 0.002  # standard error of a median: far below what a fit can explain
OUTLIER_FACTOR = 2.0  # times the median
# sqrt(pi / 2) standard deviations of a median; 80 % lie within 2.56 of them
MEDIAN_OVER_SPREAD = 1.2533 / 2.5631


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one case. `seconds` is the median; `drift` compares the last third with the first.

    Each sample is a call's time, by graph the mean of `calls_per_sample` calls. `samples` are those that count, evenly
    thinned where there are many; `held_down` were left out, for the clocks were held down when they were taken; where
    hardly any was free, `slowed` says so, and all count.
    """

    seconds: float
    low_s: float  # 10 %
    high_s: float  # 90 %
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
        """From the 10 % to the 90 % quantile, over the median."""
        return (self.high_s - self.low_s) / self.seconds if self.seconds else 0.0

    @property
    def standard_error(self) -> float:
        """Of the median, over it: as of a normal law whose 10 % and 90 % quantiles are those seen."""
        return MEDIAN_OVER_SPREAD * self.spread / math.sqrt(self.repetitions)


class Samples(NamedTuple):
    """What a stopwatch took in one go. `began_s` and `ended_s` are of `time.monotonic`."""

    seconds: list[float]
    how: How
    calls: int = 1  # that each sample is the mean of
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def instants(self) -> list[float]:
        """About when each sample was taken: one after the other, as long as each took."""
        seconds = np.array(self.seconds)
        middles = (np.cumsum(seconds) - seconds / 2) / (seconds.sum() or 1.0)
        return list(self.began_s + (self.ended_s - self.began_s) * middles)


def summarise_samples(
    samples: Sequence[float], how: How, *, calls: int = 1, held_down: int = 0, slowed: bool = False
) -> Timing:
    """One `Timing` of all samples, in the order in which they were taken. Needs at least one."""
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


def is_known(samples: Sequence[float]) -> bool:
    """Whether the median's standard error is so small that more samples of this pass would teach nothing."""
    if len(samples) < FEWEST_KNOWN:
        return False
    return summarise_samples(samples, "events").standard_error <= KNOWN


class CpuStopwatch:
    """The thread's CPU time around each call; wall time where torch uses several threads.

    `sample` gives the seconds of single calls, in order, over several sets of inputs in turn.
    """

    spoiled = False

    def __init__(self, *, threads: int = 1) -> None:
        self._how: How = "thread time" if threads == 1 else "wall time"
        self._clock = time.thread_time if threads == 1 else time.perf_counter

    def sample(
        self, calls: Sequence[Call], *, budget_s: float, at_least: int, at_most: int, **_: bool
    ) -> Samples:
        clock, began_s = self._clock, time.monotonic()
        for call in calls[:WARM_UP_CALLS]:
            call()
        samples: list[float] = []
        deadline = time.perf_counter() + budget_s
        while len(samples) < at_most and (len(samples) < at_least or time.perf_counter() < deadline):
            if len(samples) % BATCH == 0 and is_known(samples):
                break
            call = calls[len(samples) % len(calls)]
            start = clock()
            call()
            samples.append(clock() - start)
        return Samples(samples, self._how, began_s=began_s, ended_s=time.monotonic())


class RunClock:
    """The clock of a whole run: `now_s()`, and `wait_until` when there is nothing to do."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, instant_s: float) -> None:
        time.sleep(max(0.0, instant_s - self.now_s()))


class ThreadClock(RunClock):
    """This thread's CPU time, with waits leapt over: a run that neighbours on the machine neither slow nor see wait."""

    def __init__(self) -> None:
        self._start = time.thread_time()

    def now_s(self) -> float:
        return time.thread_time() - self._start

    def wait_until(self, instant_s: float) -> None:
        self._start -= max(0.0, instant_s - self.now_s())


class CudaStopwatch:
    """CUDA events; short kernels as one graph that calls every input set in turn.

    `spoiled`: a refused capture left this process unfit for more work on the device.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._captures = Captures(torch, device)

    @property
    def spoiled(self) -> bool:
        return self._captures.spoiled

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def sample(
        self, calls: Sequence[Call], *, budget_s: float, at_least: int, at_most: int, capturable: bool = True
    ) -> Samples:
        once = self._warm_up(calls)
        if capturable and once < GRAPH_BELOW_S and not self.spoiled:
            inner = max(1, min(GRAPH_CALLS, int(GRAPH_S / max(once, 1e-6))))
            graphed = self._graphed(calls, inner, budget_s=budget_s, at_least=at_least, at_most=at_most)
            if graphed is not None:
                return graphed
        count = _count(once, budget_s=budget_s, at_least=at_least, at_most=at_most)
        began_s = time.monotonic()
        # on the stream where its memory is cached by now
        seconds: Any = self._captures.aside(lambda: self._until_known(calls, count))
        return Samples(seconds, "events", began_s=began_s, ended_s=time.monotonic())

    def _warm_up(self, calls: Sequence[Call]) -> float:
        """Seconds of a call once two medians agree; every input set is touched, Triton's kernels are compiled."""
        count = max(WARM_UP_CALLS, min(len(calls), 8))

        def settle() -> float:
            began, before, median = time.perf_counter(), math.inf, math.inf
            while time.perf_counter() - began < WARM_UP_MOST_S:
                before, median = median, statistics.median(self._events(calls, count))
                settled = abs(median - before) <= SETTLED * median
                if settled and time.perf_counter() - began >= WARM_UP_S:
                    break
            return median

        seconds: Any = self._captures.aside(settle)
        self.synchronize()
        return float(seconds)

    def _events(self, calls: Sequence[Call], count: int) -> list[float]:
        """One pair of events a call, read after all have run."""
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

    def _until_known(self, calls: Sequence[Call], most: int) -> list[float]:
        """Up to `most` samples, fewer where they agree; work is queued batch by batch."""
        seconds: list[float] = []
        while len(seconds) < most and not is_known(seconds):
            turned = len(seconds) % len(calls)
            seconds += self._events([*calls[turned:], *calls[:turned]], min(BATCH, most - len(seconds)))
        return seconds

    def _graphed(
        self, calls: Sequence[Call], wanted: int, *, budget_s: float, at_least: int, at_most: int
    ) -> Samples | None:
        """Mean of a call in each replay of a graph of `wanted` or more; None where capture is refused."""
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
        self._events(replay, 2)
        once = statistics.median(self._events(replay, 3))
        count = _count(once, budget_s=budget_s, at_least=at_least, at_most=at_most)
        began_s = time.monotonic()
        seconds = [replayed / inner for replayed in self._until_known(replay, count)]
        ended_s = time.monotonic()
        graph.reset()
        return Samples(seconds, "graph", calls=inner, began_s=began_s, ended_s=ended_s)


Stopwatch = CpuStopwatch | CudaStopwatch


def _count(once_s: float, *, budget_s: float, at_least: int, at_most: int) -> int:
    """Repetitions that fill the budget, between their limits."""
    return max(at_least, min(at_most, int(budget_s / max(once_s, 1e-6))))


def stopwatch_for(torch: Any, device: str, *, threads: int = 1) -> Stopwatch:
    return CpuStopwatch(threads=threads) if device == "cpu" else CudaStopwatch(torch, device)


def run_clock_for(device: str, *, threads: int = 1) -> RunClock:
    """Started now."""
    return ThreadClock() if device == "cpu" and threads == 1 else RunClock()


def rotations(bytes_per_set: int, cache_bytes: int, *, most: int = 32) -> int:
    """Input sets that together hold more than twice the cache, so that no call finds its inputs there."""
    return max(1, min(most, math.ceil(2 * cache_bytes / max(1, bytes_per_set))))
