"""Spreads: standard deviations of the errors of predicted metrics, from which intervals are computed.

An error is the logarithm of the measured divided by the predicted value. It is modelled as a sum of independent parts:
a factor on each kind of kernel and CPU work (`capacity/step/time_classes.py`), weighted by the metric's sensitivity to
it; further differences between deployments and between runs; and the effect of unspecified settings.
`benchmarks/fit_spreads.py` fits the deviations to public measurements of servers and writes `spreads.toml`. Each source
(publication) is evaluated with a fit to all other sources (`held_out_by`).
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import make_row, read_data
from capacity.base.latency_metrics import METRICS, ErrorKind
from capacity.base.spec import Spec
from capacity.hardware.adjustment import NO_ADJUSTMENT, PARAMETERS, Adjustment
from capacity.hardware.coefficients import Fit

Metric = ErrorKind
Deviation = Annotated[float, Field(ge=0, le=5)]


class MetricSpread(Spec):
    """Errors of one predicted metric for dense or MoE models: standard deviations, and limits of the 90 % interval.

    Errors that factors on kernels and CPU work explain are excluded. For E2E the deviations are those of TTFT and TPOT,
    but the limits were fitted on E2E. `deployment`: standard deviation of the error that all values of a deployment
    share; `run`: standard deviation between runs of a deployment. `low` and `high`: 5 % and 95 % points of the error on
    held-out sources, in units of the total deviation. `learnt_low` and `learnt_high`: the same after calibration on
    runs of the deployment; None: `low` and `high` apply.
    """

    deployment: Deviation
    run: Deviation
    low: Annotated[float, Field(lt=0)]
    high: Annotated[float, Field(gt=0)]
    learnt_low: Annotated[float, Field(lt=0)] | None = None
    learnt_high: Annotated[float, Field(gt=0)] | None = None
    rows: int

    @property
    def calibrated(self) -> "MetricSpread":
        """Return these errors with the interval limits that apply after calibration on the deployment's own runs."""
        if self.learnt_low is None or self.learnt_high is None:
            return self
        return self.model_copy(update={"low": self.learnt_low, "high": self.learnt_high})


class EvidenceCoverage(Spec):
    """Factors on the TTFT and TPOT standard deviations for an engine, a kind of model and a GPU (None: any other GPU)
    on which servers were measured."""

    engine: str
    is_moe: bool
    gpu: str | None = None
    deployments: int
    ttft: Annotated[float, Field(gt=0)]
    tpot: Annotated[float, Field(gt=0)]


class UnspecifiedSpread(Spec):
    """Standard deviations of the TTFT and TPOT errors due to an unspecified setting whose value is not the default.

    `Spreads.beyond_said` has the additional error of a server with an unknown launch command, `Spreads.other_machines`
    that of a server with a known launch command. `deployments`: number of deployments in the fit.
    """

    ttft: Deviation
    tpot: Deviation
    deployments: int


class PercentileSpread(Spec):
    """Standard deviations of the errors of a percentile divided by the mean, in addition to the error of the mean."""

    p90: Deviation
    p95: Deviation
    p99: Deviation


class IntervalCoverage(Spec):
    """Fraction of held-out measured values in their intervals: over all values, and as a mean over sources."""

    figures: int
    sources: int
    held: float
    held_by_source: float
    half_width: float  # median of (high - low) / 2 over the prediction


class Spreads(Spec):
    """Contents of `spreads.toml`. `fit`: source of `classes` (by kind of time), `familiar` and all `MetricSpread`s."""

    fit: Fit
    classes: dict[str, Deviation]
    dense_ttft: MetricSpread
    dense_tpot: MetricSpread
    dense_e2e: MetricSpread
    moe_ttft: MetricSpread
    moe_tpot: MetricSpread
    moe_e2e: MetricSpread
    dense_saturated: MetricSpread
    moe_saturated: MetricSpread
    familiar: tuple[EvidenceCoverage, ...]
    unsaid: dict[str, dict[str, UnspecifiedSpread]]  # by engine and setting
    unsaid_fit: Fit
    tails: dict[Metric, PercentileSpread]
    tails_fit: Fit
    # factor on the deviations of an unseen engine and kind of model
    unfamiliar: Annotated[float, Field(ge=1)]
    transferred: Deviation  # of step times with the constants of another GPU
    transferred_fit: Fit
    other_machines: dict[str, UnspecifiedSpread] = Field(default_factory=dict)  # keys: "dense", "moe"
    other_machines_fit: Fit | None = None
    beyond_said: dict[str, UnspecifiedSpread] = Field(default_factory=dict)  # keys: "dense", "moe"
    beyond_said_fit: Fit | None = None
    held: dict[str, IntervalCoverage] = Field(default_factory=dict)

    def kind(self, metric: Metric, *, is_moe: bool, saturated: bool = False) -> MetricSpread:
        """Return the errors of a metric for dense or MoE models; for E2E of a saturated engine, those of throughput."""
        what = "saturated" if saturated and metric == "e2e" else metric
        found: MetricSpread = getattr(self, f"{'moe' if is_moe else 'dense'}_{what}")
        return found

    def spread_of_unspecified(self, engine: str, setting: str) -> UnspecifiedSpread | None:
        """Return the errors due to an unspecified setting; for an engine without data, the largest of all engines."""
        if engine in self.unsaid:
            return self.unsaid[engine].get(setting)
        known = [settings[setting] for settings in self.unsaid.values() if setting in settings]
        return max(known, key=lambda each: each.ttft, default=None)

    def find_evidence(self, engine: str, gpu: str, *, is_moe: bool) -> EvidenceCoverage | None:
        """Return the factors for this engine and dense or MoE models on this GPU, else on other GPUs, else None."""
        known = {each.gpu: each for each in self.familiar if (each.engine, each.is_moe) == (engine, is_moe)}
        return known.get(gpu) or known.get(None)


@lru_cache(maxsize=1)
def load_spreads() -> Spreads:
    """Return the fitted standard deviations of `spreads.toml`."""
    path = Path(__file__).with_name("spreads.toml")
    return make_row(path, "", Spreads, read_data(path))


MAX_DEVIATION = 0.7  # largest prior deviation: a factor of 2 up or down; the linear fit diverges with more
E2E_FACTOR = 1.2  # E2E over TPOT deviation, because E2E contains TTFT
# Share of the variance between deployments that changes with lengths, loads and numbers of GPUs, so that runs cannot
# remove it. With a share of 0 beyond step times, intervals after two rows cover 73 % of the TPOTs of MoE models (on the
# groups that `benchmarks/calibration.py` calls chosen on). With a share of 0 in step times, coverage on held-out
# sources is 93 % after one run and 90 % after three, at half-widths of 21 and 18 %; with this share it is 91 % and
# 89 %, at 18 and 17 %. 2026-11-22 and 2026-11-23, basis: fitted.
RUN_TO_RUN = 0.5
KV_TOKENS_DEVIATION = 0.003  # rounding of KV tokens to one or two blocks


def prior_adjustment(engine: str, gpu: str, *, is_moe: bool, known: Spreads | None = None) -> Adjustment:
    """Return the adjustment before calibration for an engine and a GPU (names): means of 0 and the fitted variances.

    `known` replaces the bundled spreads, for example in a leave-one-source-out fit.
    """
    known = known or load_spreads()
    deviations = {parameter.name: parameter.deviation for parameter in PARAMETERS}
    deviations |= {name: min(found, MAX_DEVIATION) for name, found in known.classes.items() if found > 0}
    for metric in ("ttft", "tpot"):
        kind = known.kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
        seen = known.find_evidence(engine, gpu, is_moe=is_moe)
        factor = known.unfamiliar if seen is None else float(getattr(seen, metric))
        deviations[metric] = min(
            max(kind.deployment * factor * math.sqrt(1 - RUN_TO_RUN), 0.01), MAX_DEVIATION
        )
    variances = [deviations[parameter.name] ** 2 for parameter in PARAMETERS]
    rows = [[value if i == j else 0.0 for j in range(len(variances))] for i, value in enumerate(variances)]
    return NO_ADJUSTMENT.model_copy(
        update={"covariance": tuple(map(tuple, rows)), "source": known.fit.source}
    )


def metric_deviation(metric: str, *, is_moe: bool, known: Spreads | None = None) -> float:
    """Return the standard deviation of a metric's log error between runs of a deployment with different loads.

    The error that all runs of the deployment share is excluded, because calibration on its runs removes it. `metric`:
    ttft, tpot, itl, e2el, throughput, step or kv_tokens.
    """
    if metric == "kv_tokens":
        return KV_TOKENS_DEVIATION
    kind = (known or load_spreads()).kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
    deviation = math.hypot(kind.run, kind.deployment * math.sqrt(RUN_TO_RUN))
    return deviation * (E2E_FACTOR if metric in METRICS and METRICS[metric].error == "e2e" else 1.0)
