"""Experimental design: choose the benchmark runs that most narrow the prediction intervals of a load."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from capacity.answers.engine_setup import make_workload
from capacity.answers.interval_parts import Z_90, PredictionContext, deviation_of, launch_parts
from capacity.deployment import Traffic
from capacity.hardware.adjustment import NAMES
from capacity.hardware.measured_loads import REPEATED, MeasuredLoad, remaining_error
from capacity.hardware.spreads import RUN_TO_RUN, Metric, load_spreads
from capacity.pool.resolve import ResolvedPool
from capacity.step.time_classes import EFFECTS
from capacity.workload import Workload
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.posterior import (
    DIFFERENCE,
    Matrix,
    Vector,
    calibrated_covariance,
    derivatives,
    noise_covariance,
)
from capacity_validate.replaying import Replay, ReplayedRun, replay_metrics

MAX_RUNS = 3
MIN_GAIN = 0.04  # minimum relative reduction of the mean half-width by a further run
REQUESTED_METRICS = {"mean_ttft_ms": "TTFT", "mean_tpot_ms": "TPOT", "output_throughput": "throughput"}
MEASURED_METRICS = ("mean_ttft_ms", "mean_tpot_ms")  # of a suggested run
METRICS: dict[str, Metric] = {"mean_ttft_ms": "ttft", "mean_tpot_ms": "tpot", "output_throughput": "e2e"}
TIME_EFFECTS = frozenset(map(str, EFFECTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A load, its simulated run, and `slopes`: derivatives of its logarithmic metrics with respect to theta."""

    traffic: Traffic
    num_prompts: int
    duration_s: float
    ttft_share: float  # TTFT / E2E
    load: MeasuredLoad  # without errors: nothing is measured yet
    slopes: Matrix
    replay: Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDesign:
    """The prior mean and covariance of theta for one deployment, and the search for the best runs."""

    resolved: ResolvedPool
    mean: Vector
    covariance: Matrix

    @property
    def learnt(self) -> bool:
        """Return whether the profile is already calibrated on runs of this deployment."""
        known = self.resolved.profile.adjustment
        return known is not None and known.is_calibrated_on(
            self.resolved.model.name, self.resolved.engine.label
        )

    def candidate(self, traffic: Traffic, names: Sequence[str]) -> Candidate | None:
        """Return the simulated benchmark run of a load; None if the deployment cannot complete it."""
        workload = make_workload(traffic, self.resolved.max_model_len)
        result = replay_metrics(self.resolved, workload)
        if result["status"] != "complete" or not all((result.get(name) or 0) > 0 for name in names):
            return None
        replay = self._planned_replay(workload, result, names)
        steps = DIFFERENCE * np.sqrt(np.diag(self.covariance))
        slopes = derivatives(replay.predict, self.mean, replay.predict(self.mean), steps, replay.active)
        return Candidate(
            traffic=traffic,
            num_prompts=len(workload),
            duration_s=float(result["duration"]),
            ttft_share=float(result["mean_ttft_ms"] / result["mean_e2el_ms"]),
            load=MeasuredLoad(
                deployment=self.resolved.deployment_name,
                in_flight=float(result["request_throughput"] * result["mean_e2el_ms"] / 1e3),
                input_len=float(workload.prompt_tokens.mean()),
                output_len=float(workload.output_tokens.mean()),
                errors=dict.fromkeys(REPEATED, 0.0),
                scatter=dict(REPEATED),
            ),
            slopes=slopes,
            replay=replay,
        )

    def _planned_replay(self, workload: Workload, result: dict[str, Any], names: Sequence[str]) -> Replay:
        """Return the replay of a run that is not measured yet, with simulated values in place of measured ones."""
        run = MeasuredRun(
            tool="to come",
            path="to come",
            completed=len(workload),
            failed=0,
            latencies_ms={
                metric: {"mean": float(result[f"mean_{metric}_ms"])}
                for metric in ("ttft", "tpot")
                if f"mean_{metric}_ms" in names
            },
            output_throughput=float(result["output_throughput"]),
            num_requests=len(workload),
        )
        return Replay(
            resolved=self.resolved,
            planned=self.resolved,
            runs=(ReplayedRun(run=run, workload=workload, exact=True, names=tuple(names)),),
            steps=(),
            kv_tokens=None,
        )

    def half_widths(
        self, asked: Candidate, covariance: Matrix, loads: Sequence[MeasuredLoad] = (), *, learnt: bool = True
    ) -> dict[str, float]:
        """Return, for each metric predicted at the user's load `asked`, the relative half-width of its 90 % interval.

        `covariance`: of the calibration parameters after runs at `loads`. The half-widths include the error that
        remains after calibration. With `learnt`, that error is estimated from deployments calibrated on their own
        runs; otherwise from uncalibrated ones, where it also includes differences between machines.
        """
        of_classes = np.where([name in TIME_EFFECTS for name in NAMES], asked.slopes, 0.0)
        known, left, before = (
            np.diag(slopes @ matrix @ slopes.T)
            for slopes, matrix in (
                (asked.slopes, covariance),
                (of_classes, covariance),
                (of_classes, self.covariance),
            )
        )
        scatter = np.array([figure.deviation for figure in asked.replay.figures])
        deviations = np.sqrt(known + RUN_TO_RUN * np.maximum(before - left, 0.0) + scatter**2)
        found = {}
        for name, deviation in zip(REQUESTED_METRICS, deviations, strict=True):
            kind = load_spreads().kind(METRICS[name], is_moe=self.resolved.model.is_moe)
            ends = kind.calibrated if learnt else kind
            deviation *= self._remaining_share(METRICS[name], asked, loads, deviation)
            others = 0.0 if learnt else Z_90 * self._other_machines(METRICS[name], asked)
            low, high = (math.hypot(end * deviation, others) for end in (ends.low, ends.high))
            found[name] = (math.exp(high) - math.exp(-low)) / 2
        return found

    def _remaining_share(
        self, metric: Metric, asked: Candidate, loads: Sequence[MeasuredLoad], deviation: float
    ) -> float:
        """Return the fraction of a metric's standard deviation left after runs at `loads` and earlier runs."""
        known = self.resolved.profile.adjustment
        earlier = () if known is None else known.loads_of(self.resolved.deployment_name)
        ttft, tpot = (
            remaining_error((*earlier, *loads), name, asked.load.place, deviation)[1] for name in REPEATED
        )
        if metric == "e2e":
            return asked.ttft_share * ttft + (1 - asked.ttft_share) * tpot
        return ttft if metric == "ttft" else tpot

    def _other_machines(self, metric: Metric, asked: Candidate) -> float:
        """Return a metric's standard deviation between machines, clients and builds, for deployments without runs."""
        resolved = self.resolved
        of = PredictionContext(
            engine=resolved.engine.name,
            gpu=resolved.profile.name.split("@")[0],
            model=resolved.model.name,
            is_moe=resolved.model.is_moe,
            ttft_share=asked.ttft_share,
        )
        return deviation_of(launch_parts(metric, of, load_spreads()))

    def greedy(
        self, asked: Candidate, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, dict[str, float]]]:
        """Yield the run that narrows intervals most, then the best run to add, and so on, with new half-widths."""
        covariance, left, loads = self.covariance, list(candidates), list[MeasuredLoad]()
        now = fmean(self.half_widths(asked, covariance).values())
        for _ in range(min(MAX_RUNS, len(left))):
            # the covariance after a fit to a run does not depend on the values measured
            after = [
                (each, calibrated_covariance(covariance, each.slopes, noise_covariance(each.replay.figures)))
                for each in left
            ]
            widths = [
                fmean(self.half_widths(asked, found, (*loads, each.load)).values()) for each, found in after
            ]
            place = int(np.argmin(widths))
            if widths[place] > (1 - MIN_GAIN) * now:
                return
            (best, covariance), now = after[place], widths[place]
            left.remove(best)
            loads.append(best.load)
            yield best, self.half_widths(asked, covariance, loads)
