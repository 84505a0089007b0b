"""`capacity calibrate` on the user's own runs: fit step-model parameters to results, logs and scrapes of /metrics; and
the page that shows metrics and parameters before and after the fit.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capacity.answers.engine_setup import make_workload
from capacity.answers.interval_parts import Z_90
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord
from capacity.deployment import Traffic, build
from capacity.hardware import (
    HardwareProfile,
    require_new_profile,
    use_text,
    user_profiles_directory,
    write_profile,
)
from capacity.hardware.adjustment import NAMES, PARAMETERS, Adjustment
from capacity.hardware.measured_loads import MeasuredLoad
from capacity.pool.resolve import ResolvedPool
from capacity.report.display import count_noun
from capacity.report.figures.chart import four_digits
from capacity.report.layout import render_text
from capacity.report.views.layout import view_parts
from capacity.report.views.units import TEXT
from capacity.report.views.view import Block, Column, Table, View
from capacity_validate.comparison import error_text, metric_title
from capacity_validate.evidence import Evidence
from capacity_validate.posterior import EvaluatedFigure, Posterior, infer
from capacity_validate.rebuilt_load import UNKNOWN_LOAD, split_options
from capacity_validate.replaying import (
    Replay,
    calibration_prior,
    replay_metrics,
    replayed_run,
    widen_for_guess,
)
from capacity_validate.server_settings import release_notes, resolve_server

if TYPE_CHECKING:
    from capacity_validate.calibrating import Calibration

MIN_RELATIVE_CHANGE = 1e-6  # relative to the prior's standard deviation
UNLIKELY = 3.0  # standard deviations of a mean from its prediction: the profile then counts as a guess
EIGHTFOLD = 8.0  # a token exponent is shown as the slowdown at 8 times the tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedParameter:
    """One parameter of `capacity.hardware.adjustment`: its mean and standard deviation before and after the fit.

    The parameter is the logarithm of a time factor, except `front_end` (seconds), `kv_overhead` (bytes), and
    `experts_tilt` (an exponent on the number of tokens in a step).
    """

    name: str
    title: str
    unit: str
    mean_before: float
    deviation_before: float
    mean: float
    deviation: float

    @property
    def is_informed(self) -> bool:
        """Return whether the runs carry information about this parameter."""
        moved = abs(self.mean - self.mean_before)
        return (
            max(moved, abs(self.deviation_before - self.deviation))
            > MIN_RELATIVE_CHANGE * self.deviation_before
        )

    @property
    def interval_texts(self) -> tuple[str, str]:
        """Return the 90 % intervals before and after the fit."""
        before = _format_factor(self.unit, self.mean_before, self.deviation_before)
        return before, _format_factor(self.unit, self.mean, self.deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCalibration(AnswerRecord):
    """The result of calibration on runs: the new profile variant, its path, its parameters, and the runs used.

    `guess`: a sentence if the GPU's profile counts as a guess. `over_roof`: a sentence if
    the fit makes operators faster than the GPU's peak rates allow.
    """

    SCHEMA: ClassVar[str] = "capacity/calibrated-runs/v1"

    profile: str
    base: str
    path: str
    sources: tuple[str, ...]
    model: str
    engine: str
    parameters: tuple[CalibratedParameter, ...]
    figures: tuple[EvaluatedFigure, ...]
    guess: str | None
    over_roof: tuple[str, ...]
    notices: tuple[str, ...]

    def lines(self) -> list[str]:
        text = render_text(view_parts(calibration_view(self), self))
        return [*text.splitlines(), use_text(self.profile, self.path)]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Return `guess`, a sentence with the measurements that no likely parameter values explain, and `over_roof`."""
        figures = "; ".join(
            f"{_figure_title(figure)}: {four_digits(figure.measured)}, most likely {four_digits(figure.after)}, weight "
            f"{figure.weight:.0%}"
            for figure in self.figures
            if figure.contradicts
        )
        advice = (
            f"measurements that the model does not explain have a low weight in the fit ({figures}). Check for another "
            "launch setting, a cache, other load on the machine, or a wrong flag in this command"
        )
        return (
            *([] if self.guess is None else [self.guess]),
            *([advice] if figures else []),
            *self.over_roof,
        )


def _figure_title(figure: EvaluatedFigure) -> str:
    name, of, run = figure.name.partition(" of ")
    return metric_title(name) + of + run


def _format_factor(unit: str, mean: float, deviation: float) -> str:
    low, high = mean - Z_90 * deviation, mean + Z_90 * deviation
    if unit == "s":
        return f"{mean * 1e3:+.1f} ms ({low * 1e3:+.1f} to {high * 1e3:+.1f})"
    if unit == "power":
        return f"x {EIGHTFOLD**mean:.2f} ({EIGHTFOLD**low:.2f} to {EIGHTFOLD**high:.2f})"
    if unit == "bytes":
        return f"{mean / 2**30:+.2f} GiB ({low / 2**30:+.2f} to {high / 2**30:+.2f})"
    return f"x {math.exp(mean):.2f} ({math.exp(low):.2f} to {math.exp(high):.2f})"


def calibrate_runs(
    evidence: Evidence,
    *,
    name: str,
    model: str | None,
    out: str | Path | None,
    overwrite: bool = False,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> RunCalibration:
    """Calibrate on runs of one deployment, and write `GPU@name.toml`. `options` are those of `compare`.

    If the GPU is already a calibrated variant (`gpu="h200@mine"`), its parameters are the prior, so pass only new
    runs. Raises InvalidInput if a required setting is missing or the variant exists; DoesNotFit; MalformedFile.
    """
    replay = build_replay(evidence, model=model, profiles=profiles, download=download, options=options)
    profile = replay.resolved.profile
    folder = Path(out) if out is not None else user_profiles_directory()
    if not overwrite and profile.name != variant_name(profile, name):  # else more runs of the same variant
        require_new_profile(variant_name(profile, name), folder)
    known = calibration_prior(replay.resolved)
    adjustment, posterior, guess = fit_adjustment(replay, known)
    learnt = replay.resolved.adjusted_by(adjustment)
    loads = _measured_loads(replay, learnt, posterior)
    variant = make_variant(profile, name, adjustment.model_copy(update={"loads": loads}))
    path = write_profile(variant, folder)
    left_out = {figure.name for figure in replay.figures} - {judged.name for judged in posterior.judged}
    return RunCalibration(
        profile=variant.name,
        base=profile.name,
        path=str(path),
        sources=evidence.sources,
        model=learnt.model.name,
        engine=learnt.engine.label,
        parameters=tuple(_parameters(known, adjustment)),
        figures=posterior.judged,
        guess=guess,
        over_roof=learnt.step_model.peak_notes,
        notices=tuple(
            dict.fromkeys(
                [notice for run in evidence.runs for notice in run.notices]
                + [*release_notes(learnt)]
                + [UNKNOWN_LOAD for run in replay.runs if run.load_deviations]
                + [
                    f"{name} is not used, because the simulated server does not complete this load"
                    for name in sorted(left_out)
                ]
            )
        ),
    )


def fit_adjustment(replay: Replay, known: Adjustment) -> tuple[Adjustment, Posterior, str | None]:
    """Fit the step model's parameters to a deployment's runs, with `known` as the prior.

    Returns the calibration, the posterior of the fit, and a note if the GPU's profile counts as a guess, because only
    the prior of a guess explains the mean latencies. Raises InvalidInput if none of the measurements can be predicted.
    """
    posterior, note = _infer(replay, known), None
    means = [figure for figure in posterior.judged if figure.name.startswith("mean_")]
    farthest = max(means, key=lambda figure: abs(figure.off), default=None)
    if farthest is not None and abs(farthest.off) > UNLIKELY:
        wide = _infer(replay, widen_for_guess(known))
        if not any(figure.contradicts for figure in wide.judged):
            posterior, note = wide, _guess_note(replay.resolved, farthest)
    return _adjustment(replay, posterior, known), posterior, note


def _infer(replay: Replay, prior: Adjustment) -> Posterior:
    return infer(
        replay.predict, replay.figures, prior.mean_vector, prior.covariance_matrix, active=replay.active
    )


def _guess_note(resolved: ResolvedPool, figure: EvaluatedFigure) -> str:
    return (
        f"{_figure_title(figure)}: {four_digits(figure.measured)} measured, {four_digits(figure.before)} "
        f"predicted. The profile of {resolved.profile.name} does not explain this and counts as a guess, so intervals "
        "at other loads are wide. Check --gpu, the launch settings, a cache, and other load on the machine"
    )


def build_replay(
    evidence: Evidence,
    *,
    model: str | None,
    profiles: str | Path | None,
    download: bool,
    options: dict[str, Any],
) -> Replay:
    """Return the `Replay`, which predicts the runs' measured values. Raises InvalidInput if a setting is missing."""
    pool_fields, traffic_fields = split_options("calibrate", options)
    server = evidence.server
    planned, settled = resolve_server(
        evidence, model, pool_fields, server, profiles=profiles, download=download
    )
    printed = None
    if (
        server is not None and planned.profile.platform != "cpu"
    ):  # on a CPU, the KV cache has the size of a setting
        printed = server.kv_tokens
        if printed is None and server.kv_blocks is not None:
            printed = server.kv_blocks * planned.memory.kv_block_tokens
    runs = tuple(replayed_run(run, traffic_fields, settled) for run in evidence.runs)
    replay = Replay(resolved=settled, planned=planned, runs=runs, steps=evidence.steps, kv_tokens=printed)
    if not replay.figures:
        raise InvalidInput(
            "the files contain no time, throughput or KV size to calibrate on; run the benchmark with "
            "--save-result, or give the engine's log"
        )
    return replay


def variant_name(profile: HardwareProfile, name: str) -> str:
    return f"{profile.name.partition('@')[0]}@{name}"


def make_variant(profile: HardwareProfile, name: str, adjustment: Adjustment) -> HardwareProfile:
    """Return a copy of the profile with the calibrated parameters `adjustment` and the name `GPU@name`."""
    variant = variant_name(profile, name)
    own = profile.step_time
    if own is not None and own.gpu is not None:
        own = own.model_copy(update={"gpu": variant})
    return profile.model_copy(
        update={"name": variant, "aliases": (), "step_time": own, "adjustment": adjustment}
    )


def _adjustment(replay: Replay, posterior: Posterior, known: Adjustment) -> Adjustment:
    resolved, rows = replay.resolved, len(posterior.judged)
    return Adjustment(
        means={name: float(value) for name, value in zip(NAMES, posterior.mean, strict=True) if value},
        covariance=tuple(tuple(float(value) for value in row) for row in posterior.covariance),
        source=f"capacity calibrate, {rows} metrics of {resolved.model.name} on {resolved.engine.label}",
        date=datetime.now(tz=UTC).date().isoformat(),
        rows=known.rows + rows,
        models=tuple(dict.fromkeys((*known.models, resolved.model.name))),
        engines=tuple(dict.fromkeys((*known.engines, resolved.engine.label))),
    ).keep_kernels(known)


def _measured_loads(replay: Replay, learnt: ResolvedPool, posterior: Posterior) -> tuple[MeasuredLoad, ...]:
    """Return the loads of the new runs and of the profile's earlier calibration runs, with their prediction errors
    under the new parameters.

    Excludes runs with a measurement that no likely parameter values explain, and loads of other deployments.
    """
    odd = {figure.name for figure in posterior.judged if figure.contradicts}
    earlier, known = [], replay.resolved.profile.adjustment
    for load in () if known is None else known.loads:
        if (moved := _moved_errors(load, replay.resolved, learnt)) is not None:
            earlier.append(moved)
    found = (run.measured_load(learnt) for run in replay.runs if odd.isdisjoint(replay.names_of(run)))
    return (*earlier, *(load for load in found if load is not None))


def _moved_errors(load: MeasuredLoad, before: ResolvedPool, after: ResolvedPool) -> MeasuredLoad | None:
    """Return a load of an earlier run with its errors under the new parameters; None for another deployment's load."""
    if load.deployment != after.deployment_name:
        return None
    concurrency = max(round(load.in_flight), 1)
    traffic = {"input_len": max(round(load.input_len), 1), "output_len": max(round(load.output_len), 1)}
    workload = make_workload(
        build(Traffic, {**traffic, "concurrency": concurrency, "num_prompts": 4 * concurrency})
    )
    logs = []
    for resolved in (before, after):
        adjustment, result = resolved.profile.adjustment, replay_metrics(resolved, workload)
        logs.append(
            {
                name: math.log(result[f"mean_{name}_ms"])
                + (0.0 if adjustment is None else adjustment.mean(name))
                for name in load.errors
                if result.get(f"mean_{name}_ms")
            }
        )
    errors = {
        name: error + logs[0].get(name, 0.0) - logs[1].get(name, 0.0) for name, error in load.errors.items()
    }
    return load.model_copy(update={"errors": errors})


def _parameters(known: Adjustment, learnt: Adjustment) -> list[CalibratedParameter]:
    before, after = (np.sqrt(np.diag(each.covariance_matrix)) for each in (known, learnt))
    return [
        CalibratedParameter(
            name=parameter.name,
            title=parameter.title,
            unit=parameter.unit,
            mean_before=known.mean(parameter.name),
            deviation_before=float(before[i]),
            mean=learnt.mean(parameter.name),
            deviation=float(after[i]),
        )
        for i, parameter in enumerate(PARAMETERS)
    ]


def calibration_view(answer: "RunCalibration | Calibration") -> View:
    """Return the view of a calibration: metrics and parameters before and after it, or its text lines for kernels."""
    if not isinstance(answer, RunCalibration):
        return View("", answer.lines()[:-1])

    def error(moment: str, figure: EvaluatedFigure) -> str:
        return error_text(getattr(figure, moment) / figure.measured - 1)

    figures = [
        *(
            Column("metric", _figure_title),
            Column("measured", lambda figure: four_digits(figure.measured), TEXT),
        ),
        *(Column(f"error {moment}", partial(error, moment), TEXT) for moment in ("before", "after")),
    ]
    parameters = [
        Column("parameter", "title"),
        *(Column(moment, f"interval_texts.{side}", TEXT) for side, moment in enumerate(("before", "after"))),
    ]
    informed = [each for each in answer.parameters if each.is_informed]
    unseen = [each.title for each in answer.parameters if not each.is_informed]
    blocks: list[Block] = [
        f"{answer.profile}: fitted to {len(answer.figures)} metrics of {count_noun(len(answer.sources), 'file')}, "
        f"{answer.model} on {answer.engine}, based on {answer.base}",
        *(f"[yellow]Contradiction: {text}" for text in answer.contradictions),
        Table("Errors before and after calibration", answer.figures, figures, name="calibrated_metrics"),
        Table(
            "Parameters before and after (90 % intervals; x: factor on a time)",
            informed,
            parameters,
            name="calibrated_parameters",
        ),
        *([f"No information about: {'; '.join(unseen)}"] if unseen else []),
    ]
    return View("", blocks, notes=answer.notices)
