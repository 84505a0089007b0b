"""Replay a benchmark: simulate the user's deployment with the requests of a measured run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.answers.interval_parts import Z_90
from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.measured_loads import REPEATED, LoadMetric, MeasuredLoad
from capacity.hardware.spreads import metric_deviation, prior_adjustment
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import FrontendTimes, SimulationResult, simulate
from capacity.simulator.load_means import whole_run_means
from capacity.step import DecodePiece, StepShape, StepTimes, picoseconds
from capacity.step.export import DelayedData
from capacity.step.shape import decode_shape
from capacity.step.time_classes import TIME_CLASSES
from capacity.workload import Workload
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.posterior import MeasuredFigure, Vector
from capacity_validate.rebuilt_load import alternative_workload, rebuild_workload
from capacity_validate.server_log import DecodeSteps


class _WithOverhead:
    """Step times with a constant added to every step."""

    def __init__(self, inner: StepTimes, step_s: float) -> None:
        self._inner = inner
        self._added_ps = picoseconds(step_s)

    def step_ps(self, shape: StepShape) -> int:
        return max(1, self._inner.step_ps(shape) + self._added_ps)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:
        piece = self._inner.decode_piece(shape)
        return None if piece is None else piece._replace(base_ps=piece.base_ps + self._added_ps)

    def step_data(self) -> DelayedData:
        return DelayedData(inner=self._inner, added_ps=self._added_ps)


def run_frontend(resolved: ResolvedPool, run: MeasuredRun) -> FrontendTimes:
    """Return the times between client and engine (HTTP, tokenizer); zero for a run inside the engine's process."""
    return FrontendTimes() if run.in_process else engine_frontend(resolved)


def replay(
    resolved: ResolvedPool, workload: Workload, *, step_s: float = 0.0, frontend: FrontendTimes | None = None
) -> SimulationResult:
    """Simulate the requests on the pool's engine, with `step_s` added to each step."""
    times: StepTimes = resolved.step_model if not step_s else _WithOverhead(resolved.step_model, step_s)
    setup = replace(setup_of(resolved), step_times=times)
    return simulate(workload, setup, frontend=frontend or engine_frontend(resolved))


def replay_metrics(
    resolved: ResolvedPool, workload: Workload, *, step_s: float = 0.0, frontend: FrontendTimes | None = None
) -> dict[str, Any]:
    """Return the metrics of a simulated run under the benchmark's names; `status` states whether the run completed."""
    result = replay(resolved, workload, step_s=step_s, frontend=frontend)
    return {**result.to_dict(), "status": result.status, "rejected": result.rejected}


TAIL_FACTOR = 1.5  # factor on the deviation of percentiles from p90
RESAMPLED_DEVIATION = 0.05  # additional deviation if arrivals or lengths were resampled
PERCENTILES = ("p90", "p99")
MAX_LOAD_DEVIATION = 3.0  # of a metric if the server does not complete one of the two possible workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A measured run with its requests (`exact`: as recorded, not resampled) and the `names` of its metrics to fit."""

    run: MeasuredRun
    workload: Workload
    exact: bool
    names: tuple[str, ...]
    # standard deviation of ln(metric) due to unknown parts of the load
    load_deviations: Mapping[str, float] = field(default_factory=dict)

    def simulate(self, resolved: ResolvedPool) -> SimulationResult:
        return replay(resolved, self.workload, frontend=run_frontend(resolved, self.run))

    def predict(self, resolved: ResolvedPool, beyond: Mapping[str, float]) -> list[float]:
        """Simulate this run and return its metrics, corrected by the factors of TTFT and TPOT in `beyond`."""
        return self.values(self.simulate(resolved), beyond)

    def values(self, simulated: SimulationResult, beyond: Mapping[str, float]) -> list[float]:
        """Return each metric's value in a simulation of this run, corrected; NaN if the simulation did not complete.

        `beyond`: correction factors of TTFT and TPOT (`ttft`, `tpot`) for effects that are not simulated. The factors
        of ITL, E2E and throughput follow from these two.
        """
        result: dict[str, Any] = simulated.to_dict()
        if simulated.status != "complete":
            return [math.nan for _ in self.names]
        ttft, e2e = (float(result.get(f"mean_{metric}_ms") or 0.0) for metric in ("ttft", "e2el"))
        share = ttft / e2e if e2e else 0.0
        whole = share * beyond["ttft"] + (1 - share) * beyond["tpot"]
        factors = {**beyond, "itl": beyond["tpot"], "e2el": whole, "throughput": 1 / whole}
        return [
            float(result.get(name) or math.nan) * factors[_split_metric_name(name)[0]] for name in self.names
        ]

    def measured_load(self, resolved: ResolvedPool) -> MeasuredLoad | None:
        """Return this run's load with the errors of mean TTFT and TPOT after calibration; None if the simulation does
        not complete."""
        simulated, adjustment = self.simulate(resolved), resolved.profile.adjustment
        means = whole_run_means(simulated.summary, simulated.records)
        if simulated.status != "complete" or means is None:
            return None
        beyond: dict[str, float] = {
            name: 1.0 if adjustment is None else adjustment.factor(name) for name in REPEATED
        }
        errors = {}
        for name, predicted in zip(self.names, self.values(simulated, beyond), strict=True):
            metric, statistic = _split_metric_name(name)
            known: LoadMetric = "ttft" if metric == "ttft" else "tpot"
            if metric in ("ttft", "tpot", "itl") and statistic not in PERCENTILES:
                errors[known] = math.log(measured_value(self.run, name) / predicted)
        resampled = 0.0 if self.exact else RESAMPLED_DEVIATION
        return MeasuredLoad(
            deployment=resolved.deployment_name,
            in_flight=means.in_flight,
            input_len=float(self.workload.prompt_tokens.mean()),
            output_len=float(self.workload.output_tokens.mean()),
            errors=errors,
            scatter={name: math.hypot(scatter, resampled) for name, scatter in REPEATED.items()},
        )


def replayed_run(run: MeasuredRun, traffic: dict[str, Any], resolved: ResolvedPool) -> ReplayedRun:
    """Return a run with its rebuilt requests. Raises InvalidInput if a value is missing.

    If the files leave two workloads possible (`alternative_workload`), `load_deviations` are the differences between
    the logarithms of the metrics predicted for the two.
    """
    workload, how = rebuild_workload(run, traffic)
    exact = how == "replayed request by request"
    found = ReplayedRun(run=run, workload=workload, exact=exact, names=tuple(fitted_metric_names(run)))
    other = alternative_workload(run, traffic)
    if other is None:
        return found
    one = {"ttft": 1.0, "tpot": 1.0}
    values = (each.predict(resolved, one) for each in (found, replace(found, workload=other)))
    apart = [abs(math.log(a / b)) for a, b in zip(*values, strict=True)]
    deviations = {
        name: each if math.isfinite(each) else MAX_LOAD_DEVIATION
        for name, each in zip(found.names, apart, strict=True)
    }
    return replace(found, load_deviations=deviations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """All measurements of one deployment. `resolved` uses the logged KV cache size, `planned` an estimate."""

    resolved: ResolvedPool
    planned: ResolvedPool
    runs: tuple[ReplayedRun, ...]
    steps: tuple[DecodeSteps, ...]
    kv_tokens: int | None
    # of the latest parameters, without the factors of TTFT and TPOT
    _simulated: dict[tuple[float, ...], list[SimulationResult]] = field(default_factory=dict, compare=False)

    @property
    def figures(self) -> list[MeasuredFigure]:
        found = [figure for replayed_run in self.runs for figure in self._run_figures(replayed_run)]
        found += [
            MeasuredFigure(
                name=f"decode step of {steps.sequences} sequences (s)",
                value=steps.seconds,
                deviation=self._scatter("step"),
                shared=f"step {steps.sequences}",
            )
            for steps in self.steps
        ]
        if self.kv_tokens is not None:
            found.append(
                MeasuredFigure(
                    name="KV tokens",
                    value=float(self.kv_tokens),
                    deviation=self._scatter("kv_tokens"),
                    shared="kv",
                )
            )
        return found

    @property
    def active(self) -> list[int]:
        """Return the indices of the parameters that can affect one of the measurements."""
        pool, is_moe = self.resolved.pool, self.resolved.model.is_moe
        ranks = pool.tensor_parallel_size * pool.pipeline_parallel_size * self.resolved.lockstep_ranks
        matters = {
            "experts": is_moe,
            "experts_tilt": is_moe,
            "all_reduce": ranks > 1,
            "front_end": any(not found.run.in_process for found in self.runs),
            "eager": bool(self.runs),
            "compute": bool(self.runs),
            "kv_overhead": self.kv_tokens is not None,
        }
        return [i for i, name in enumerate(NAMES) if matters.get(name, True)]

    def predict(self, theta: Vector) -> Vector:
        """Return the logarithm of the prediction of each measurement, in the order of `figures`."""
        known = self.resolved.profile.adjustment
        adjustment = make_adjustment(theta) if known is None else make_adjustment(theta).keep_kernels(known)
        resolved = self.resolved.adjusted_by(adjustment)
        beyond = {metric: adjustment.factor(metric) for metric in ("ttft", "tpot")}
        simulated = zip(self.runs, self._simulate(resolved, theta), strict=True)
        values = [value for found, result in simulated for value in found.values(result, beyond)]
        values += [_step_seconds(resolved, steps) * beyond["tpot"] for steps in self.steps]
        if self.kv_tokens is not None:
            values.append(float(self.planned.adjusted_by(adjustment).memory.kv_capacity_tokens))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(np.array(values, dtype=np.float64))

    def _simulate(self, resolved: ResolvedPool, theta: Vector) -> list[SimulationResult]:
        """Return the simulations of the runs; parameters that differ in the factors of TTFT and TPOT share them."""
        key = tuple(value for name, value in zip(NAMES, theta, strict=True) if name not in REPEATED)
        if key not in self._simulated:
            self._simulated[key] = [found.simulate(resolved) for found in self.runs]
            for old in list(self._simulated)[: -len(NAMES)]:
                del self._simulated[old]
        return self._simulated[key]

    def _run_figures(self, found: ReplayedRun) -> Iterator[MeasuredFigure]:
        run_name = self._run_name(found)
        for name in found.names:
            metric, statistic = _split_metric_name(name)
            deviation = self._scatter(metric) * (TAIL_FACTOR if statistic in PERCENTILES else 1.0)
            more = (found.run.deviations.get(name, 0.0), found.load_deviations.get(name, 0.0))
            yield MeasuredFigure(
                name=f"{name} of {run_name}",
                value=measured_value(found.run, name),
                deviation=math.hypot(deviation, *more, 0.0 if found.exact else RESAMPLED_DEVIATION),
                shared=f"{id(found)} {metric}",
            )

    def names_of(self, found: ReplayedRun) -> list[str]:
        """Return the names of a run's measurements in `figures`."""
        return [f"{name} of {self._run_name(found)}" for name in found.names]

    def _run_name(self, found: ReplayedRun) -> str:
        """Return a run's file name, followed by its mean request lengths if the file contains several runs."""
        path = found.run.path
        name = path if "://" in path else Path(path).name
        if sum(other.run.path == path for other in self.runs) == 1:
            return name
        prompt, output = found.workload.prompt_tokens.mean(), found.workload.output_tokens.mean()
        return f"{name}, {prompt:.0f} in, {output:.0f} out"

    def _scatter(self, metric: str) -> float:
        """Return the standard deviation of ln(metric) between repeated runs of one deployment."""
        return metric_deviation(metric, is_moe=self.resolved.model.is_moe)


def engine_and_gpu(resolved: ResolvedPool) -> tuple[str, str]:
    """Return the names of engine and GPU (without `@variant`), by which spreads between deployments are looked up."""
    return resolved.engine.name, resolved.profile.name.partition("@")[0]


GUESS_FACTOR, GUESS_CLASS_FACTOR = 4.0, 2.0
"""90 % of step times on a GPU whose profile is a guess are within `GUESS_FACTOR` of predicted times. Times of one kind,
such as memory-bound kernels, are off by a further factor of up to `GUESS_CLASS_FACTOR`. A guessed CPU was slower than
predicted by factors of 2.9 (TTFT), 2.5 (TPOT) and 4.7 (throughput; docs/validation.md). Assumed, 2026-11-29."""


def widen_for_guess(known: Adjustment) -> Adjustment:
    """Return the prior `known`, widened for a GPU whose datasheet values are guesses."""
    common, own = (math.log(factor) / Z_90 for factor in (GUESS_FACTOR, GUESS_CLASS_FACTOR))
    places, covariance = [NAMES.index(name) for name in TIME_CLASSES], known.covariance_matrix
    covariance[np.ix_(places, places)] += common**2 + own**2 * np.eye(len(places))
    return known.model_copy(update={"covariance": tuple(map(tuple, covariance.tolist()))})


def calibration_prior(resolved: ResolvedPool) -> Adjustment:
    """Return the profile's calibrated parameters, or else the general prior for this engine and GPU.

    If the profile was calibrated with another model or engine, use general priors for its TTFT and TPOT factors.
    """
    engine, gpu = engine_and_gpu(resolved)
    fresh = prior_adjustment(engine, gpu, is_moe=resolved.model.is_moe)
    if resolved.profile.is_guess:
        fresh = widen_for_guess(fresh)
    known = resolved.profile.adjustment
    if known is None:
        return fresh
    if not known.covariance:
        factors = np.array([known.kernel_deviations.get(name, 1.0) for name in NAMES])
        covariance = fresh.covariance_matrix * np.outer(factors, factors)
        found = {
            "means": known.means,
            "rows": known.rows,
            "covariance": tuple(map(tuple, covariance.tolist())),
        }
        return fresh.model_copy(update=found).keep_kernels(known)
    if known.is_calibrated_on(resolved.model.name, resolved.engine.label):
        return known
    own = [NAMES.index(name) for name in ("ttft", "tpot")]
    covariance = known.covariance_matrix
    covariance[own, :] = covariance[:, own] = 0.0
    covariance[own, own] = np.diag(fresh.covariance_matrix)[own]
    means = {name: value for name, value in known.means.items() if name not in ("ttft", "tpot")}
    return known.model_copy(update={"means": means, "covariance": tuple(map(tuple, covariance.tolist()))})


def make_adjustment(theta: Vector) -> Adjustment:
    means = {name: float(value) for name, value in zip(NAMES, theta, strict=True) if value}
    return Adjustment.model_construct(means=means, source="search", date="2026-11-22")


def fitted_metric_names(run: MeasuredRun) -> Iterator[str]:
    """Yield the names of a run's metrics to fit; metrics that follow from the others are left out."""
    found = run.latencies_ms

    def has(metric: str) -> bool:
        return any(found.get(metric, {}).get(name, 0) > 0 for name in ("mean", "p50"))

    wanted = ["ttft", "tpot" if has("tpot") else "itl"]
    wanted = [metric for metric in wanted if has(metric)]
    if len(wanted) < 2 and has("e2el"):
        wanted.append("e2el")
    for metric in wanted:
        statistics = found[metric]
        central = "mean" if statistics.get("mean", 0) > 0 else "median"
        tails = [p for p in PERCENTILES if statistics.get(p, 0) > 0 and metric in ("ttft", "tpot")]
        yield from (f"{p}_{metric}_ms" for p in (central, *tails))
    if not wanted:
        yield from (
            name for name in ("output_throughput", "request_throughput") if (getattr(run, name) or 0) > 0
        )


def measured_value(run: MeasuredRun, name: str) -> float:
    """Return a run's measured value of the metric `name`, such as `p99_ttft_ms` or `output_throughput`."""
    if name.endswith("throughput"):
        return float(getattr(run, name))
    metric, statistic = _split_metric_name(name)
    return run.latencies_ms[metric]["p50" if statistic == "median" else statistic]


def _split_metric_name(name: str) -> tuple[str, str]:
    """Return metric and statistic of a name: ("ttft", "p99") for `p99_ttft_ms`."""
    if name.endswith("throughput"):
        return "throughput", "mean"
    statistic, metric, _ = name.split("_")
    return metric, statistic


def _step_seconds(resolved: ResolvedPool, steps: DecodeSteps) -> float:
    context = steps.context_tokens
    if context is None:
        context = (steps.kv_fraction or 0.0) * resolved.memory.kv_capacity_tokens / steps.sequences
    shape = decode_shape(steps.sequences, max(round(context), 1), window_tokens=resolved.model.window_tokens)
    return resolved.step_model.step_seconds(shape)
