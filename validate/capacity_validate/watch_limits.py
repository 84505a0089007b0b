"""The highest load within the SLO of a watched server, from predictions corrected by what was measured on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from capacity.answers.interval_parts import Z_90
from capacity.answers.records import Quantity
from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity.hardware.measured_loads import REPEATED, LoadMetric, MeasuredLoad, remaining_error
from capacity.planning.evaluation.evaluate import highest_rate
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.load.highest_rate import RatePoint, Served
from capacity.planning.workers.worker_pool import run_in_parallel
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Slo
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.comparison import MetricRow
from capacity_validate.replaying import RESAMPLED_DEVIATION
from capacity_validate.watch_report import Scenario

CONFIDENCE = 0.9
ENDS = (0.05, 0.95)  # quantiles of step times
ANY: LoadMetric = "tpot"  # the key of an error whose metric is known from its place
UNMEASURED_LOAD = 1e9  # requests in flight, far from every measured load
SAME_CORRECTION = 0.02  # of a factor, or of the remaining fraction of an error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadErrors:
    """Errors (logarithms) of a prediction at the measured loads; `deviation`: at a load that was not measured."""

    loads: tuple[MeasuredLoad, ...] = ()
    deviation: float = 0.0

    def error_at(self, in_flight: float) -> tuple[float, float]:
        """Return the expected error at a load, and the standard deviation of the error that remains."""
        if not self.loads:
            return 0.0, self.deviation
        place = (max(in_flight, 1e-3), *self.loads[-1].place[1:])
        expected, remaining = remaining_error(self.loads, ANY, place, self.deviation)
        return expected, remaining * self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Errors of one SLO's predicted latency at the measured loads: of its mean, and of its percentile / mean.

    `shared`: logarithm of the calibrated factor for all loads. `repeated`: standard deviation between repeated runs.
    """

    slo: Slo
    shared: float
    repeated: float
    mean: LoadErrors
    tail: LoadErrors

    def factor(self, in_flight: float) -> float:
        """Return measured / simulated latency at a load."""
        return math.exp(self.shared + self.mean.error_at(in_flight)[0] + self.tail.error_at(in_flight)[0])

    def remaining_fraction(self, in_flight: float) -> float:
        """Return the fraction of the mean's standard deviation that the measurements leave at a load."""
        return self.mean.error_at(in_flight)[1] / self.mean.deviation if self.mean.deviation else 1.0

    def is_same(self, one: float, other: float) -> bool:
        """Return whether the correction differs too little between two loads to need a further search."""
        apart = (abs(change(one) - change(other)) for change in (self.factor, self.remaining_fraction))
        return max(apart) < SAME_CORRECTION

    def scatter(self, in_flight: float) -> float:
        """Return the standard deviation of the percentile's logarithm in a run of known mean step times."""
        return math.hypot(self.repeated, self.tail.error_at(in_flight)[1])


def find_corrections(
    slos: Sequence[Slo], present: ResolvedPool, found: Sequence[tuple[MeasuredRun, Sequence[MetricRow]]]
) -> tuple[Correction, ...]:
    """Return the correction of each SLO's latency from runs and their metrics as measured and as predicted."""
    adjustment, corrections = present.profile.adjustment, []
    for slo in slos:
        kind: LoadMetric = "ttft" if METRICS[slo.metric].error == "ttft" else "tpot"
        names = [f"{statistic}_{slo.metric}_ms" for statistic in ("mean", f"p{slo.percentile:g}")]
        pairs = []
        for run, rows in found:
            by_name = {row.name: row for row in rows}
            if names[0] in by_name:
                pairs.append((run, by_name[names[0]], by_name.get(names[1])))
        errors = [_run_errors(run, mean, tail, kind, len(pairs)) for run, mean, tail in pairs]
        corrections.append(
            Correction(
                slo=slo,
                shared=0.0 if adjustment is None else adjustment.mean(kind),
                repeated=REPEATED[kind],
                mean=_merge_errors([mean for mean, _ in errors]),
                tail=_merge_errors([tail for _, tail in errors]),
            )
        )
    return tuple(corrections)


def _run_errors(
    run: MeasuredRun, mean: MetricRow, tail: MetricRow | None, kind: LoadMetric, runs: int
) -> tuple[LoadErrors, LoadErrors]:
    """Return the errors of a run's mean, and of its percentile / mean if the server exports the percentile.

    Percentiles of several `runs` are often in the same bucket, so their average is as uncertain as one of them.
    """
    deviation, error = _deviation(mean), _error(mean)
    load = MeasuredLoad(
        deployment="",
        in_flight=in_flight(run),
        input_len=run.mean_prompt_tokens or 1.0,
        output_len=run.mean_output_tokens or 1.0,
        errors={ANY: error},
        scatter={ANY: math.hypot(REPEATED[kind], RESAMPLED_DEVIATION)},
    )
    means = LoadErrors(loads=(load,), deviation=deviation)
    if tail is None:
        return means, LoadErrors()
    bucket = run.deviations.get(tail.name, 0.0)
    beyond = math.sqrt(max(_deviation(tail) ** 2 - deviation**2 - bucket**2, 0.0))
    scatter = {ANY: math.hypot(load.scatter[ANY], bucket * math.sqrt(runs))}
    own = load.model_copy(update={"errors": {ANY: _error(tail) - error}, "scatter": scatter})
    return means, LoadErrors(loads=(own,), deviation=beyond)


def _merge_errors(found: Sequence[LoadErrors]) -> LoadErrors:
    loads = tuple(load for each in found for load in each.loads)
    return LoadErrors(loads=loads, deviation=max((each.deviation for each in found), default=0.0))


def _error(row: MetricRow) -> float:
    return math.log(row.measured / row.predicted) if row.predicted and row.measured else 0.0


def _deviation(row: MetricRow) -> float:
    return math.log(row.high / row.low) / 2 / Z_90 if row.low and row.high else 0.0


def in_flight(run: MeasuredRun) -> float:
    """Return the mean number of requests in flight of a run with a request rate, by Little's law; at least 0.001."""
    return max((run.request_rate or 0.0) * run.latencies_ms.get("e2el", {}).get("mean", 0.0) / 1e3, 1e-3)


def find_limits(
    name: str, served: Served, rate_per_s: float, corrections: Sequence[Correction], replicas: int
) -> Scenario:
    """Return the highest load within the SLO of `replicas` equal replicas. `served`: one of them, and its requests.

    The correction depends on the load that is searched, so a second search uses the correction at the load found first.
    Raises InvalidInput if every load meets the SLO.
    """
    own_rate = rate_per_s / replicas
    rates, loads = _search(served, own_rate, corrections, UNMEASURED_LOAD)
    if not all(each.is_same(UNMEASURED_LOAD, loads[0]) for each in corrections):
        rates, loads = _search(served, own_rate, corrections, loads[0])
    *ends_per_s, safe_per_s = (replicas * rate for rate in rates)
    *ends, safe = (replicas * load for load in loads)
    return Scenario(
        name=name,
        highest_rate_per_s=_hull(*ends_per_s),
        safe_rate_per_s=safe_per_s,
        highest_concurrency=_hull(*ends),
        safe_concurrency=safe,
        load_ratio=_load_ratio(loads[0], corrections),
        levels_s=dict(_levels(served, own_rate, corrections)),
    )


def _search(
    served: Served, rate_per_s: float, corrections: Sequence[Correction], load: float
) -> tuple[list[float], list[float]]:
    """Return the highest rates with the corrections at `load`, and the requests in flight at them: with predicted,
    slow, fast and safe steps."""
    corrected, found = _apply_corrections(served, corrections, load), {}
    least, start = 0.0, rate_per_s
    for level in (
        ENDS[1],
        CONFIDENCE,
        None,
        ENDS[0],
    ):  # a faster level meets the SLO at least at the same rates
        found[level] = _highest(corrected, level, least, start)
        least = found[level][0]
        if least > 0:
            start *= 2.0 ** math.floor(math.log2(least / start))
    rates, loads = zip(*(found[level] for level in (None, *ENDS, CONFIDENCE)), strict=True)
    return list(rates), list(loads)


def _highest(served: Served, level: float | None, least: float, start: float) -> tuple[float, float]:
    """Return the highest rate at one quantile of step times, and the requests in flight. It is at least `least`."""
    trial = cache(lambda rate: served.trial(RatePoint(rate, level)))

    def meets(rate: float) -> bool:
        return rate <= least or trial(rate).met

    (rate,) = run_in_parallel([highest_rate(start)], meets, worker_pool=None, function=meets)
    if math.isinf(rate):
        raise InvalidInput(
            f"the {len(served.workloads[0]):,} simulated requests meet the SLO at any rate: give a stricter --slo"
        )
    return rate, rate * trial(rate).mean_e2e_s if rate else 0.0


def _apply_corrections(served: Served, corrections: Sequence[Correction], load: float) -> Served:
    """Return the deployment with limits and step-time errors as they are after the corrections at this load."""
    slos = tuple(replace(each.slo, limit_s=each.slo.limit_s / each.factor(load)) for each in corrections)
    remaining = max(each.remaining_fraction(load) for each in corrections)
    return replace(served, goal=Goal(slos=slos), remaining_error=remaining)


def _load_ratio(load: float, corrections: Sequence[Correction]) -> float | None:
    """Return this number of requests in flight divided by that of the nearest measured load."""
    ratios = [load / each.in_flight for found in corrections for each in found.mean.loads if load]
    return min(ratios, key=lambda ratio: abs(math.log(ratio)), default=None)


def _levels(
    served: Served, rate_per_s: float, corrections: Sequence[Correction]
) -> Iterator[tuple[str, Quantity]]:
    """Yield each SLO and its corrected latency at this rate; the interval contains the scatter of repeated runs."""
    now = served.trial(RatePoint(rate_per_s))
    load = rate_per_s * now.mean_e2e_s
    corrected = _apply_corrections(served, corrections, load)
    found = [now, *(corrected.trial(RatePoint(rate_per_s, level)) for level in ENDS)]
    for place, each in enumerate(corrections):
        value, *ends = (each.factor(load) * (trial.levels[place].value_s or 0.0) for trial in found)
        away = Z_90 * each.scatter(load)
        low, high = (math.hypot(math.log(end / value), away) if value else 0.0 for end in ends)
        yield str(each.slo), Quantity(value=value, low=value * math.exp(-low), high=value * math.exp(high))


def _hull(value: float, *ends: float) -> Quantity:
    return Quantity(value=value, low=min(value, *ends), high=max(value, *ends))


def correction_notes(corrections: Sequence[Correction], scenario: Scenario) -> Iterator[str]:
    """Yield by what predictions are multiplied at the measured loads, and how far the scenario's limit is from them."""
    known = [each for each in corrections if each.mean.loads]
    if not known or scenario.load_ratio is None:
        return
    loads = sorted(load.in_flight for load in known[0].mean.loads)
    measured = " to ".join(dict.fromkeys(f"{load:.3g}" for load in (loads[0], loads[-1])))
    yield (
        f"At the measured load ({measured} requests in flight), simulated latencies are multiplied by "
        f"{_factors_text(known, known[0].mean.loads[-1].in_flight)}."
    )
    limit = scenario.highest_concurrency.value
    remaining = max(each.remaining_fraction(limit) for each in known)
    yield (
        f"The highest load ({limit:.3g} requests in flight, {scenario.load_ratio:.2g} times the nearest measured load) "
        f"is an extrapolation: there the factors are {_factors_text(known, limit)}, and the measurements remove "
        f"{1 - remaining:.0%} of the uncertainty of step times."
    )
    yield (
        "Percentiles of the server are interpolated in a bucket of its histogram. The tables predict the latency "
        "itself, the lines below them the interpolated value."
    )


def _factors_text(corrections: Sequence[Correction], load: float) -> str:
    return ", ".join(f"{each.factor(load):.2f} ({str(each.slo).rpartition(':')[0]})" for each in corrections)
