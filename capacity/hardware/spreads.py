"""How far apart deployments are from what is predicted of them: the spreads that intervals are made of.

The logarithm of measured over predicted is taken as a sum of independent parts: a factor on each class of seconds
(`capacity/step/time_classes.py`), weighed by what the figure hangs on; what a deployment and a run of it differ by
beyond that; and what the user left unsaid. `benchmarks/fit_spreads.py` finds the deviations from public served
measurements, each source judged by the others' (`held_out_by`), and writes `spreads.toml`.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import make_row, read_data
from capacity.base.latency_metrics import METRICS, ErrorKind
from capacity.base.spec import Spec
from capacity.hardware.adjustment import NONE, PARAMETERS, Adjustment
from capacity.hardware.coefficients import Fit

Metric = ErrorKind
Deviation = Annotated[float, Field(ge=0, le=5)]


class Kind(Spec):
    """Figures of one metric and kind of model: what remains beside the classes of seconds, and the ends of 90 %.

    What remains of E2E is TTFT's and TPOT's; its ends are its own.

    `deployment`: deviation that all figures of a deployment share; `run`: from one to the next. `low` and `high`: the
    5 % and 95 % points in units of the whole deviation, from sources that were left out. `learnt_low` and
    `learnt_high`: the same once runs of the deployment were learnt from; less is left of what learning takes away, and
    none of what it does not. Without them those before hold.
    """

    deployment: Deviation
    run: Deviation
    low: Annotated[float, Field(lt=0)]
    high: Annotated[float, Field(gt=0)]
    learnt_low: Annotated[float, Field(lt=0)] | None = None
    learnt_high: Annotated[float, Field(gt=0)] | None = None
    rows: int

    @property
    def learnt(self) -> "Kind":
        """The same figures of a deployment whose own runs were learnt from."""
        if self.learnt_low is None or self.learnt_high is None:
            return self
        return self.model_copy(update={"low": self.learnt_low, "high": self.learnt_high})


class Familiar(Spec):
    """Deployments of one engine, kind of model and GPU that were seen: what their own deviations are multiplied by.

    `gpu` None: what other GPUs under this engine tell.
    """

    engine: str
    is_moe: bool
    gpu: str | None = None
    deployments: int
    ttft: Annotated[float, Field(gt=0)]
    tpot: Annotated[float, Field(gt=0)]


class Unsaid(Spec):
    """What leaving a launch setting to the engine's default has cost where the server was started otherwise.

    Of all that was left unsaid together (`beyond_said`): what servers lie off beyond that, and `deployments` of them.
    `other_machines`: the same of servers whose launch is known, on machines of campaigns that were left out.
    """

    ttft: Deviation
    tpot: Deviation
    deployments: int


class Tail(Spec):
    """A percentile beside its mean: further deviation of its ratio to the mean."""

    p90: Deviation
    p95: Deviation
    p99: Deviation


class Held(Spec):
    """How often intervals held for sources that had no part in them: of figures, and of sources counted the same."""

    figures: int
    sources: int
    held: float
    held_by_source: float
    half_width: float  # median of (high - low) / 2 over the prediction


class Spreads(Spec):
    """All of `spreads.toml`. `fit` is of the classes, the kinds and the familiar deployments."""

    fit: Fit
    classes: dict[str, Deviation]
    dense_ttft: Kind
    dense_tpot: Kind
    dense_e2e: Kind
    moe_ttft: Kind
    moe_tpot: Kind
    moe_e2e: Kind
    dense_saturated: Kind
    moe_saturated: Kind
    familiar: tuple[Familiar, ...]
    unsaid: dict[str, dict[str, Unsaid]]  # by engine and setting
    unsaid_fit: Fit
    tails: dict[Metric, Tail]
    tails_fit: Fit
    unfamiliar: Annotated[float, Field(ge=1)]  # times the deviations, of an engine and kind never seen
    transferred: Deviation  # of step times by constants of another GPU
    transferred_fit: Fit
    other_machines: dict[str, Unsaid] = Field(default_factory=dict)  # of dense models, and of experts ("moe")
    other_machines_fit: Fit | None = None
    beyond_said: dict[str, Unsaid] = Field(default_factory=dict)  # of dense models, and of experts ("moe")
    beyond_said_fit: Fit | None = None
    held: dict[str, Held] = Field(default_factory=dict)

    def kind(self, metric: Metric, *, is_moe: bool, saturated: bool = False) -> Kind:
        """The figures of that kind; E2E of full engines is their throughput."""
        what = "saturated" if saturated and metric == "e2e" else metric
        found: Kind = getattr(self, f"{'moe' if is_moe else 'dense'}_{what}")
        return found

    def of_unsaid(self, engine: str, setting: str) -> Unsaid | None:
        """What leaving a setting to the default has cost under an engine; under one never seen, as under the worst."""
        if engine in self.unsaid:
            return self.unsaid[engine].get(setting)
        known = [settings[setting] for settings in self.unsaid.values() if setting in settings]
        return max(known, key=lambda each: each.ttft, default=None)

    def familiarity(self, engine: str, gpu: str, *, is_moe: bool) -> Familiar | None:
        """What is known of such deployments: of this GPU, else of others under the engine, else nothing."""
        known = {each.gpu: each for each in self.familiar if (each.engine, each.is_moe) == (engine, is_moe)}
        return known.get(gpu) or known.get(None)


@lru_cache(maxsize=1)
def spreads() -> Spreads:
    """The spreads as they were fitted."""
    path = Path(__file__).with_name("spreads.toml")
    return make_row(path, "", Spreads, read_data(path))


MOST = 0.7  # of a deviation: a factor of 2 either way; more would have linear steps run away
END_TO_END = 1.2  # times TPOT's: it holds TTFT too
# Of the variance by which deployments differ, what comes anew with other lengths, loads and numbers of GPUs, and no run
# takes away: with none of it beyond step times, intervals after two rows hold 73 % of the TPOTs of mixtures of experts
# (on the groups that `benchmarks/calibration.py` calls chosen on). Of step times with none, sources left out hold 93 %
# after one run and 90 % after three, at half-widths of 21 and 18 %; with this much 91 % and 89 %, at 18 and 17 %.
# 2026-11-22 and 2026-11-23, basis: fitted.
ANEW = 0.5
PRINTED = 0.003  # a block or two of KV tokens


def prior(engine: str, gpu: str, *, is_moe: bool, known: Spreads | None = None) -> Adjustment:
    """No change, as sure as such deployments let one be: `engine` by its name, `gpu` by its profile's.

    `known`: other spreads than those that ship, as those of all sources but one.
    """
    known = known or spreads()
    deviations = {parameter.name: parameter.deviation for parameter in PARAMETERS}
    deviations |= {name: min(found, MOST) for name, found in known.classes.items() if found > 0}
    for metric in ("ttft", "tpot"):
        kind = known.kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
        seen = known.familiarity(engine, gpu, is_moe=is_moe)
        factor = known.unfamiliar if seen is None else float(getattr(seen, metric))
        deviations[metric] = min(max(kind.deployment * factor * math.sqrt(1 - ANEW), 0.01), MOST)
    variances = [deviations[parameter.name] ** 2 for parameter in PARAMETERS]
    rows = [[value if i == j else 0.0 for j in range(len(variances))] for i, value in enumerate(variances)]
    return NONE.model_copy(update={"covariance": tuple(map(tuple, rows)), "source": known.fit.source})


def figure_deviation(metric: str, *, is_moe: bool, known: Spreads | None = None) -> float:
    """Of the logarithm of a figure: from one run of a deployment to another, of other lengths and loads.

    How far off an engine's deployments were says nothing of it: that is what a deployment's own runs tell. `metric`:
    ttft, tpot, itl, e2el, throughput, step or kv_tokens.
    """
    if metric == "kv_tokens":
        return PRINTED
    kind = (known or spreads()).kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
    deviation = math.hypot(kind.run, kind.deployment * math.sqrt(ANEW))
    return deviation * (END_TO_END if metric in METRICS and METRICS[metric].error == "e2e" else 1.0)
