"""Parts of an interval: the sources of prediction error, their sizes, and what the user can specify to narrow it.

The parts are independent, so their variances add up on a logarithmic scale. An interval is wider for engines and GPUs
without measurements, with constants of another GPU, with unspecified launch settings, and for percentiles. It is
narrower for a deployment that was calibrated on its own runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from capacity.answers.sensitivity import Shares
from capacity.base.quantity import Quantity
from capacity.hardware.adjustment import Adjustment
from capacity.hardware.measured_loads import LoadMetric
from capacity.hardware.spreads import RUN_TO_RUN, Metric, MetricSpread, Spreads, UnspecifiedSpread
from capacity.step.time_classes import EFFECTS, TIME_CLASSES, Effect

Z_90 = 1.645  # standard deviations of a normal: 5 % and 95 %
CALIBRATE = "capacity calibrate RESULTS (two of your own runs)"
SCHEDULING, VERSION = "scheduling", "engine_version"
ACCEPTANCE = "--acceptance"
PERCENTILE = "percentile"
MACHINE = "machine, client and build"
LAUNCH_SETTINGS = 4  # settings that may differ on a server: the release and `LAUNCH_DEFAULTS`
EFFECT_DESCRIPTIONS: dict[Effect, str] = {
    "memory": "memory-bound kernels, which vary between machines and releases",
    "compute": "compute-bound kernels",
    "experts": "expert kernels and the balance of the expert router",
    "all_reduce": "all-reduce and other collectives",
    "host": "CPU work per step, which depends on clock, load and release",
    "eager": "kernel launches outside of CUDA graphs",
    "experts_tilt": "growth of the expert kernels' time with the number of tokens",
}

WEIGHT_KERNELS = "weight kernels"
UNMEASURED = {  # by the reason why these steps were not measured; {}: the GPU
    WEIGHT_KERNELS: "kernels of a weight format, known only from third-party measurements",
    "chip": "steps of {}, assumed because none of its kernels was measured",
    "served chip": "steps of {}, predicted with kernels of another chip; error on published servers with this chip",
    "power cap": "clock of {} under a power cap, assumed from sweeps of other GPUs",
    "offload": "assumed rates of weights read over PCIe and of layers computed by the CPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One independent source of prediction error. `deviation`: standard deviation of the logarithm of the error.
    `narrowed_by`: what the user can do to remove the error.

    `judged`: whether the held-out evaluation included this error, so that the fitted interval ends apply to it.
    Otherwise the ends are those of a normal distribution.
    """

    name: str
    what: str
    deviation: float
    narrowed_by: str | None = None
    judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPart:
    """One independent source of prediction error, which alone would give the interval `low` to `high` (relative).

    `variance_share`: its fraction of the total variance. `narrowed_by`: what the user can specify or do to reduce it.
    """

    name: str
    what: str
    low: float
    high: float
    variance_share: float
    narrowed_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedInterval:
    """A predicted latency (s) with its interval and the sources of error, the largest first.

    `holds`: errors that the interval covers in addition to `parts`. `as_found_s` and `as_found_parts`: latency and
    sources of error for a server with unknown settings and client.
    """

    metric: str
    predicted_s: Quantity
    parts: tuple[IntervalPart, ...]
    holds: tuple[str, ...]
    as_found_s: Quantity
    as_found_parts: tuple[IntervalPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionContext:
    """Context of one predicted metric: GPU, model, engine, known settings and statistic.

    `engine_label` names the release. `ttft_share` is TTFT / E2E. `error_factor`: possible error of kernels that only
    third parties measured. `ttft_unmeasured` (for TTFT) and `unmeasured` (for other metrics): possible error factors of
    steps, by reason (such as a chip without measured kernels). `transferred`: predicted with another GPU's constants.
    `unsaid`: launch settings whose values on the server are unknown; empty for a server that is launched as predicted.
    `adjustment`: the calibration in the GPU profile. `length_spread`: standard deviation of the logarithm of tokens per
    verification step.
    """

    engine: str
    gpu: str
    model: str
    is_moe: bool
    engine_label: str = ""
    statistic: str = "mean"
    saturated: bool = False
    ttft_share: float = 0.0
    error_factor: float = 1.0
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    ttft_unmeasured: Mapping[str, float] = field(default_factory=dict)
    transferred: bool = False
    unsaid: Sequence[str] = ()
    adjustment: Adjustment | None = None
    length_spread: float = 0.0


def interval_parts(
    metric: Metric, sensitivity: Shares, asked: PredictionContext, known: Spreads
) -> tuple[Part, ...]:
    """Return all sources of error of `metric`, the largest first."""
    parts = [*_step_parts(metric, sensitivity, asked, known), *_deployment_parts(metric, asked, known)]
    weight = sum(sensitivity[name] for name in TIME_CLASSES)
    if asked.transferred:
        what = "kernel constants of another GPU"
        narrowed = "capacity validate on this GPU, or " + CALIBRATE
        parts.append(
            Part(name="transferred", what=what, deviation=known.transferred * weight, narrowed_by=narrowed)
        )
    unmeasured = asked.ttft_unmeasured if metric == "ttft" else asked.unmeasured
    for name, factor in {WEIGHT_KERNELS: asked.error_factor, **unmeasured}.items():
        deviation = math.log(factor) / Z_90 * weight
        what = UNMEASURED[name].format(asked.gpu)
        parts.append(Part(name=name, what=what, deviation=deviation, narrowed_by=CALIBRATE, judged=False))
    parts += launch_parts(metric, asked, known)
    if metric != "ttft":
        parts.append(acceptance_part(asked.length_spread * (1 if metric == "tpot" else 1 - asked.ttft_share)))
    if asked.statistic in ("p90", "p95", "p99"):
        what = f"uncertain distance of {asked.statistic} from the mean"
        tail = float(getattr(known.tails[metric], asked.statistic))
        parts.append(Part(name=PERCENTILE, what=what, deviation=tail, judged=False))
    kept = [part for part in parts if part.deviation > 0]
    return tuple(sorted(kept, key=lambda part: -part.deviation))


def acceptance_part(deviation: float) -> Part:
    """Return the error due to an unknown acceptance rate of drafts; `deviation`: its standard deviation."""
    what = "acceptance rate of drafts, published for other prompts"
    return Part(
        name=ACCEPTANCE, what=what, deviation=deviation, narrowed_by=f"set {ACCEPTANCE}", judged=False
    )


def deviation_of(parts: Iterable[Part]) -> float:
    """Return the standard deviation of the sum of these independent parts."""
    return math.sqrt(sum(part.deviation**2 for part in parts))


def relative_ends(parts: Iterable[Part], kind: MetricSpread) -> tuple[float, float]:
    """Return the 90 % interval of measured / predicted from these parts. `kind`: fitted interval ends of the metric."""
    parts = tuple(parts)
    judged = deviation_of(part for part in parts if part.judged)
    others = Z_90 * deviation_of(part for part in parts if not part.judged)
    return math.exp(-math.hypot(kind.low * judged, others)), math.exp(math.hypot(kind.high * judged, others))


def kind_of(metric: Metric, asked: PredictionContext, known: Spreads) -> MetricSpread:
    """Return the fitted deviations and interval ends of a metric, after calibration if the deployment is calibrated."""
    kind = known.kind(metric, is_moe=asked.is_moe, saturated=asked.saturated)
    return kind.calibrated if calibrated_sensitivities(metric, asked) else kind


def calibrated_sensitivities(metric: Metric, asked: PredictionContext) -> dict[LoadMetric, float]:
    """Return the sensitivities of a metric to the factors on TTFT and TPOT, which calibration fits in addition to the
    constants of the GPU; empty without calibration runs of this deployment."""
    adjustment = asked.adjustment
    if adjustment is None or not adjustment.is_calibrated_on(asked.model, asked.engine_label):
        return {}
    if metric != "e2e":
        return {metric: 1.0}
    share = 0.0 if asked.saturated else asked.ttft_share
    return {"ttft": share, "tpot": 1.0 - share}


def _step_parts(metric: Metric, sensitivity: Shares, asked: PredictionContext, known: Spreads) -> list[Part]:
    """Return the sources of error of step times: one for each kind of kernel or CPU work, or after calibration just
    one.

    A kind has one correction factor for kernels of all sizes. Calibration at one load reduces the factor's variance; at
    other loads only the fraction 1 - `RUN_TO_RUN` of this reduction applies.
    """
    if asked.adjustment is not None and asked.adjustment.covariance:
        of_classes: dict[str, float] = {str(name): share for name, share in sensitivity.items()}
        variance = asked.adjustment.variance(of_classes | calibrated_sensitivities(metric, asked))
        before = sum((share * known.classes[name]) ** 2 for name, share in of_classes.items())
        variance += RUN_TO_RUN * max(before - asked.adjustment.variance(of_classes), 0.0)
        what = f"step times after calibration on {asked.adjustment.rows} measured values of your own runs"
        return [
            Part(
                name="calibrated steps", what=what, deviation=math.sqrt(variance), narrowed_by="further runs"
            )
        ]
    measured = {} if asked.adjustment is None else asked.adjustment.kernel_deviations
    return [
        Part(
            name=name,
            what=EFFECT_DESCRIPTIONS[name],
            deviation=abs(sensitivity[name]) * known.classes[name] * measured.get(name, 1.0),
            narrowed_by=CALIBRATE,
        )
        for name in EFFECTS
    ]


def _deployment_parts(metric: Metric, asked: PredictionContext, known: Spreads) -> list[Part]:
    """Return the errors that step times do not explain: differences between deployments and between runs.

    Both errors are larger if the measurements do not include this engine on this GPU, except for a calibrated
    deployment.
    """
    seen = known.find_evidence(asked.engine, asked.gpu, is_moe=asked.is_moe)
    of_ttft, of_tpot = (known.unfamiliar,) * 2 if seen is None else (seen.ttft, seen.tpot)
    learnt = bool(calibrated_sensitivities(metric, asked))
    if learnt:
        of_ttft = of_tpot = 1.0
    kinds: list[tuple[float, MetricSpread, float]]
    if metric == "e2e" and not asked.saturated:
        share = asked.ttft_share
        kinds = [(share, known.kind("ttft", is_moe=asked.is_moe), of_ttft)]
        kinds.append((1 - share, known.kind("tpot", is_moe=asked.is_moe), of_tpot))
    else:
        factor = of_ttft if metric == "ttft" else of_tpot
        kinds = [(1.0, kind_of(metric, asked, known), 1.0 if asked.saturated and metric == "e2e" else factor)]
    deployment = math.sqrt(sum((w * k.deployment * f) ** 2 for w, k, f in kinds))
    run = math.sqrt(sum((w * k.run * f) ** 2 for w, k, f in kinds))
    kind = "MoE models" if asked.is_moe else "dense models"
    measured = "" if seen is not None and seen.gpu is not None else " (no measured deployment)"
    of = f"{kind} under {asked.engine} on {asked.gpu}{measured}"
    return [
        Part(
            name="deployment",
            what=f"differences between deployments of {of} beyond their step times",
            deviation=deployment * (math.sqrt(RUN_TO_RUN) if learnt else 1.0),
            narrowed_by=CALIBRATE,
        ),
        Part(name="run", what="variation between runs and loads", deviation=run),
    ]


def launch_parts(metric: Metric, asked: PredictionContext, known: Spreads) -> list[Part]:
    """Return the errors due to unspecified server settings: settings left at the engine's defaults, scheduler settings
    without a flag, and the machine.

    Calibration runs of this deployment include the effect of its settings, but only at the loads of those runs.
    """
    found = []
    left = math.sqrt(RUN_TO_RUN) if calibrated_sensitivities(metric, asked) else 1.0
    for name in (*asked.unsaid, SCHEDULING):
        spread = known.spread_of_unspecified(asked.engine, name)
        if spread is None or (name == SCHEDULING and not asked.unsaid):
            continue
        deviation = _unspecified_deviation(metric, spread, asked.ttft_share) * left
        flag = "--" + name.replace("_", "-")
        narrowed = f"set {flag}"
        what = f"not specified; the default is assumed, but {asked.engine} servers often use another value"
        if name == VERSION:
            flag, narrowed = "engine version", f"set --engine {asked.engine}@VERSION"
            what = "not specified; the newest known release is assumed"
        if name == SCHEDULING:
            flag, narrowed = SCHEDULING, CALIBRATE
            what = f"scheduling settings of {asked.engine} without a flag in capacity"
        found.append(Part(name=flag, what=what, deviation=deviation, narrowed_by=narrowed, judged=False))
    kind = "moe" if asked.is_moe else "dense"
    least, most = known.other_machines.get(kind), known.beyond_said.get(kind)
    if least is not None:
        unknown = len(asked.unsaid) / LAUNCH_SETTINGS
        part = machine_part(metric, least, most, unknown, asked.ttft_share)
        learnt = bool(calibrated_sensitivities(metric, asked))
        found.append(replace(part, deviation=part.deviation * (left * math.sqrt(unknown) if learnt else 1.0)))
    return found


def machine_part(
    metric: Metric,
    least: UnspecifiedSpread,
    most: UnspecifiedSpread | None,
    unknown: float,
    ttft_share: float,
) -> Part:
    """Return the error due to a machine, a client and a build that were not measured.

    `unknown` is the fraction of launch settings, including the release, that are unknown. The variance grows with it
    linearly, from `least` (all known) to `most` (none known).
    """
    low = _unspecified_deviation(metric, least, ttft_share)
    high = low if most is None else max(_unspecified_deviation(metric, most, ttft_share), low)
    return Part(
        name=MACHINE,
        what="unmeasured machine, client and build",
        deviation=math.sqrt(low**2 + unknown * (high**2 - low**2)),
        narrowed_by=CALIBRATE,
        judged=False,
    )


def _unspecified_deviation(metric: Metric, spread: UnspecifiedSpread, ttft_share: float) -> float:
    if metric == "e2e":
        return math.hypot(ttft_share * spread.ttft, (1 - ttft_share) * spread.tpot)
    return spread.ttft if metric == "ttft" else spread.tpot
