"""`capacity calibrate --suggest`: benchmark commands whose results would most narrow a load's prediction intervals.

To first order, metrics are linear in the parameters and all distributions are normal, so the information of a run is
known before the run. The derivatives of the run show which parameters it measures; those of the user's load show which
parameters matter. Runs are chosen greedily, each to minimise the intervals of the requested metrics. Source: Bayesian
linear design (Chaloner and Verdinelli, Statistical Science 10, 1995).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from capacity.answers.engine_setup import make_workload
from capacity.answers.interval_parts import Z_90, PredictionContext, deviation_of, launch_parts
from capacity.base.command_text import command_line
from capacity.base.errors import InvalidInput
from capacity.base.keywords import split
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool, Traffic, build, read_deployment
from capacity.deployment.launch_writers import WITHOUT_API, engine_name, is_launched, launch_command
from capacity.hardware.adjustment import NAMES
from capacity.hardware.measured_loads import REPEATED, MeasuredLoad, remaining_error
from capacity.hardware.spreads import RUN_TO_RUN, Metric, load_spreads
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.benchmark import RandomArrivals
from capacity.step.time_classes import EFFECTS
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.posterior import (
    DIFFERENCE,
    Matrix,
    Vector,
    calibrated_covariance,
    derivatives,
    noise_covariance,
)
from capacity_validate.real_engine import client_command
from capacity_validate.replaying import Replay, ReplayedRun, calibration_prior, replay_metrics

MAX_RUNS = 3
MIN_GAIN = 0.04  # minimum relative reduction of the mean half-width by a further run
CONCURRENCIES = (1, 4, 16, 64, 256)
# factors on prompt and output length: as requested, prefill-heavy, decode-heavy
LENGTHS = ((1.0, 1.0), (4.0, 0.125), (0.125, 1.0))
NOTE_GAIN = 0.1  # a smaller relative reduction of the mean half-width gives a note
ROUNDS = 5  # prompts per concurrent request of a run
MAX_TOKENS = 400_000  # maximum of a suggested run: about a minute on most servers
REQUESTED_METRICS = {"mean_ttft_ms": "TTFT", "mean_tpot_ms": "TPOT", "output_throughput": "throughput"}
METRICS: dict[str, Metric] = {"mean_ttft_ms": "ttft", "mean_tpot_ms": "tpot", "output_throughput": "e2e"}
TIME_EFFECTS = frozenset(map(str, EFFECTS))
RESULTS = "RESULTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRun:
    """One suggested run: load, duration, command, and relative interval half-widths after all runs up to this one."""

    concurrency: int
    input_len: int
    output_len: int
    num_prompts: int
    expected_s: float
    result: str
    bench: str
    half_widths: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(AnswerRecord):
    """The suggested runs, and relative `half_widths` of the requested metrics' 90 % intervals before any run."""

    SCHEMA: ClassVar[str] = "capacity/suggested-runs/v1"

    model: str
    gpu: str
    engine: str
    half_widths: dict[str, float]
    serve: str
    runs: tuple[SuggestedRun, ...]
    calibrate: str
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the suggestion for a terminal: a shell script whose comments show the intervals."""
        shown = [
            f"# {self.model} on {self.gpu}, {self.engine}: 90 % intervals today and after each run",
            f"# {'':<44}" + "".join(f"{REQUESTED_METRICS[name]:>14}" for name in self.half_widths),
            _widths_line("today", self.half_widths),
        ]
        for number, run in enumerate(self.runs, start=1):
            what = f"run {number}: {run.concurrency} concurrent, {run.input_len} in, {run.output_len} out"
            shown.append(_widths_line(what, run.half_widths))
        shown += [f"# {note}" for note in self.notes]
        if not self.runs:
            return [
                *shown,
                "# no run would narrow the intervals, because runs of this kind give no information about their "
                "causes",
            ]
        shown += ["", self.serve]
        for number, run in enumerate(self.runs, start=1):
            shown += ["", f"# run {number}: about {max(run.expected_s, 1):.0f} s", run.bench]
        return [*shown, "", self.calibrate]


def _widths_line(what: str, widths: dict[str, float]) -> str:
    return f"# {what:<44}" + "".join(f"{f'+- {width:.0%}':>14}" for width in widths.values())


def suggest_runs(
    model: str,
    *,
    name: str = "mine",
    out: str | Path | None = None,
    deployment: str | Path | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Suggestion:
    """Return up to three runs that most narrow a deployment's TTFT, TPOT and throughput intervals at a load.

    `options` are those of the deployment and its load, as in `simulate`. The printed `calibrate` command has `name`,
    `out`, `profiles` and `download`; with a file `deployment`, it names the file in place of the settings from it.
    Raises InvalidInput for a load without lengths or arrivals, DoesNotFit, MalformedFile.
    """
    pool_fields, traffic_fields = split(options, Pool, Traffic)
    if "gpu" not in pool_fields:
        raise InvalidInput("no GPU: add --gpu NAME (`capacity gpus` lists them)")
    pool = build(Pool, pool_fields)
    if not is_launched(pool.engine) or engine_name(pool.engine) in WITHOUT_API:
        raise InvalidInput(
            f"no benchmark can be run against {pool.engine!r}: name an engine with an HTTP API"
        )
    traffic = build(Traffic, traffic_fields)
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("the load needs --input-len, --output-len, and --request-rate or --concurrency")
    resolved = resolve(model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    known = calibration_prior(resolved)
    design = _Design(resolved=resolved, mean=known.mean_vector, covariance=known.covariance_matrix)
    asked = design.candidate(traffic, tuple(REQUESTED_METRICS))
    if asked is None:
        raise InvalidInput("the deployment cannot sustain this load: reduce it")
    candidates = [
        found
        for load in _loads(resolved, traffic)
        if (found := design.candidate(load, tuple(REQUESTED_METRICS)[:2])) is not None
    ]
    chosen = design.greedy(asked, candidates)
    runs = tuple(
        _suggested_run(resolved, candidate, number, widths)
        for number, (candidate, widths) in enumerate(chosen, start=1)
    )
    today = design.half_widths(asked, design.covariance, learnt=design.learnt)
    notes = []
    if runs and fmean(runs[-1].half_widths.values()) >= (1 - NOTE_GAIN) * fmean(today.values()):
        notes.append(
            "the predictions for such deployments are already about as accurate as your own runs would make them; "
            "run the benchmarks to check that your deployment is typical"
        )
    launch = launch_command(pool.engine, resolved.model.hf_id or resolved.model.name, pool)
    settings = {"model": model, "gpu": pool.gpu, **pool_fields}
    if deployment is not None:
        stored = read_deployment(deployment)
        in_file = {"model": stored.model, **stored.pools[0].model_dump(exclude_unset=True)}
        settings = {
            "deployment": deployment,
            **{field: value for field, value in settings.items() if in_file.get(field) != value},
        }
    return Suggestion(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        engine=resolved.engine.label,
        half_widths=today,
        serve=launch.text,
        runs=runs,
        calibrate=command_line(
            "calibrate",
            RESULTS,
            {
                **settings,
                "name": None if name == "mine" else name,
                "output": out,
                "profiles": profiles,
                "download": download or None,
            },
        ).replace(RESULTS, " ".join(run.result for run in runs)),
        notes=(*launch.notes, *notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A load, its simulated run, and `slopes`: derivatives of its logarithmic metrics with respect to theta."""

    traffic: Traffic
    num_prompts: int
    duration_s: float
    ttft_share: float  # TTFT / E2E
    load: MeasuredLoad  # without errors: nothing is measured yet
    slopes: Matrix
    replay: Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Design:
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

    def candidate(self, traffic: Traffic, names: Sequence[str]) -> _Candidate | None:
        """Return the simulated benchmark run of a load; None if the deployment cannot complete it."""
        workload = make_workload(traffic, self.resolved.max_model_len)
        result = replay_metrics(self.resolved, workload)
        if result["status"] != "complete" or not all((result.get(name) or 0) > 0 for name in names):
            return None
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
        replay = Replay(
            resolved=self.resolved,
            planned=self.resolved,
            runs=(ReplayedRun(run=run, workload=workload, exact=True, names=tuple(names)),),
            steps=(),
            kv_tokens=None,
        )
        steps = DIFFERENCE * np.sqrt(np.diag(self.covariance))
        slopes = derivatives(replay.predict, self.mean, replay.predict(self.mean), steps, replay.active)
        return _Candidate(
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

    def half_widths(
        self,
        asked: _Candidate,
        covariance: Matrix,
        loads: Sequence[MeasuredLoad] = (),
        *,
        learnt: bool = True,
    ) -> dict[str, float]:
        """Return relative half-widths of the 90 % intervals of the user's load `asked`, given the covariance of theta
        after runs at `loads`.

        They include errors that no calibration removes. With `learnt`, use the spread between deployments calibrated
        on their own runs; otherwise the spread between uncalibrated ones, which includes differences of machines.
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
        self, metric: Metric, asked: _Candidate, loads: Sequence[MeasuredLoad], deviation: float
    ) -> float:
        """Return the fraction of a metric's standard deviation that runs at `loads`, and earlier ones, leave."""
        known = self.resolved.profile.adjustment
        earlier = () if known is None else known.loads_of(self.resolved.deployment_name)
        ttft, tpot = (
            remaining_error((*earlier, *loads), name, asked.load.place, deviation)[1] for name in REPEATED
        )
        if metric == "e2e":
            return asked.ttft_share * ttft + (1 - asked.ttft_share) * tpot
        return ttft if metric == "ttft" else tpot

    def _other_machines(self, metric: Metric, asked: _Candidate) -> float:
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
        self, asked: _Candidate, candidates: Sequence[_Candidate]
    ) -> Iterator[tuple[_Candidate, dict[str, float]]]:
        """Yield the run that narrows intervals most, then the best addition, and so on, each with new half-widths."""
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


def _loads(resolved: ResolvedPool, traffic: Traffic) -> Iterator[Traffic]:
    """Yield closed-loop loads: low, high and requested concurrency, with longer prompts or longer outputs."""
    assert traffic.input_len is not None
    assert traffic.output_len is not None
    client = traffic.model_dump(include={"client_latency_s"}, exclude_unset=True)
    asked = () if traffic.concurrency is None else (traffic.concurrency,)
    for more_prompt, more_output in LENGTHS:
        input_len = max(round(traffic.input_len * more_prompt), 16)
        output_len = max(round(traffic.output_len * more_output), 16)
        if input_len + output_len > resolved.max_model_len:
            continue
        largest = min(resolved.max_num_seqs, resolved.concurrent_requests(input_len + output_len))
        for concurrency in sorted({*CONCURRENCIES, *asked}):
            prompts = ROUNDS * concurrency
            tokens = prompts * (output_len + input_len / 10)
            if concurrency <= largest and (tokens <= MAX_TOKENS or concurrency == 1):
                fields = {"input_len": input_len, "output_len": output_len, "concurrency": concurrency}
                fields |= {"num_prompts": prompts, "random_range_ratio": 0.0}
                yield build(Traffic, {**fields, **client})


def _suggested_run(
    resolved: ResolvedPool, candidate: _Candidate, number: int, widths: dict[str, float]
) -> SuggestedRun:
    traffic = candidate.traffic
    assert traffic.input_len is not None
    assert traffic.output_len is not None
    assert traffic.concurrency is not None
    checkpoint = resolved.model.hf_id or resolved.model.name
    result = f"run-{number}.json{'l' if resolved.engine.name == 'sglang' else ''}"
    arrivals = RandomArrivals(
        requests=candidate.num_prompts,
        request_rate_per_s=math.inf,
        input_tokens=traffic.input_len,
        output_tokens=traffic.output_len,
        max_concurrency=traffic.concurrency,
    )
    return SuggestedRun(
        concurrency=traffic.concurrency,
        input_len=traffic.input_len,
        output_len=traffic.output_len,
        num_prompts=candidate.num_prompts,
        expected_s=candidate.duration_s,
        result=result,
        bench=client_command(resolved.engine.name, checkpoint, arrivals, result=result).text,
        half_widths=widths,
    )
