"""The random-effects model behind the spreads of intervals: what it is fitted on, and how.

`fit_spreads.py` says what it stands for, judges it and writes it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt
from interval_evidence import (
    ALL,
    NO_CLIENT,
    NOTHING,
    OTHER_LAB,
    RELEASE,
    SETTINGS,
    THIRD_PARTIES,
    Figure,
)
from scipy.optimize import minimize

from capacity.hardware.coefficients import Fit
from capacity.hardware.spreads import (
    EvidenceCoverage,
    IntervalCoverage,
    MetricSpread,
    PercentileSpread,
    Spreads,
    UnspecifiedSpread,
)
from capacity.step.time_classes import EFFECTS

Floats = npt.NDArray[np.float64]
PRIOR = {
    "memory": 0.08,
    "compute": 0.12,
    "experts": 0.25,
    "all_reduce": 0.25,
    "host": 0.35,
    "eager": 0.5,
    "experts_tilt": 0.08,
}
PRIOR_WIDTH = 0.35  # of the logarithm of a deviation
KINDS = tuple(f"{kind}_{what}" for what in ("ttft", "tpot", "saturated") for kind in ("dense", "moe"))
E2E_KINDS = ("dense_e2e", "moe_e2e")
OWN_PRIOR = {
    "dense_ttft": 0.15,
    "moe_ttft": 0.3,
    "dense_tpot": 0.05,
    "moe_tpot": 0.1,
    "dense_saturated": 0.2,
    "moe_saturated": 0.2,
}
FREEDOM = 4.0  # of the t: tails as heavy as between sources
COUNTED = 12.0  # figures of a deployment
WHOLE_SOURCE = 6  # figures; a source of fewer counts for as much less
SHRINK = 4.0  # deployments that the whole counts for beside an engine's or a GPU's own
MOST_OFF = 3.0  # deviations of a deployment that count
STABLE_LOAD = 0.95  # beyond, an answer gives no upper end (`capacity/simulator/verdict.py`)
NORMAL = 1.645
OF_MEDIAN = 2.198  # a normal's variance over the median of its squares
TAILS = {"ttft": (0.2, 0.5), "tpot": (0.05, 0.25), "e2e": (0.05, 0.15)}  # before any: p90 and p99
CLASSES = len(EFFECTS)


def usable(figure: Figure) -> bool:
    """Figures of loads that an answer speaks of."""
    if figure.said not in (ALL, NO_CLIENT, RELEASE, NOTHING, OTHER_LAB, *THIRD_PARTIES):
        return False
    return figure.load_fraction is None or figure.load_fraction < STABLE_LOAD


def kind_name(figure: Figure) -> str:
    what = "ttft" if figure.metric == "ttft" else "tpot"
    if figure.statistic == "throughput":
        what = "saturated"
    return f"{'moe' if figure.is_moe else 'dense'}_{what}"


def ends_name(figure: Figure) -> str:
    """Whose ends its interval takes: E2E has its own."""
    e2e = figure.metric == "e2e" and figure.statistic != "throughput"
    return f"{'moe' if figure.is_moe else 'dense'}_e2e" if e2e else kind_name(figure)


def fitted_on(figure: Figure) -> bool:
    """Means of latencies, once each, everything known being said; E2E follows from TTFT and TPOT."""
    if figure.said != ALL or not usable(figure):
        return False
    if figure.metric == "e2e":
        return figure.statistic == "throughput"
    return figure.statistic in ("mean", "median")


def ends_on(figure: Figure) -> bool:
    """What ends are made of: what the deviations are fitted on, and means of E2E."""
    means = figure.said == ALL and usable(figure) and figure.statistic in ("mean", "median")
    return fitted_on(figure) or (means and figure.metric == "e2e")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Figures of one deployment, in columns."""

    source: str
    engine: str
    gpu: str
    is_moe: bool
    errors: Floats
    sensitivity: Floats
    kinds: npt.NDArray[np.int64]


def deployments(figures: Iterable[Figure]) -> list[Deployment]:
    groups: dict[str, list[Figure]] = {}
    for figure in figures:
        if fitted_on(figure):
            groups.setdefault(figure.group, []).append(figure)
    return [
        Deployment(
            own[0].source,
            own[0].engine,
            own[0].gpu,
            own[0].is_moe,
            np.array([f.log_error for f in own]),
            np.array([[f.sensitivity[name] for name in EFFECTS] for f in own]),
            np.array([KINDS.index(kind_name(f)) for f in own]),
        )
        for own in groups.values()
    ]


# the fit


def start() -> Floats:
    own = [OWN_PRIOR[kind] for kind in KINDS]
    return np.log([*(PRIOR[name] for name in EFFECTS), *own, *own])


def loss(logs: Floats, groups: Sequence[Deployment], before: Floats) -> float:
    """Minus the logarithm of the posterior density of the deviations."""
    variances = np.exp(2 * logs)
    total = 0.5 * float(np.sum(((logs - before) / PRIOR_WIDTH) ** 2))
    for group in groups:
        kinds, count = group.kinds, len(group.errors)
        own, run = (variances[CLASSES + offset + kinds] for offset in (0, len(KINDS)))
        covariance = (group.sensitivity * variances[:CLASSES]) @ group.sensitivity.T + np.diag(run)
        covariance += np.where(kinds[:, None] == kinds[None, :], own[:, None], 0.0)
        factor = np.linalg.cholesky(covariance)
        white = np.linalg.solve(factor, group.errors)
        density = np.log(np.diag(factor)).sum() + 0.5 * (FREEDOM + count) * np.log1p(white @ white / FREEDOM)
        total += min(1.0, COUNTED / count) * float(density)
    return total


def fit_deviations(groups: Sequence[Deployment]) -> Floats:
    before = start()
    found = minimize(loss, before, args=(groups, before), method="L-BFGS-B", options={"maxiter": 60})
    deviations: Floats = np.exp(found.x)
    return deviations


def fit_familiar(groups: Sequence[Deployment], deviations: Floats) -> tuple[EvidenceCoverage, ...]:
    """By engine and kind of model, and by GPU within: the deployments' own deviations over those of the whole."""
    off: dict[tuple[str, bool, str | None], list[tuple[float, float]]] = {}
    for group in groups:
        if any(KINDS[kind].endswith("saturated") for kind in group.kinds):
            continue
        factors = _own_factors(group, deviations)
        for gpu in (None, group.gpu):
            off.setdefault((group.engine, group.is_moe, gpu), []).append(factors)
    found = []
    whole: dict[tuple[str, bool], Floats] = {}
    for (engine, is_moe, gpu), squares in off.items():
        towards = np.ones(2) if gpu is None else whole[engine, is_moe]
        mean = (SHRINK * towards + np.sum(squares, axis=0)) / (SHRINK + len(squares))
        if gpu is None:
            whole[engine, is_moe] = mean
        ttft, tpot = (round(float(value), 3) for value in np.sqrt(mean))
        found.append(
            EvidenceCoverage(
                engine=engine, is_moe=is_moe, gpu=gpu, deployments=len(squares), ttft=ttft, tpot=tpot
            )
        )
    return tuple(found)


def _own_factors(group: Deployment, deviations: Floats) -> tuple[float, float]:
    """Squares of TTFT's and TPOT's errors beyond their step times', over the whole's deviations; 1: none.

    By the median: a few runs of a deployment that went wrong do not widen what is said of the others.
    """
    found = []
    by_class = np.square(group.sensitivity * deviations[:CLASSES]).sum(axis=1)
    for metric in ("ttft", "tpot"):
        kind = KINDS.index(f"{'moe' if group.is_moe else 'dense'}_{metric}")
        mine = group.kinds == kind
        if not mine.any():
            found.append(1.0)
            continue
        own = deviations[CLASSES + kind] ** 2 + deviations[CLASSES + len(KINDS) + kind] ** 2
        beyond = OF_MEDIAN * np.median(np.square(group.errors[mine])) - np.median(by_class[mine])
        found.append(float(np.clip(beyond / own, 0.0, MOST_OFF**2)))
    return found[0], found[1]


def fit_tails(figures: Sequence[Figure]) -> dict[str, PercentileSpread]:
    """Root mean squares of percentiles' errors beyond their means'; a source counts like what is held before."""
    means = {
        (f.group, f.metric, f.load_fraction): f.log_error
        for f in figures
        if f.said == ALL and usable(f) and f.statistic in ("mean", "median") and f.load_fraction is not None
    }
    tails = {}
    for metric, before in TAILS.items():
        ends = []
        for statistic, prior in zip(("p90", "p99"), before, strict=True):
            by_source: dict[str, list[float]] = {f"{metric} before": [prior**2]}
            for f in figures:
                mean = means.get((f.group, f.metric, f.load_fraction))
                if f.metric == metric and f.statistic == statistic and usable(f) and mean is not None:
                    by_source.setdefault(f.source, []).append(min(abs(f.log_error - mean), MOST_TAIL) ** 2)
            ends.append(float(np.sqrt(np.mean([np.mean(each) for each in by_source.values()]))))
        p90, p99 = ends
        tails[metric] = PercentileSpread(p90=round(p90, 3), p95=round((p90 + p99) / 2, 3), p99=round(p99, 3))
    return tails


MOST_TAIL = 2.0


def fit_unsaid(figures: Sequence[Figure]) -> dict[str, dict[str, UnspecifiedSpread]]:
    """By engine and launch setting, what the default in its place changes: root mean squares over deployments.

    Servers that ran with the default count as well: nothing changes for them. Together the settings of an engine count
    for no less than leaving all of them out at once does.
    """
    before = {_row(f): f.predicted_s for f in figures if f.said == NO_CLIENT}
    changed: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for f in figures:
        setting = f.said.removeprefix("no ")
        if setting in (*SETTINGS, NOTHING) and f.metric != "e2e" and _row(f) in before:
            change = min(abs(np.log(f.predicted_s / before[_row(f)])), MOST_CHANGED)
            of = changed.setdefault((f.engine, setting, f.metric), {})
            of.setdefault(f.group, []).append(float(change**2))
    groups: dict[str, set[str]] = {}
    for f in figures:
        if f.said == NO_CLIENT:
            groups.setdefault(f.engine, set()).add(f.group)
    found: dict[str, dict[str, UnspecifiedSpread]] = {}
    for engine, own in sorted(groups.items()):
        deviations: dict[str, dict[str, float]] = {}
        for metric in ("ttft", "tpot"):
            squares = {
                setting: sum(
                    float(np.mean(each)) for each in changed.get((engine, setting, metric), {}).values()
                )
                / len(own)
                for setting in (*SETTINGS, NOTHING)
            }
            together = squares.pop(NOTHING)
            more = max(together / sum(squares.values()), 1.0) if any(squares.values()) else 1.0
            deviations[metric] = {s: round(float(np.sqrt(v * more)), 3) for s, v in squares.items()}
        found[engine] = {
            s: UnspecifiedSpread(ttft=deviations["ttft"][s], tpot=deviations["tpot"][s], deployments=len(own))
            for s in SETTINGS
        }
    return found


def _row(figure: Figure) -> tuple[str, str, float]:
    return figure.group, figure.metric, round(figure.measured_s, 9)


MOST_CHANGED = 1.0  # of a logarithm: beyond, an answer warns of what fills up


def _fit(source: str, rows: int, held_out_by: str | None = None) -> Fit:
    return Fit(
        basis="fitted", source=source, date=date.today().isoformat(), rows=rows, held_out_by=held_out_by
    )


SOURCE = (
    "served runs of InferenceX and gap-analysis (H100, H200, B200), IOG (H100 PCIe), inference-sim and APEX (H100), "
    "TensorRT-LLM's performance page (A100, H100, H200, L40S)"
)
BEYOND_SOURCE = (
    "rows of InferenceX, gap-analysis, GPUStack's lab (docs.gpustack.ai) and ML.ENERGY's leaderboard v3 (ml.energy), "
    "predicted with neither launch nor client known"
)
MACHINES_SOURCE = (
    "campaigns of known launch, each left out, with GPUStack's lab (docs.gpustack.ai) and ML.ENERGY's leaderboard v3 "
    "(ml.energy, with its sampling parameters): nine in ten figures and sources of campaigns left out"
)
HELD_OUT_BY = "source: campaign, engine with its client, GPU"


def made(
    figures: Sequence[Figure],
    ends: Mapping[str, tuple[float, float]],
    learnt: Mapping[str, tuple[float, float]] | None = None,
    held: Mapping[str, IntervalCoverage] | None = None,
    beyond_said: Mapping[str, UnspecifiedSpread] | None = None,
    other_machines: Mapping[str, UnspecifiedSpread] | None = None,
) -> Spreads:
    """The spreads of these figures, with the ends that others gave, those after runs of one's own, what was held, and
    what lies beyond what is said.

    No full engine was learnt from: its ends are the same before and after.
    """
    groups = deployments(figures)
    deviations = fit_deviations(groups)
    counts = Counter(ends_name(figure) for figure in figures if ends_on(figure))
    kinds = {}
    for name in (*KINDS, *E2E_KINDS):
        i = KINDS.index(name.replace("e2e", "tpot"))
        kinds[name] = MetricSpread(
            deployment=round(float(deviations[CLASSES + i]), 4),
            run=round(float(deviations[CLASSES + len(KINDS) + i]), 4),
            low=round(ends[name][0], 3),
            high=round(ends[name][1], 3),
            **_learnt_ends(name, learnt),
            rows=counts[name],
        )
    tails = sum(f.statistic.startswith("p") and usable(f) for f in figures)
    unsaid = sum(f.said == NO_CLIENT and f.metric == "ttft" for f in figures)
    return Spreads(
        fit=_fit(SOURCE, sum(map(fitted_on, figures)), HELD_OUT_BY),
        classes={name: round(float(deviations[i]), 4) for i, name in enumerate(EFFECTS)},
        familiar=fit_familiar(groups, deviations),
        unfamiliar=UNFAMILIAR,
        unsaid=fit_unsaid(figures),
        unsaid_fit=_fit(
            "InferenceX and gap-analysis rows, predicted with one launch setting at a time left out", unsaid
        ),
        tails=fit_tails(figures),
        tails_fit=_fit("IOG and inference-sim runs, 90th and 99th percentiles", tails, "source"),
        transferred=TRANSFERRED,
        transferred_fit=Fit(
            basis="assumed",
            source="TPOT of A100 PCIe and H100 PCIe by the constants of their SXM cards: 5 to 17 % off",
            date=date.today().isoformat(),
        ),
        held=dict(held or {}),
        beyond_said=dict(beyond_said or {}),
        beyond_said_fit=_fit(
            BEYOND_SOURCE, sum(f.said == NOTHING and usable(f) for f in figures), HELD_OUT_BY
        ),
        other_machines=dict(other_machines or {}),
        other_machines_fit=_fit(
            MACHINES_SOURCE, sum(fitted_on(f) or f.said == OTHER_LAB for f in figures), "campaign"
        ),
        **kinds,
    )


def _learnt_ends(name: str, learnt: Mapping[str, tuple[float, float]] | None) -> dict[str, float]:
    if learnt is None or name.endswith("saturated"):
        return {}
    low, high = learnt[name]
    return {"learnt_low": round(low, 3), "learnt_high": round(high, 3)}


UNFAMILIAR = 1.25
TRANSFERRED = 0.08
NO_ENDS = dict.fromkeys((*KINDS, *E2E_KINDS), (-NORMAL, NORMAL))
