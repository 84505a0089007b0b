"""Measured figures of a deployment, and what a theta predicts for them: runs replayed, steps and memory computed."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.priors import figure_deviation, prior
from capacity.pool.resolve import ResolvedPool
from capacity.step.shape import decode_shape
from capacity.workload import Workload
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.decode_log import DecodeSteps
from capacity_validate.posterior import MeasuredFigure, Vector
from capacity_validate.replaying import frontend_of, replayed

TAILS = 1.5  # as much more for percentiles from 90 on
DRAWN_ANEW = 0.05  # on top, where arrivals or lengths are not the ones that were sent
PERCENTILES = ("p90", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A run with its requests, and which of its metrics are learnt from: their names in the benchmark's words."""

    run: MeasuredRun
    workload: Workload
    exact: bool
    names: tuple[str, ...]

    def predicted(self, resolved: ResolvedPool, beyond: Mapping[str, float]) -> list[float]:
        """Of each name, in its own unit; not-a-number where the simulated server could not serve it.

        `beyond`: factors on TTFT and TPOT that no step explains.
        """
        result = replayed(resolved, self.workload, frontend=frontend_of(resolved, self.run))
        if result["status"] != "complete":
            return [math.nan for _ in self.names]
        ttft, e2e = (float(result.get(f"mean_{metric}_ms") or 0.0) for metric in ("ttft", "e2el"))
        share = ttft / e2e if e2e else 0.0
        whole = share * beyond["ttft"] + (1 - share) * beyond["tpot"]
        factors = {**beyond, "itl": beyond["tpot"], "e2el": whole, "throughput": 1 / whole}
        return [float(result.get(name) or math.nan) * factors[_parts(name)[0]] for name in self.names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """All figures of one deployment. `planned` is the pool as it was asked for, without what its log printed."""

    resolved: ResolvedPool
    planned: ResolvedPool
    runs: tuple[ReplayedRun, ...]
    steps: tuple[DecodeSteps, ...]
    kv_tokens: int | None

    @property
    def figures(self) -> list[MeasuredFigure]:
        """As measured."""
        found = [figure for replayed_run in self.runs for figure in self._of_run(replayed_run)]
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
        """The parameters that can matter to a figure."""
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
        """Logarithms of the figures, in order."""
        adjustment = adjustment_at(theta)
        resolved = self.resolved.adjusted_by(adjustment)
        beyond = {metric: adjustment.factor(metric) for metric in ("ttft", "tpot")}
        values = [value for found in self.runs for value in found.predicted(resolved, beyond)]
        values += [_step_seconds(resolved, steps) * beyond["tpot"] for steps in self.steps]
        if self.kv_tokens is not None:
            values.append(float(self.planned.adjusted_by(adjustment).memory.kv_capacity_tokens))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(np.array(values, dtype=np.float64))

    def _of_run(self, found: ReplayedRun) -> Iterator[MeasuredFigure]:
        for name in found.names:
            metric, statistic = _parts(name)
            deviation = self._scatter(metric) * (TAILS if statistic in PERCENTILES else 1.0)
            yield MeasuredFigure(
                name=f"{name} of {self._called(found)}",
                value=measured(found.run, name),
                deviation=deviation if found.exact else math.hypot(deviation, DRAWN_ANEW),
                shared=f"{id(found)} {metric}",
            )

    def _called(self, found: ReplayedRun) -> str:
        """A run by its file; of a file with several, by its lengths too."""
        path = found.run.path
        name = path if "://" in path else Path(path).name
        if sum(other.run.path == path for other in self.runs) == 1:
            return name
        prompt, output = found.workload.prompt_tokens.mean(), found.workload.output_tokens.mean()
        return f"{name}, {prompt:.0f} in, {output:.0f} out"

    def _scatter(self, metric: str) -> float:
        """From one run of such a deployment to the next."""
        return figure_deviation(metric, is_moe=self.resolved.model.is_moe)

    @property
    def prior(self) -> Adjustment:
        """What the profile has learnt before, or else what is known of such deployments."""
        return prior_of(self.resolved)


def deployed(resolved: ResolvedPool) -> tuple[str, str]:
    """Engine and GPU, by which spreads tell deployments apart."""
    return resolved.engine.name, resolved.profile.name.partition("@")[0]


def prior_of(resolved: ResolvedPool) -> Adjustment:
    """What the profile has learnt before, or else what is known of such deployments.

    What another model or engine showed beyond all constants says nothing of this one.
    """
    engine, gpu = deployed(resolved)
    fresh = prior(engine, gpu, is_moe=resolved.model.is_moe)
    known = resolved.profile.adjustment
    if known is None or not known.covariance:
        return fresh if known is None else fresh.model_copy(update={"means": known.means, "rows": known.rows})
    if known.is_of(resolved.model.name, resolved.engine.label):
        return known
    own = [NAMES.index(name) for name in ("ttft", "tpot")]
    covariance = known.covariance_matrix
    covariance[own, :] = covariance[:, own] = 0.0
    covariance[own, own] = np.diag(fresh.covariance_matrix)[own]
    means = {name: value for name, value in known.means.items() if name not in ("ttft", "tpot")}
    return known.model_copy(update={"means": means, "covariance": tuple(map(tuple, covariance.tolist()))})


def adjustment_at(theta: Vector) -> Adjustment:
    """An adjustment of these means alone."""
    means = {name: float(value) for name, value in zip(NAMES, theta, strict=True) if value}
    return Adjustment.model_construct(means=means, source="search", date="2026-11-22")


def replayed_run(
    run: MeasuredRun, workload: Workload, *, exact: bool, names: tuple[str, ...] | None = None
) -> ReplayedRun:
    """A run to learn from: of `names`, or else of those metrics that the others do not already say."""
    return ReplayedRun(
        run=run, workload=workload, exact=exact, names=tuple(_names(run)) if names is None else names
    )


def _names(run: MeasuredRun) -> Iterator[str]:
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


def measured(run: MeasuredRun, name: str) -> float:
    """A run's figure by the benchmark's name of it."""
    if name.endswith("throughput"):
        return float(getattr(run, name))
    metric, statistic = _parts(name)
    return run.latencies_ms[metric]["p50" if statistic == "median" else statistic]


def _parts(name: str) -> tuple[str, str]:
    """Metric and statistic."""
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
