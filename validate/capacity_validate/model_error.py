"""Comparison of a validation's measurements with the step model, before and after calibration."""

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capacity.base.record import make_from
from capacity.model import ModelSpec
from capacity.step import decode_shape
from capacity_validate.calibrating import FittedProfile, HalfFit, fit_half, fit_profile
from capacity_validate.cases import MeasuredCase
from capacity_validate.constant_fits import FamilyFit
from capacity_validate.predictions import Predictor
from capacity_validate.report_data import Extrapolation, FittedConstants, ServingComparison
from capacity_validate.serving_loop import count_equal_steps, simulate, step_errors
from capacity_validate.session import Session
from capacity_validate.small_models import extrapolate_seconds

if TYPE_CHECKING:
    from capacity_validate.session import LoadedRun


def measured_cases(session: Session) -> list[MeasuredCase]:
    """Return all cases in the measurement file, including those of earlier runs."""
    return list(session.log.done.values())


def fitted_half(session: Session) -> HalfFit:
    """Return constants and host time fitted to one half of the cases measured so far."""
    return fit_half(measured_cases(session), session.profile, **_fit_arguments(session))


def fitted_profile(session: Session) -> FittedProfile:
    """Return the profile calibrated on all cases, named `NAME@mine`."""
    name = f"{session.profile.name.partition('@')[0]}@mine"
    return fit_profile(measured_cases(session), session.profile, name=name, **_fit_arguments(session))


def _fit_arguments(session: Session) -> dict[str, Any]:
    """Return the keyword arguments of `fit_half` and `fit_profile` that follow from the session."""
    unseen = session.plan.unseen
    return {
        "source": session.source,
        "model": None if session.whole is None else session.whole.spec,
        "unseen": None if unseen is None else session.find_model(unseen.model),
    }


def whole_model_cases(session: Session) -> list[MeasuredCase]:
    """Return the timed steps of the whole model, with any number of layers."""
    return [m for m in measured_cases(session) if m.case.operator.startswith("model ") and m.status == "ok"]


def serving_comparison(
    loaded: "LoadedRun", before: Predictor, after: Predictor, model: ModelSpec
) -> ServingComparison:
    """Compare a run of the harness's serving loop with simulations by the calibrated and uncalibrated step model."""
    run, layers, window = loaded.run, model.num_layers, model.window_tokens
    steps = after.step_model(layers)
    measured, summaries = run.summary, {"measured": run.summary}
    for of, times in (("simulated", steps), ("uncalibrated", before.step_model(layers))):
        summaries[of] = simulate(run, times, window_tokens=window).summary.to_dict()
    return ServingComparison(
        requests=len(run.workload),
        rate_per_s=loaded.rate_per_s,
        steps=len(run.steps),
        equal_steps=count_equal_steps(run, window_tokens=window),
        step_error_median=statistics.median(abs(p / m - 1) for p, m in step_errors(run, steps)),
        busy_fraction=run.busy_s / measured["duration"],
        **{
            f"{of}_{metric}_s": summary[f"mean_{metric}_ms"] / 1e3
            for of, summary in summaries.items()
            for metric in ("ttft", "tpot")
        },
    )


def extrapolate_depth(session: Session, after: Predictor) -> Extrapolation | None:
    """Return the time of a decode step with all layers: predicted, and extrapolated from two measured layer counts.

    None if all layers fit in memory, or if no such step was measured.
    """
    whole = session.whole
    if whole is None or whole.transformer is None or whole.half_depth is None:
        return None
    spec, layers = whole.spec, whole.transformer.model.num_layers
    by_id = {m.case.id: m for m in whole_model_cases(session)}
    for few in by_id.values():
        sizes = {**dict(few.case.sizes), "layers": layers}
        more = by_id.get(replace(few.case, sizes=tuple(sorted(sizes.items()))).id)
        if few.case["layers"] != whole.half_depth or more is None or few.case.operator != "model decode":
            continue
        shape = decode_shape(few.case["batch"], few.case["context"], window_tokens=spec.window_tokens)
        return Extrapolation(
            layers=float(spec.num_layers),
            measured_s=extrapolate_seconds(
                few=whole.half_depth,
                few_s=few.seconds,
                more=layers,
                more_s=more.seconds,
                layers=spec.num_layers,
            ),
            predicted_s=after.step_model().step_seconds(shape),
        )
    return None


def fitted_constants(fit: FamilyFit) -> FittedConstants:
    return make_from(
        FittedConstants,
        fit,
        family=fit.target.label,
        held_out_before=fit.error_before.median,
        held_out_after=fit.error_after.median,
        held_out_after_p90=fit.error_after.p90,
    )
