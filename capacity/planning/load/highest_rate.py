"""Find the highest load that meets the SLO, by a separate search for each sample of the traffic and each quantile of
the step-time error. The load is a request rate or, for a closed loop, the number of requests in flight.

Each search runs sequentially; with a worker pool, the searches run in parallel.
"""

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from capacity.answers.deployment_run import NO_SERVICE
from capacity.deployment import Service
from capacity.planning.evaluation.evaluate import TOLERANCE, EngineGroup, evaluate_engines, highest_rate
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal
from capacity.planning.evaluation.step_error import factors_at
from capacity.planning.workers.worker_pool import (
    WorkerPool,
    run_in_parallel,
    single_request,
    stop_if_recalled,
)
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """Highest request rate that meets the SLO, or number of requests in flight of a closed loop; 0 if none meets it.

    `predicted` is the rate with predicted step times, `at_confidence` with step times at quantile `confidence` of their
    prediction error, `low` and `high` with step times at the ends of their 90 % interval. `sampling_low` to
    `sampling_high` is the 90 % interval of `predicted` over samples of the traffic (Student's t over
    `replications` samples, each bisected separately); None with a single sample.
    """

    predicted: float
    at_confidence: float
    confidence: float
    low: float
    high: float
    replications: int
    sampling_low: float | None
    sampling_high: float | None


class RatePoint(NamedTuple):
    """Settings of one simulation: `rate` (requests/s, or requests in flight of a closed loop), quantile of the
    step-time error (`level`), traffic sample index."""

    rate: float
    level: float | None = None
    draw: int = 0
    give_up: bool = False


@dataclass(frozen=True, kw_only=True)
class Served:
    """Deployment, samples of the traffic and SLO, to be simulated at any request rate.

    Closed loops are simulated at any concurrency up to that of the samples. `remaining_error`: fraction of the
    step-time error's standard deviation that measurements at similar loads leave.
    """

    resolved: ResolvedPool
    workloads: Sequence[Workload]
    goal: Goal
    replicas: int
    service: Service = NO_SERVICE
    remaining_error: float = 1.0

    def trial(self, ask: RatePoint) -> Evaluation:
        """Simulate the deployment at one load, in this process or on a worker."""
        factors = factors_at(self.resolved, ask.level, self.remaining_error)
        engines = EngineGroup(resolved=self.resolved, replicas=self.replicas, factors=factors)
        scaled = [_at_load(self.workloads[ask.draw], ask.rate)]
        return evaluate_engines(
            [engines],
            scaled,
            self.goal,
            service=self.service,
            give_up=ask.give_up,
            check=stop_if_recalled,
        )


def _at_load(workload: Workload, load: float) -> Workload:
    """Return the requests at `load`: a request rate, or a number of requests in flight (rounded down, at least 1).

    For each request in flight, a closed loop keeps the number of requests that it has.
    """
    if workload.concurrency is None:
        return workload.set_rate(load)
    concurrency = min(max(int(load), 1), workload.concurrency)
    requests = workload.head(math.ceil(len(workload) * concurrency / workload.concurrency))
    return replace(requests, concurrency=concurrency)


@dataclass(kw_only=True)
class RateRuns:
    """Simulations of a deployment at different rates, in parallel if `worker_pool` is given, with progress reports; one
    bisection takes about nine simulations."""

    served: Served
    worker_pool: WorkerPool | None
    progress: Callable[[int, int], None] | None
    expected: int = 0
    done: int = 0

    def _report_progress(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, max(self.expected, self.done + 1))

    def _run_chains(self, chains: Sequence[Generator[RatePoint, Evaluation, Value]]) -> list[Value]:
        return run_in_parallel(
            chains,
            self.served.trial,
            worker_pool=self.worker_pool,
            function=Served.trial,
            on_answer=self._report_progress,
        )

    def evaluate_all(self, rates: Sequence[float]) -> list[Evaluation]:
        """Return the evaluations at these rates; each simulates all requests, even if the SLO is already missed."""
        chains: list[Generator[RatePoint, Evaluation, Evaluation]] = [
            single_request(RatePoint(rate)) for rate in rates
        ]
        return self._run_chains(chains)

    def highest(self, guess: float, confidence: float) -> tuple[HighestRate | None, tuple[str, ...]]:
        """Return the highest load that meets the SLO; None and a note if every load meets it.

        For a closed loop it is at most the concurrency of the workloads.
        """
        draws, most = len(self.served.workloads), self.served.workloads[0].concurrency
        asked: list[tuple[float | None, int]] = [(None, draw) for draw in range(draws)]
        asked += [(level, 0) for level in (confidence, 0.95, 0.05)]
        *predicted, at_confidence, low, high = self._run_chains(
            [
                _bisect(guess, level, draw) if most is None else _search_loop(int(guess), level, draw, most)
                for level, draw in asked
            ]
        )
        sampling_low, sampling_high = _interval(predicted)
        highest = HighestRate(
            predicted=predicted[0],
            at_confidence=at_confidence,
            confidence=confidence,
            low=low,
            high=high,
            replications=draws,
            sampling_low=sampling_low,
            sampling_high=sampling_high,
        )
        if highest.predicted == most:
            return highest, (f"A concurrency above {most:,} was not tried.",)
        if not math.isinf(max(highest.predicted, highest.high)):
            return highest, ()
        note = (
            f"These {len(self.served.workloads[0]):,} requests meet the SLO at any rate, because they are too few to "
            "fill the engine. Increase --num-prompts."
        )
        return None, (note,)


def _interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 90 % prediction interval for one more value, by Student's t; None for fewer than 2 values."""
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return None, None
    from scipy.special import stdtrit

    mean, spread = statistics.mean(values), statistics.stdev(values)
    reach = float(stdtrit(len(values) - 1, 0.95)) * spread * math.sqrt(1 + 1 / len(values))
    return max(mean - reach, 0.0), mean + reach


def _bisect(guess: float, level: float | None, draw: int) -> Generator[RatePoint, Evaluation, float]:
    asking = highest_rate(guess)
    rate = next(asking)
    while True:
        trial = yield RatePoint(rate, level, draw, give_up=True)
        try:
            rate = asking.send(trial.met)
        except StopIteration as found:
            highest: float = found.value
            return highest


def _search_loop(
    guess: int, level: float | None, draw: int, most: int
) -> Generator[RatePoint, Evaluation, float]:
    """Find the most requests in flight that meet the SLO, within `TOLERANCE` and at most `most`; 0 if none meets it.

    The next number to try is interpolated from the ratios of latency to limit, because they rise almost linearly with
    the requests in flight. If the last one did not halve the interval, it is the middle of the interval.
    """
    load, low, other, high = min(guess, most), (0, 0.0), (0, 0.0), math.inf
    while True:
        trial = yield RatePoint(load, level, draw, give_up=True)
        width = high - low[0]
        if not trial.met:
            high, other = load, (load, trial.ratio)
        else:
            low, other = (load, trial.ratio), low if high == math.inf else other
        step = max(int(TOLERANCE * low[0]), 1)
        if high - low[0] <= step or low[0] == most:
            return low[0]
        rise = (other[1] - low[1]) / (other[0] - low[0])
        if rise > 0 and 2 * (high - low[0]) <= width:
            target = low[0] + (1 - low[1]) / rise
        else:
            target = 2 * low[0] if high == math.inf else (low[0] + high) / 2
        load = int(min(max(target, low[0] + step), high - step, most))
