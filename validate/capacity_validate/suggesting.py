"""`capacity calibrate --suggest`: benchmark commands whose results would most narrow a load's prediction intervals.

To first order, metrics are linear in the parameters and all distributions are normal, so the information of a run is
known before the run. The derivatives of the run show which parameters it measures; those of the user's load show which
parameters matter. Runs are chosen greedily, each to minimise the intervals of the requested metrics. Source: Bayesian
linear design (Chaloner and Verdinelli, Statistical Science 10, 1995).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from capacity.base.command_text import command_line
from capacity.base.errors import InvalidInput
from capacity.base.keywords import split
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool, Traffic, build, read_deployment
from capacity.deployment.launch_writers import WITHOUT_API, engine_name, is_launched, launch_command
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.benchmark import RandomArrivals
from capacity_validate.real_engine import client_command
from capacity_validate.replaying import calibration_prior
from capacity_validate.run_design import MEASURED_METRICS, REQUESTED_METRICS, Candidate, RunDesign

CONCURRENCIES = (1, 4, 16, 64, 256)
# factors on prompt and output length: as requested, prefill-heavy, decode-heavy
LENGTHS = ((1.0, 1.0), (4.0, 0.125), (0.125, 1.0))
NOTE_GAIN = 0.1  # a smaller relative reduction of the mean half-width gives a note
ROUNDS = 5  # prompts per concurrent request of a run
MAX_TOKENS = 400_000  # maximum of a suggested run: about a minute on most servers
LITTLE_GAIN = (
    "the predictions for such deployments are already about as accurate as your own runs would make them; run the "
    "benchmarks to check that your deployment is typical"
)
RESULTS = "RESULTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRun:
    """One suggested run: load, duration, command, and relative interval half-widths after this and all runs before."""

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
                "# no run would narrow the intervals, because a benchmark does not measure what makes them wide",
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
    `out`, `profiles` and `download`. If `deployment` is given, the command names this file instead of its settings.
    Raises InvalidInput for a load without lengths or arrivals, DoesNotFit, MalformedFile.
    """
    pool_fields, traffic_fields = split(options, Pool, Traffic)
    if "gpu" not in pool_fields:
        raise InvalidInput("no GPU: add --gpu NAME (`capacity gpus` lists them)")
    pool, traffic = build(Pool, pool_fields), build(Traffic, traffic_fields)
    _require_benchmark(pool, traffic)
    resolved = resolve(model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    known = calibration_prior(resolved)
    design = RunDesign(resolved=resolved, mean=known.mean_vector, covariance=known.covariance_matrix)
    asked = design.candidate(traffic, tuple(REQUESTED_METRICS))
    if asked is None:
        raise InvalidInput("the deployment cannot sustain this load: reduce it")
    candidates = (design.candidate(load, MEASURED_METRICS) for load in _loads(resolved, traffic))
    chosen = design.greedy(asked, [each for each in candidates if each is not None])
    runs = tuple(
        _suggested_run(resolved, candidate, number, widths)
        for number, (candidate, widths) in enumerate(chosen, start=1)
    )
    today = design.half_widths(asked, design.covariance, learnt=design.learnt)
    gains_little = bool(runs) and fmean(runs[-1].half_widths.values()) >= (1 - NOTE_GAIN) * fmean(
        today.values()
    )
    launch = launch_command(pool.engine, resolved.model.hf_id or resolved.model.name, pool)
    settings = {"model": model, "gpu": pool.gpu, **pool_fields}
    if deployment is not None:
        settings = _settings_beyond_file(settings, deployment)
    settings |= {"name": None if name == "mine" else name, "output": out, "profiles": profiles}
    settings["download"] = download or None
    results = " ".join(run.result for run in runs)
    return Suggestion(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        engine=resolved.engine.label,
        half_widths=today,
        serve=launch.text,
        runs=runs,
        calibrate=command_line("calibrate", RESULTS, settings).replace(RESULTS, results),
        notes=(*launch.notes, *([LITTLE_GAIN] if gains_little else [])),
    )


def _settings_beyond_file(settings: dict[str, Any], deployment: str | Path) -> dict[str, Any]:
    """Return the deployment file as a setting, and the settings that differ from those in the file."""
    stored = read_deployment(deployment)
    in_file = {"model": stored.model, **stored.pools[0].model_dump(exclude_unset=True)}
    differing = {field: value for field, value in settings.items() if in_file.get(field) != value}
    return {"deployment": deployment, **differing}


def _require_benchmark(pool: Pool, traffic: Traffic) -> None:
    """Raise InvalidInput if no benchmark can be run against the engine, or if the load has no lengths."""
    if not is_launched(pool.engine) or engine_name(pool.engine) in WITHOUT_API:
        raise InvalidInput(
            f"no benchmark can be run against {pool.engine!r}: name an engine with an HTTP API"
        )
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("the load needs --input-len, --output-len, and --request-rate or --concurrency")


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
    resolved: ResolvedPool, candidate: Candidate, number: int, widths: dict[str, float]
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
