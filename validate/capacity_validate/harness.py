"""`capacity validate`: measure this device, report the step model's error, calibrate it, and report the error again."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.flags import with_flags
from capacity.hardware import write_profile
from capacity.model import ModelSpec
from capacity_validate.calibrating import FittedProfile, calibrate
from capacity_validate.campaigns import load_campaign
from capacity_validate.cases import read_measurements
from capacity_validate.devices import find_device, require_memory, require_torch
from capacity_validate.failures import DeviceLost, device_error, error_line, is_out_of_memory
from capacity_validate.fresh_process import CASE_STAGE, ProcessOutcome, run_in_fresh_processes
from capacity_validate.model_error import (
    extrapolate_depth,
    fitted_constants,
    fitted_profile,
    measured_cases,
    serving_comparison,
    whole_model_cases,
)
from capacity_validate.plausibility import (
    bound_remarks,
    outlying_shapes,
    reach_remarks,
    require_valid,
    run_summary,
)
from capacity_validate.predictions import Predictor
from capacity_validate.real_engine import measure_engine, require_engine
from capacity_validate.report_data import CaseRow, ValidationReport, class_errors, median_error, untimed_cases
from capacity_validate.review import case_roles, case_rows
from capacity_validate.runner import Progress
from capacity_validate.session import MEASUREMENTS, Session, environment, open_session

if TYPE_CHECKING:
    from capacity_validate.stages import StageResults, ValidationStage

__all__ = ["MEASUREMENTS", "validate"]

TOLERANCE_TTFT = 0.25
TOLERANCE_TPOT = 0.15
TOLERANCE_TPOT_CPU = 0.25  # higher because of noise on a shared machine
ENGINE_MODEL = "Qwen/Qwen3-8B"  # needs no account to download
DEFAULT_OUT = "capacity-validation"
NO_SETTINGS: Mapping[str, Any] = {}
NOISE_LIMIT = 0.5
INTERRUPTED = "interrupted: this report contains the results up to the interruption"


@with_flags
def validate(
    device: str = "auto",
    campaign: str = "quick",
    *,
    budget_s: float | None = None,
    out: str | Path = DEFAULT_OUT,
    gpu: str | None = None,
    profiles: Sequence[str] = (),
    tolerance_ttft: float = TOLERANCE_TTFT,
    tolerance_tpot: float | None = None,
    threads: int = 1,
    seed: int = 0,
    engine: str | None = None,
    model: str = ENGINE_MODEL,
    tensor_parallel_size: int | None = None,
    quantization: str | None = None,
    dummy_weights: bool = False,
    engine_settings: Mapping[str, Any] = NO_SETTINGS,
    progress: Progress | None = None,
) -> ValidationReport:
    """Run a campaign on a device and evaluate the step model on it.

    Writes `out`/measurements.jsonl during the run (a second run continues it), then report.json, report.html and the
    calibrated profile. `gpu` names the profile if the card's name matches none; `budget_s` overrides the campaign's.
    If `engine` (vllm or sglang, installed) is given, it then serves `model` on the same device, and the results of its
    own client are compared with the simulation and calibrate a second profile, `GPU@mine-ENGINE`; this takes minutes
    beyond the budget. `engine_settings` are `Pool` fields for its launch, which `tensor_parallel_size` and
    `quantization` override. Raises InvalidInput with a one-line message if the device, driver, torch or profile is
    missing.
    """
    start = time.monotonic()
    for name, value in (("--tolerance-ttft", tolerance_ttft), ("--tolerance", tolerance_tpot)):
        if value is not None and not 0 <= value < math.inf:
            raise InvalidInput(f"{name} is {value}: must be a fraction of at least 0, such as 0.15")
    arguments: dict[str, Any] = {
        "device": device,
        "campaign": campaign,
        "out": str(out),
        "gpu": gpu,
        "profiles": tuple(profiles),
        "tolerance_ttft": tolerance_ttft,
        "tolerance_tpot": tolerance_tpot,
        "threads": threads,
        "seed": seed,
    }
    chosen = {"tensor_parallel_size": tensor_parallel_size, "quantization": quantization}
    settings = {**engine_settings, **{name: value for name, value in chosen.items() if value is not None}}
    if engine is not None:
        require_engine(engine)
    elif unused := [
        name for name, value in (*chosen.items(), ("dummy_weights", dummy_weights or None)) if value
    ]:
        raise InvalidInput(f"--{unused[0].replace('_', '-')} needs --engine, whose launch it changes")
    budget_s = budget_s or load_campaign(campaign).budget_s
    if device.strip().lower() == "cpu" or os.name == "nt":  # Windows cannot pass the pipe to a child process
        report, _ = run_in_this_process(**arguments, budget_s=budget_s, skip={}, progress=progress)
    else:
        report = run_in_fresh_processes(
            "capacity_validate.harness:run_in_child", arguments, deadline=start + budget_s, progress=progress
        )
    if engine is not None:
        report = _add_engine_comparison(
            report, engine, model, Path(out), progress, settings, dummy_weights=dummy_weights
        )
    return report


def _add_engine_comparison(
    report: ValidationReport,
    engine: str,
    model: str,
    folder: Path,
    progress: Progress | None,
    settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    dummy_weights: bool = False,
) -> ValidationReport:
    """Return the report with a real engine's benchmark compared with the new profile, or the engine's failure.

    The engine's results also calibrate a variant of that profile, `GPU@mine-ENGINE`.
    """
    calibrated = f"{report.profile.partition('@')[0]}@mine"
    gpu = calibrated if (folder / f"{calibrated}.toml").is_file() else report.profile
    try:
        found = measure_engine(
            engine,
            model,
            gpu=gpu,
            folder=folder / "engine",
            profiles=folder,
            announce=lambda stage: None if progress is None else progress(0, 0, stage),
            dummy_weights=dummy_weights,
            **settings,
        )
        report = replace(report, engine=found.comparison)
        name = f"mine-{engine.strip().lower().partition('@')[0]}"
        learnt = calibrate(found.files, name=name, model=model, out=folder, profiles=folder, **found.settings)
        text = f"the engine's benchmarks calibrated {learnt.profile} ({learnt.path})"
        if dummy_weights:
            text += (
                "; with random weights, routing of experts and draft acceptance are not those of the model"
            )
        report = replace(report, remarks=(*report.remarks, text))
    except CapacityError as error:
        report = replace(report, broken=(*report.broken, f"engine {engine}: {error}"))
    _write_report(report, folder)
    return report


def run_in_child(**arguments: Any) -> ProcessOutcome:
    report, measured = run_in_this_process(**arguments)
    if measured.lost is None:
        return ProcessOutcome(answer=report)
    stage = measured.stage
    return ProcessOutcome(answer=report, stage=stage, lost=str(measured.lost), repeatable=stage == CASE_STAGE)


def run_in_this_process(
    *,
    device: str,
    campaign: str,
    budget_s: float,
    out: str,
    gpu: str | None,
    profiles: tuple[str, ...],
    tolerance_ttft: float,
    tolerance_tpot: float | None,
    threads: int,
    seed: int,
    skip: Mapping[str, str],
    progress: Progress | None,
    stage: Callable[[str], None] | None = None,
) -> tuple[ValidationReport, MeasurementOutcome]:
    """Measure and evaluate in this process. `skip` maps stages that lost the device earlier to the reasons."""
    start = time.monotonic()
    facts = find_device(device, threads=threads)
    require_memory(facts)
    session, remarks = open_session(
        torch=require_torch(),
        facts=facts,
        campaign=load_campaign(campaign),
        folder=Path(out),
        gpu=gpu,
        profiles=profiles,
        deadline=start + budget_s,
        seed=seed,
        progress=progress,
    )
    measured = measure(session, remarks, skip=skip, enter=stage)
    if tolerance_tpot is None:
        tolerance_tpot = TOLERANCE_TPOT_CPU if facts.kind == "cpu" else TOLERANCE_TPOT
    profile = fitted_profile(measured.session)
    report = _build_report(
        measured, profile, tolerance_ttft=tolerance_ttft, tolerance_tpot=tolerance_tpot, start=start
    )
    session.log.add_run(run_summary(report, session, measured.results))
    written = bool(profile.fits)
    try:
        doubts = require_valid([read_measurements(session.log.path)], session.profile)
    except InvalidInput as error:
        doubts, written = (f"no calibrated profile was written: {error}",), False
    report = replace(report, remarks=(*report.remarks, *doubts))
    _write_report(report, Path(out))
    if written:
        write_profile(profile.profile, Path(out))
    return report, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementOutcome:
    """The results of the stages and the final session. If the device was lost, `lost` is the error in `stage`."""

    session: Session
    results: StageResults
    interrupted: bool
    stage: str = ""
    lost: DeviceLost | None = None


def measure(
    session: Session,
    remarks: Sequence[str] = (),
    *,
    skip: Mapping[str, str] | None = None,
    enter: Callable[[str], None] | None = None,
) -> MeasurementOutcome:
    """Run all stages within the budget; on Ctrl-C or a lost device, stop and keep the results so far."""
    from capacity_validate.stages import STAGES, StageResults

    results = StageResults(remarks=[*remarks])
    interrupted, current = False, ""
    lost: DeviceLost | None = None
    try:
        for number, stage in enumerate(STAGES, start=1):
            current = stage.name
            if (reason := (skip or {}).get(stage.name)) is not None:
                results.broken.append(f"{stage.name}: cut short, {reason}")
                continue
            if enter is not None:
                enter(stage.name)
            with _record_failures(stage, session, results):
                fraction = stage.time_fraction(session, STAGES[number:])
                stage.run(session.with_time_fraction(fraction), results)
            session = session.with_model(results.whole, results.slowdown)
            if results.outcome is not None and results.outcome.interrupted:
                raise KeyboardInterrupt
            if results.outcome is not None and results.outcome.stopped:
                results.broken.append(f"the run was stopped: {results.outcome.stopped}")
                break
    except KeyboardInterrupt:
        interrupted = True
        results.remarks.append(INTERRUPTED)
    except DeviceLost as error:
        lost = error
        results.broken.append(f"{error}; a new process continues after the failed part")
    session = session.with_model(results.whole, results.slowdown)
    return MeasurementOutcome(
        session=session, results=results, interrupted=interrupted, stage=current, lost=lost
    )


@contextmanager
def _record_failures(stage: ValidationStage, session: Session, results: StageResults) -> Iterator[None]:
    """Record a stage's exception and continue. Re-raises CapacityError; raises DeviceLost if the device is lost."""
    try:
        yield
    except (DeviceLost, CapacityError):
        raise
    except Exception as error:
        line = error_line(error)
        if device_error(session.torch, session.facts.torch_name) is not None:
            raise DeviceLost(stage.name, line) from None
        if is_out_of_memory(error):
            results.remarks.append(f"{stage.name}: skipped or cut short, because memory ran out ({line})")
            session.free_memory()
        else:
            results.broken.append(f"{stage.name} failed: {line}")


def _build_report(
    measured: MeasurementOutcome,
    profile: FittedProfile,
    *,
    tolerance_ttft: float,
    tolerance_tpot: float,
    start: float,
) -> ValidationReport:
    """Build the report, with predictions before and after calibration on the held-out half of the cases."""
    session, results = measured.session, measured.results
    fits, before, after = profile.half.fits, profile.half.before, profile.half.after
    cases = measured_cases(session)
    rows = case_rows(cases, before, after, case_roles(cases, fits, session.profile))
    model = None if session.transformer is None else session.transformer.model
    serving = (serving_comparison(loaded, before, after, model) for loaded in results.runs if model)
    return ValidationReport(
        environment=environment(session.facts),
        campaign=session.campaign.name,
        profile=session.profile.name,
        roofs={"hbm_bytes_per_s": session.profile.hbm_bytes_per_s, **session.profile.dense_flops_per_s},
        seconds=time.monotonic() - start,
        cases=rows,
        not_timed=untimed_cases(cases),
        left_out=results.outcome.left_out if results.outcome else (),
        classes=class_errors(rows),
        constants=tuple(fitted_constants(fit) for fit in fits),
        refused=tuple(profile.half.refused),
        bands={regime: (band.low, band.high) for regime, band in profile.residuals.items()},
        host=_host_times(session, after, model),
        findings=tuple(results.findings),
        serving=tuple(serving),
        speculation=tuple(results.speculation),
        memory=results.memory,
        extrapolation=extrapolate_depth(session, after),
        tolerance_ttft=tolerance_ttft,
        tolerance_tpot=tolerance_tpot,
        unseen=None if session.plan.unseen is None else session.plan.unseen.model,
        ttft_error=median_error(rows, "model prefill"),
        tpot_error=median_error(rows, "model decode"),
        interrupted=measured.interrupted,
        broken=tuple(results.broken),
        remarks=(
            *reach_remarks(cases, session.profile),
            *results.remarks,
            *outlying_shapes(cases, fits, session.profile),
            *bound_remarks(fits),
            *_noise_remarks(rows),
        ),
    )


def _host_times(session: Session, fitted: Predictor, model: ModelSpec | None) -> dict[str, float] | None:
    if model is None or not whole_model_cases(session):
        return None
    host = fitted.step_model(model.num_layers).host
    return {"step_s": host.step_s, "per_sequence_s": host.per_sequence_s}


def _noise_remarks(rows: Sequence[CaseRow]) -> list[str]:
    middle = statistics.median_high(row.spread for row in rows) if rows else 0.0
    if middle <= NOISE_LIMIT:
        return []
    return [f"noisy: the times of half of the cases vary by more than {middle:.0%}"]


def _write_report(report: ValidationReport, folder: Path) -> None:
    from capacity_validate.html_report import to_html

    report.write_json(folder / "report.json")
    (folder / "report.html").write_text(to_html(report), encoding="utf-8")
