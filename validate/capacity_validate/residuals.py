"""Error bands of a calibrated profile, from held-out steps of a whole model.

One half of the steps is used to fit the serving loop's host time, with constants that were fitted to half of the
kernels; the other half is predicted. The band is a prediction interval for the next such step: Student's t on
ln(measured / predicted), which is wide if few steps were held out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from capacity.hardware import HardwareProfile
from capacity.hardware.coefficients import Fit, Residuals
from capacity.model import ModelSpec
from capacity.step.setting import HostTime
from capacity_validate.cases import MeasuredCase
from capacity_validate.constant_fits import fit_host_time, split_cases
from capacity_validate.predictions import Predictor
from capacity_validate.report_data import MIN_HELD_OUT

COVERAGE = 0.90
_PHASES = {"prefill": "model prefill", "decode": "model decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """The serving loop's host time fitted to whole-model steps, and (predicted, measured) seconds of held-out ones."""

    host: HostTime
    held_out: Mapping[str, tuple[tuple[float, float], ...]]  # by phase: prefill, decode
    unseen: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)  # of a second model


def full_depth_steps(measured: Sequence[MeasuredCase]) -> list[MeasuredCase]:
    """Return the timed whole-model steps that ran with the largest number of layers."""
    steps = [m for m in measured if m.status == "ok" and m.case.operator in _PHASES.values()]
    depth = max((m.case["layers"] for m in steps), default=0)
    return [m for m in steps if m.case["layers"] == depth]


def step_evidence(
    measured: Sequence[MeasuredCase],
    model: ModelSpec,
    profile: HardwareProfile,
    *,
    unseen: ModelSpec | None = None,
) -> StepEvidence | None:
    """Fit the host time to half of the steps of `model`; return it, and (predicted, measured) seconds of the others.

    None if there are no steps. Steps of `unseen`, a second model, are all held out and use the same host time.
    """
    steps = full_depth_steps(measured)
    if not steps:
        return None
    fitted, held_out = split_cases(steps)
    depth = steps[0].case["layers"]
    plain = Predictor(profile, model=model)
    graphs = profile.architecture != "cpu" and not any(
        m.case.variant for m in steps
    )  # eager decode steps have a variant
    host = fit_host_time(fitted, plain.step_model(depth), window_tokens=model.window_tokens, graphs=graphs)
    judge = Predictor(profile, model=model, host=host, unseen=unseen)

    def pairs(steps: Sequence[MeasuredCase], operator: str) -> tuple[tuple[float, float], ...]:
        own = [m for m in steps if m.case.operator == operator]
        return tuple((judge.seconds(m.case) or math.nan, m.seconds) for m in own)

    others = [m for m in measured if m.status == "ok"] if unseen is not None else []
    return StepEvidence(
        host=host,
        held_out={phase: pairs(held_out, operator) for phase, operator in _PHASES.items()},
        unseen={phase: pairs(others, f"unseen {phase}") for phase in _PHASES},
    )


def prediction_band(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the interval of the next step's measured / predicted - 1 from at least two pairs, widened to include 0."""
    from scipy.stats import t

    logs = np.log([measured / predicted for predicted, measured in pairs])
    count = len(logs)
    reach = float(t.ppf(0.5 + COVERAGE / 2, count - 1)) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / count)
    centre = float(logs.mean())
    low, high = math.expm1(centre - reach), math.expm1(centre + reach)
    return min(0.0, round(low, 4)), max(0.0, round(high, 4))


def fit_residuals(
    evidence: StepEvidence | None, model: ModelSpec | None, *, source: str, unseen: ModelSpec | None = None
) -> tuple[dict[str, Residuals], dict[str, str]]:
    """Return error bands of the harness's own loop by regime (prefill, decode, decode_moe), and reasons for missing
    bands.

    The bands are the prediction errors for steps of known kernels; an engine's intervals do not use them. Steps of a
    second model count as much as those of the first.
    """
    if evidence is None or model is None:
        return {}, {"error bands": "the measurements contain no steps of a whole model, or no model name"}
    by_regime: dict[str, list[tuple[float, float]]] = {}
    for spec, found in ((model, evidence.held_out), (unseen, evidence.unseen)):
        if spec is None:
            continue
        for phase, pairs in found.items():
            regime = "decode_moe" if phase == "decode" and spec.is_moe else phase
            by_regime.setdefault(regime, []).extend(pairs)
    of = model.name if unseen is None else f"{model.name} and {unseen.name}"
    bands: dict[str, Residuals] = {}
    refused: dict[str, str] = {}
    for regime, together in by_regime.items():
        if len(together) < MIN_HELD_OUT:
            refused[f"error band of {regime}"] = (
                f"{len(together)} held-out steps are too few: {MIN_HELD_OUT} are needed"
            )
            continue
        text = f"{source}, {of} in the harness's own loop"
        bands[regime] = _residuals(together, source=text)
    return bands, refused


def _residuals(pairs: Sequence[tuple[float, float]], *, source: str) -> Residuals:
    low, high = prediction_band(pairs)
    errors = sorted(abs(predicted / measured - 1) for predicted, measured in pairs)
    text = f"{source}: Student's t interval of the next step over held-out steps of a whole model"
    fit = Fit(
        basis="fitted",
        source=text,
        date=date.today().isoformat(),
        rows=len(pairs),
        held_out_by="every other prompt length and decode batch; kernels and host time fitted to the others",
        median_error=round(errors[len(errors) // 2], 4),
        p90_error=round(float(np.quantile(errors, 0.9)), 4),
    )
    return Residuals(low=max(low, -0.95), high=high, fit=fit)
