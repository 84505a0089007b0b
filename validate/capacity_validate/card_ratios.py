"""Card ratios: measured / predicted times of kernels. The predicted times of engines are multiplied by them.

The harness measures its own kernels, but engines often run other kernels for the same operators. The constants of the
engines' kernels come from public tables. A measurement is therefore only used as a ratio: how much slower or faster
this GPU is than predicted for the same shape. Measured and predicted times are those of short runs. The lower clock
under sustained load is applied to predictions afterwards; if a case of the harness measured it, that clock is used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile
from capacity.hardware.adjustment import NO_ADJUSTMENT, Adjustment, kernel_parameters
from capacity.hardware.coefficients import GemmCoefficients
from capacity.hardware.power import sustained_constants
from capacity.hardware.spreads import load_spreads
from capacity.step.setting import short_run_lookup
from capacity_validate.cases import MeasuredCase
from capacity_validate.constant_fits import FamilyFit, evidence_by_target
from capacity_validate.posterior import MeasuredFigure, Vector, infer
from capacity_validate.predictions import Target, case_constants, formula

ENGINE = "vllm"  # the engine whose constants are compared with the measurements
MIN_CASES = 6
CASE_DEVIATION = (
    0.1  # of the logarithm of one kernel's time, from the form of the formula: 5 to 8 % in the median
)
PRIOR_DEVIATION = 1.0  # of a ratio's logarithm: measurements of a few cases decide
BOUND = {"memory": " where bound by memory", "compute": " where bound by compute"}
INFORMED = 0.2  # a ratio with a larger standard deviation is not used
CARD_SHARE = 0.5
"""Fraction of the prior variance of a step-time factor (one per class of operators, `capacity/step/time_classes.py`)
that comes from the GPU and its kernels, so that measured kernels remove it. The remaining variance is between releases,
batches and routers. Assumed, 2026-11-28."""

ENGINE_DIFFERENCE: Mapping[tuple[str, str], float] = {
    ("gemm", "bf16"): 0.03,
    ("gemm", "fp32"): 0.03,
    ("gemm", "fp8"): 0.10,
    ("gemm", "nvfp4"): 0.10,
    ("prefill_attention", "16bit"): 0.10,
    ("decode_attention", "16bit"): 0.10,
    ("decode_attention", "8bit"): 0.10,
    ("moe", "bf16"): 0.10,
    ("nccl", "all_reduce"): 0.05,
}
"""Standard deviation of the difference in log(measured / predicted) between an engine's kernel and the harness's, by
operator and kernel. For 16-bit matrix multiplications and collectives, engines and harness call the same library.
Kernels without an entry (latent attention from three products, 4-bit weights by tinygemm, elementwise kernels that
engines fuse) differ too much from those of engines to be used. Assumed, 2026-11-28."""
NEWER_ATTENTION = ("hopper", "blackwell")
"""Architectures on which engines run prefill attention with kernels that the harness does not have (FlashAttention 3
and newer)."""
SUSTAINED_S = 1.0  # time of a sustained case that is enough for the clock to fall


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRatio:
    """Logarithms of measured / predicted time of one kernel, by step-time parameter, from `cases` measured cases.

    `deviation`: standard deviation of these logarithms for the kernel that an engine runs.
    """

    target: Target
    ratios: Mapping[str, float]
    deviation: float
    cases: int

    @property
    def line(self) -> str:
        """Return the factors on the kernel's times as one line for a terminal."""
        factors = ", ".join(
            f"x{math.exp(ratio):.3f}{BOUND.get(name, '')}" for name, ratio in self.ratios.items()
        )
        return f"{self.target.label}: engines' kernel times {factors} ({self.cases} cases)"


def card_ratios(cases: Sequence[MeasuredCase], profile: HardwareProfile) -> tuple[CardRatio, ...]:
    """Return the ratio of each measured kernel that is similar to an engine's kernel (`ENGINE_DIFFERENCE`).

    `profile`: the profile whose constants engines use. Kernels with fewer than `MIN_CASES` cases are left out.
    """
    found = []
    for target, rows in evidence_by_target(cases, profile).items():
        difference = ENGINE_DIFFERENCE.get((target.operator, target.key))
        if target.engine:
            continue
        if target.operator == "prefill_attention" and profile.architecture in NEWER_ATTENTION:
            difference = None
        usable = [row for row in rows if formula(row.case, profile) is not None]
        if difference is not None and len(usable) >= MIN_CASES:
            found.append(_card_ratio(target, usable, profile, difference))
    slower = sustained_correction(cases, profile)
    for place, each in enumerate(found):
        if slower and each.target.operator == "gemm":
            compute = round(each.ratios.get("compute", 0.0) + slower, 4)
            found[place] = replace(each, ratios={**each.ratios, "compute": compute})
    return tuple(found)


def _card_ratio(
    target: Target, rows: Sequence[MeasuredCase], profile: HardwareProfile, difference: float
) -> CardRatio:
    names = kernel_parameters(target.operator)
    constants = case_constants(rows[0].case, short_run_lookup(profile, ENGINE))
    formulas = [formula(row.case, profile) for row in rows]

    def predict(theta: Vector) -> Vector:
        means = dict(zip(names, theta.tolist(), strict=True))
        adjustment = Adjustment.model_construct(means=means, source="search", date="2026-11-28")
        adjusted, _ = adjustment.adjust(target.operator, constants)
        return np.log([function(adjusted) for function in formulas if function is not None])

    figures = [
        MeasuredFigure(name=row.case.id, value=row.seconds, deviation=CASE_DEVIATION, shared=row.case.id)
        for row in rows
    ]
    prior = np.eye(len(names)) * PRIOR_DEVIATION**2
    posterior = infer(predict, figures, np.zeros(len(names)), prior)
    deviations = dict(zip(names, np.sqrt(np.diag(posterior.covariance)).tolist(), strict=True))
    return CardRatio(
        target=target,
        ratios={
            name: round(float(mean), 4)
            for name, mean in zip(names, posterior.mean, strict=True)
            if deviations[name] < INFORMED
        },
        deviation=math.hypot(difference, min(deviations.values())),
        cases=len(rows),
    )


def apply_sustained_clock(
    fits: Sequence[FamilyFit], cases: Sequence[MeasuredCase], profile: HardwareProfile
) -> list[FamilyFit]:
    """Return the fits with the measured clock of sustained matrix multiplications in those of an engine's own.

    Card ratios, which contain it for other kernels, do not apply to an engine's own operators.
    """
    factor = math.exp(sustained_correction(cases, profile))
    return [
        replace(
            fit,
            after=fit.after.model_copy(
                update={"compute_fraction": min(1.0, fit.after.compute_fraction / factor)}
            ),
        )
        if fit.target.engine and isinstance(fit.after, GemmCoefficients)
        else fit
        for fit in fits
    ]


def sustained_correction(cases: Sequence[MeasuredCase], profile: HardwareProfile) -> float:
    """Return log(measured / predicted slowdown) of sustained matrix multiplications; 0 if not measured."""
    logs = [
        math.log(case.seconds / case.burst_s)
        for case in cases
        if case.status == "ok"
        and case.burst_s
        and case.timing is not None
        and case.seconds * case.timing.repetitions >= SUSTAINED_S
    ]
    if not logs:
        return 0.0
    short = short_run_lookup(profile, ENGINE).kernel("gemm", "bf16")
    lasting = sustained_constants(short, profile, ("gemm", "bf16"))
    predicted = math.log(short.compute_fraction / lasting.compute_fraction)
    return sum(logs) / len(logs) - predicted


def kernel_adjustment(
    ratios: Sequence[CardRatio], profile: HardwareProfile, *, source: str
) -> Adjustment | None:
    """Return the profile's calibration with `ratios` in place of earlier ones; None if there are neither.

    Raises InvalidInput if the profile is calibrated on runs, because the factors of runs include those of the GPU.
    """
    known = profile.adjustment
    if known is not None and known.covariance:
        raise InvalidInput(
            f"{profile.name} is already calibrated on {known.rows} values of runs, which include the GPU's kernels: "
            f"calibrate kernel measurements with --gpu {profile.name.partition('@')[0]}, and then the runs"
        )
    if not ratios:
        return known
    base = NO_ADJUSTMENT if known is None else known
    return base.model_copy(
        update={
            "source": source,
            "date": date.today().isoformat(),
            "kernels": {ratio.target.label: dict(ratio.ratios) for ratio in ratios},
            "kernel_deviations": _remaining_deviations(ratios),
            "cases": sum(ratio.cases for ratio in ratios),
        }
    )


def _remaining_deviations(ratios: Sequence[CardRatio]) -> dict[str, float]:
    """Return for each parameter the factor by which the measured kernels reduce its prior standard deviation."""
    found: dict[str, float] = {}
    for name, prior in load_spreads().classes.items():
        errors = [ratio.deviation for ratio in ratios if name in ratio.ratios]
        if errors and prior:
            card = CARD_SHARE * prior**2
            removed = card / (card + min(errors) ** 2)
            found[name] = round(math.sqrt(1 - CARD_SHARE * removed), 4)
    return found
