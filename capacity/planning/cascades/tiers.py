"""Cost and latency of one tier of a cascade, on your own engines or on an API, at a request rate.

Your own engines are counted in whole numbers: the fewest that keep each engine at or below the target fraction of its
full load, as in `capacity cost`. Their latency is that of one simulated engine at its share of the arrivals.

Latency distribution of requests that follow different paths; a path is a sequence of stages.

Stage times of a path are assumed to be independent. Errors of the stages may have the same sign, so the 90 % interval
of the result is computed with all stages at the low end of their interval and with all at the high end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from capacity.answers.deployment_run import with_replicas
from capacity.answers.engine_setup import make_workload
from capacity.answers.full_load import full_load
from capacity.answers.records import Quantity, Simulation
from capacity.answers.simulate import simulate
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic, build
from capacity.hardware.pricing import SECONDS_PER_HOUR, Price, billed_gpus, usd_per_hour
from capacity.planning.bills.hosted_prices import ApiPrice
from capacity.pool.resolve import ResolvedPool

Statistic = Literal["mean", "p95"]
Ends = tuple[float, float]  # of an interval, relative to the value
Times = npt.NDArray[np.float64]

EXACT: Ends = (1.0, 1.0)
MAX_POINTS = 512  # limit per stage when stages are added, because all pairs of points are formed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """Times of one processing stage in seconds, one for each simulated request. `mean_ends` and `p95_ends` are the
    relative 90 % intervals of the mean and of the p95; None if unknown."""

    seconds: Times
    mean_ends: Ends | None = EXACT
    p95_ends: Ends | None = EXACT

    @classmethod
    def constant(cls, seconds: float) -> "Stage":
        """Return a stage that takes `seconds` for every request, without error."""
        return cls(seconds=np.array([seconds]))

    def ends(self, statistic: Statistic) -> Ends | None:
        """Return the 90 % interval of the mean or the p95, relative to its value; None if unknown."""
        return self.mean_ends if statistic == "mean" else self.p95_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPath:
    """Stages that a share of the requests passes through in sequence."""

    share: float
    stages: tuple[Stage, ...]


def mixture_latency(ways: Sequence[RequestPath], statistic: Statistic) -> Quantity:
    """Return the mean or the p95 latency of all requests in seconds; the shares of the paths add up to 1."""
    taken = [way for way in ways if way.share > 0]
    value = _statistic_at(taken, statistic, None)
    if any(stage.ends(statistic) is None for way in taken for stage in way.stages):
        return Quantity(value=value)
    return Quantity(
        value=value, low=_statistic_at(taken, statistic, 0), high=_statistic_at(taken, statistic, 1)
    )


def _statistic_at(ways: Sequence[RequestPath], statistic: Statistic, end: int | None) -> float:
    """Return the mean or p95 latency at the low (0) or high (1) end of all stage intervals, or as predicted (None)."""
    if statistic == "mean":
        return sum(
            way.share * sum(float(_times_at(stage, statistic, end).mean()) for stage in way.stages)
            for way in ways
        )
    times = []
    for way in ways:
        first, *others = (_times_at(stage, statistic, end) for stage in way.stages)
        for other in others:  # the distribution of a sum of independent times: all pairs of points
            first = (_thin_out(first)[:, None] + _thin_out(other)[None, :]).ravel()
        times.append(first)
    weights = [np.full(len(drawn), way.share / len(drawn)) for way, drawn in zip(ways, times, strict=True)]
    return _quantile(np.concatenate(times), np.concatenate(weights), 0.95)


def _times_at(stage: Stage, statistic: Statistic, end: int | None) -> Times:
    ends = stage.ends(statistic)
    return stage.seconds if end is None or ends is None else stage.seconds * ends[end]


def _thin_out(times: Times) -> Times:
    """Return at most `MAX_POINTS` times of the same distribution, at equally spaced quantiles."""
    if len(times) <= MAX_POINTS:
        return times
    return np.quantile(times, (np.arange(MAX_POINTS) + 0.5) / MAX_POINTS)


def _quantile(times: Times, weights: Times, part: float) -> float:
    """Return the weighted quantile at fraction `part`, interpolated between neighbouring times."""
    order = np.argsort(times, kind="stable")
    times, reached = times[order], np.cumsum(weights[order])
    middles = (reached - weights[order] / 2) / reached[-1]
    return float(np.interp(part, middles, times))


MAX_ENGINES = 1_000_000
UNSTEADY_VERDICTS = ("saturated", "overloaded")  # verdicts with a growing queue, or nearly so


class AnswerTimes(NamedTuple):
    """Times to the first and to the last token of an answer; `warning` is a note if the queue grows without bound.

    `client_s`: round-trip time between client and server that both times include; 0 for an API, where it is unknown.
    """

    ttft: Stage
    e2e: Stage
    warning: str | None = None
    client_s: float = 0.0


@dataclass(frozen=True)
class HostedSide:
    """Tier on an API that charges per token and has no engines; the user gives its latencies."""

    price: ApiPrice
    input_tokens: float
    output_tokens: float
    ttft_s: float | None
    tpot_s: float | None

    @property
    def place(self) -> str:
        return "an API" if self.price.provider == "user" else f"API of {self.price.provider}"

    @property
    def usd_at_scale(self) -> Quantity:
        usd = self.price.usd_per_request(self.input_tokens, self.output_tokens, 0.0)
        return Quantity(value=usd, low=usd, high=usd)

    def engines(self, _: float, /) -> None:
        return None

    billed_gpus = utilization = engines

    def usd_per_hour(self, requests_per_s: float, /) -> Quantity:
        return self.usd_at_scale.scale(requests_per_s * SECONDS_PER_HOUR)

    def waits(self, _: float, /) -> AnswerTimes | None:
        """Return the times to the first and last token; None if the user gave no latency."""
        if self.ttft_s is None:
            return None
        e2e_s = self.ttft_s + (self.output_tokens - 1) * (self.tpot_s or 0.0)
        return AnswerTimes(Stage.constant(self.ttft_s), Stage.constant(e2e_s))


@dataclass(frozen=True)
class OwnSide:
    """Tier on engines of one pool, each at fraction `target` of its full load; the rate in `traffic` is unused."""

    resolved: ResolvedPool
    price: Price
    traffic: Traffic
    target: float

    @property
    def place(self) -> str:
        gpus = self.resolved.pool.num_gpus
        return f"{gpus} x {self.resolved.profile.name}, {self.resolved.engine.label}"

    def _traffic_at(self, requests_per_s: float) -> Traffic:
        fields = {name: getattr(self.traffic, name) for name in self.traffic.model_fields_set - RATES}
        return build(Traffic, {**fields, "request_rate": requests_per_s})

    @cached_property
    def capacity_per_s(self) -> Quantity:
        """Return the requests/s of one engine at full load; its interval comes from the error of the step times."""
        one = with_replicas(self.resolved, 1)
        requests = make_workload(self._traffic_at(1.0), one.max_model_len)
        full, (low, high) = full_load(one, requests)
        rate = full.requests_per_s
        return Quantity(value=rate, low=rate / high, high=rate / low)

    @property
    def usd_at_scale(self) -> Quantity:
        """Return the cost per request in $ without rounding to whole engines."""
        usd_per_engine_hour = usd_per_hour(self.price, self.resolved.pool.num_gpus)
        return self.capacity_per_s.inverse(usd_per_engine_hour / SECONDS_PER_HOUR / self.target)

    def engines(self, requests_per_s: float, /) -> int:
        return self._engines(requests_per_s, self.capacity_per_s.value)

    def _engines(self, requests_per_s: float, capacity_per_s: float) -> int:
        needed = requests_per_s / (self.target * capacity_per_s)
        if needed > MAX_ENGINES:
            raise InvalidInput(
                f"{requests_per_s:,.6g} requests/s need {needed:,.3g} engines of {self.resolved.model.name}, more than "
                f"{MAX_ENGINES:,}: give a lower --request-rate"
            )
        return math.ceil(needed - 1e-9)

    def billed_gpus(self, requests_per_s: float, /) -> int:
        return billed_gpus(self.price, self.engines(requests_per_s) * self.resolved.pool.num_gpus)

    def utilization(self, requests_per_s: float, /) -> float | None:
        """Return the load of the engines at this request rate as a fraction of full load."""
        engines = self.engines(requests_per_s)
        return requests_per_s / (engines * self.capacity_per_s.value) if engines else None

    def usd_per_hour(self, requests_per_s: float, /) -> Quantity:
        capacity, gpus = self.capacity_per_s, self.resolved.pool.num_gpus
        value, low, high = (
            usd_per_hour(self.price, billed_gpus(self.price, self._engines(requests_per_s, rate) * gpus))
            for rate in (capacity.value, capacity.high or capacity.value, capacity.low or capacity.value)
        )
        return Quantity(value=value, low=low, high=high)

    def waits(self, requests_per_s: float, /) -> AnswerTimes | None:
        return answer_times(self.simulate_share(requests_per_s))._replace(
            client_s=self.traffic.client_latency_s
        )

    def simulate_share(self, requests_per_s: float, /) -> Simulation:
        """Simulate one engine at its share of the tier's request rate, as `capacity simulate` does."""
        each = requests_per_s / max(self.engines(requests_per_s), 1)
        pool = self.resolved.pool.model_dump(exclude_unset=True, exclude={"model"})
        return simulate(self.resolved.model, **pool, **self._traffic_at(each).model_dump(exclude_unset=True))


# traffic fields that set the rate
RATES = {"request_rate", "requests_per_day", "users", "think_time_s", "response_s", "user_loop"}


Side = HostedSide | OwnSide


def answer_times(answer: Simulation) -> AnswerTimes:
    """Return TTFT and E2E latency of each completed request, with the prediction intervals of their mean and p95."""
    verdict, records = answer.verdict, answer.run.records
    warning = None
    if verdict is not None and verdict.verdict in UNSTEADY_VERDICTS:
        warning = (
            f"{answer.model.name} is {verdict.verdict}: {verdict.reason}. Set a lower --target-utilization."
        )
    ttft, e2e = (
        Stage(
            seconds=np.asarray(records.latency_s(metric)[records.completed]),
            mean_ends=_ends(answer.predicted_ms.get(f"mean_{metric}_ms")),
            p95_ends=_ends(answer.predicted_ms.get(f"p95_{metric}_ms")),
        )
        for metric in ("ttft", "e2el")
    )
    return AnswerTimes(ttft, e2e, warning)


def _ends(quantity: Quantity | None) -> Ends | None:
    if quantity is None or quantity.low is None or quantity.high is None or not quantity.value:
        return None
    return quantity.low / quantity.value, quantity.high / quantity.value
