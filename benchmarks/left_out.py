"""Figures beside the spreads of all sources but their own: before any run of their deployment, and after a few.

After one, two or three runs the parameters are learnt as `capacity calibrate` learns them, with the prior and the
scatter of the other sources. What a figure hangs on is known (`interval_evidence.py`), so predictions are moved to
first order, without a simulation: `benchmarks/calibration.py` does the same with simulations, and agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from capacity_validate import posterior
from interval_evidence import ALL, NOTHING, SETTINGS, Figure
from spread_model import NO_ENDS, Floats, fitted_on, made, usable

from capacity.answers.interval_parts import (
    Part,
    PredictionContext,
    calibrated_sensitivities,
    deviation_of,
    interval_parts,
)
from capacity.deployment.client_latency import MAX_S, MIN_S, USUAL_S
from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.spreads import Spreads, metric_deviation, prior_adjustment

Key = Callable[[Figure], str]
TRANSFERRED_GPUS = ("h100-pcie-80gb", "a100-pcie-80gb")
LEARNT_RUNS = (1, 2, 3)
DRAWS = 4  # of each number of runs
LEAST_RUNS = 5  # of a deployment: those learnt from, and two to judge by
LEARNT_FROM = ("ttft", "tpot")
TINY = 1e-9


def add_client_latency_range(low: float, high: float, predicted_s: float) -> tuple[float, float]:
    """Widen the interval of measured / predicted latency to include an unknown client latency (assumed: `USUAL_S`)."""
    nearer, farther = (USUAL_S - MIN_S) / predicted_s, (MAX_S - USUAL_S) / predicted_s
    return max(1 - math.hypot(1 - low, nearer), 0.0), 1 + math.hypot(high - 1, farther)


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure, the parts that fits without its source give it, and its error in standard deviations of them all.

    `learnt`: how many other runs of its deployment were learnt from.
    """

    figure: Figure
    left_out: str
    parts: tuple[Part, ...]
    standard: float
    learnt: int = 0


def asked_of(figure: Figure) -> PredictionContext:
    """What the interval of a figure is of."""
    return PredictionContext(
        engine=figure.engine,
        engine_label=figure.engine,
        gpu=figure.gpu,
        model=figure.model,
        is_moe=figure.is_moe,
        statistic=figure.statistic,
        saturated=figure.statistic == "throughput",
        ttft_share=figure.ttft_share,
        transferred=figure.transferred or figure.gpu in TRANSFERRED_GPUS,
        error_factor=figure.error_factor,
        unsaid=SETTINGS[:-1] if figure.said == NOTHING else tuple(figure.unsaid.split()),
    )


def without_each(figures: Sequence[Figure], key: Key) -> dict[str, Spreads]:
    """By source the spreads of all others, their ends those of a normal."""
    fitted = {key(f) for f in figures if fitted_on(f)}
    whole = made(figures, NO_ENDS)
    return {
        source: made([f for f in figures if key(f) != source], NO_ENDS) if source in fitted else whole
        for source in sorted({key(f) for f in figures})
    }


def left_out(figures: Sequence[Figure], key: Key, known: Mapping[str, Spreads] | None = None) -> list[Judged]:
    """Every figure with the deviation by the others' sources."""
    known = known or without_each(figures, key)
    found = []
    for figure in filter(usable, figures):
        source = key(figure)
        parts = interval_parts(figure.metric, dict(figure.sensitivity), asked_of(figure), known[source])
        found.append(Judged(figure, source, parts, figure.log_error / deviation_of(parts)))
    return found


def without_client_range(off: float, predicted_s: float) -> float:
    """What of a logarithm of measured over predicted a client that nobody said does not explain."""
    low, high = add_client_latency_range(1.0, 1.0, predicted_s)
    explained = high - 1 if off > 0 else 1 - low
    left = math.sqrt(max(math.expm1(off) ** 2 - explained**2, 0.0))
    return math.log1p(left) if off > 0 else math.log(max(1 - left, TINY))


# after runs of its own


def learnt_left_out(
    figures: Sequence[Figure], key: Key, known: Mapping[str, Spreads] | None = None
) -> list[Judged]:
    """Means of every deployment of enough runs, predicted after others of its runs, drawn at random, were learnt."""
    known = known or without_each(figures, key)
    found: list[Judged] = []
    for runs in _runs(figures).values():
        source, rng = key(runs[0][0]), np.random.default_rng(crc32(runs[0][0].group.encode()))
        for count in LEARNT_RUNS:
            for _ in range(DRAWS):
                chosen = set(rng.choice(len(runs), count, replace=False).tolist())
                own = [figure for i in chosen for figure in runs[i] if figure.metric in LEARNT_FROM]
                adjustment = learn(own, known[source])
                found += (
                    _judged(figure, source, adjustment, known[source], count)
                    for i, run in enumerate(runs)
                    if i not in chosen
                    for figure in run
                )
    return found


def _runs(figures: Sequence[Figure]) -> dict[str, list[list[Figure]]]:
    """Mean latencies by deployment and run, of runs that have both."""
    by_run: dict[tuple[str, str], list[Figure]] = {}
    for f in figures:
        if f.said == ALL and usable(f) and f.statistic in ("mean", "median"):
            by_run.setdefault((f.group, f.run), []).append(f)
    deployments: dict[str, list[list[Figure]]] = {}
    for (group, _), run in by_run.items():
        if {figure.metric for figure in run} >= set(LEARNT_FROM):
            deployments.setdefault(group, []).append(run)
    return {group: runs for group, runs in deployments.items() if len(runs) >= LEAST_RUNS}


def learn(figures: Sequence[Figure], known: Spreads) -> Adjustment:
    """What a deployment's figures say of theta, from the prior of these spreads."""
    first = figures[0]
    before = prior_adjustment(first.engine, first.gpu, is_moe=first.is_moe, known=known)
    at = np.log([figure.predicted_s for figure in figures])
    slopes = np.array([slopes_of(figure) for figure in figures])
    found = posterior.infer(
        lambda theta: at + slopes @ theta,
        [
            posterior.MeasuredFigure(
                name=figure.metric,
                value=figure.measured_s,
                deviation=metric_deviation(figure.metric, is_moe=figure.is_moe, known=known),
                shared=f"{place}",
            )
            for place, figure in enumerate(figures)
        ],
        np.zeros(len(NAMES)),
        before.covariance_matrix,
        active=np.flatnonzero(np.abs(slopes).max(axis=0)).tolist(),
    )
    return Adjustment(
        means=dict(zip(NAMES, found.mean.tolist(), strict=True)),
        covariance=tuple(map(tuple, found.covariance.tolist())),
        source="runs of its own",
        date=known.fit.date,
        rows=len(figures),
        models=(first.model,),
        engines=(first.engine,),
    )


def slopes_of(figure: Figure) -> Floats:
    """Derivatives of the logarithm of a figure of a deployment that was learnt from, by theta."""
    weights: dict[str, float] = {str(name): share for name, share in figure.sensitivity.items()}
    if figure.metric != "tpot":
        weights["front_end"] = 1 / figure.predicted_s
    if figure.metric == "e2e":
        weights |= {"ttft": figure.ttft_share, "tpot": 1 - figure.ttft_share}
    else:
        weights[figure.metric] = 1.0
    return np.array([weights.get(name, 0.0) for name in NAMES])


def _judged(figure: Figure, source: str, adjustment: Adjustment, known: Spreads, learnt: int) -> Judged:
    asked = replace(asked_of(figure), adjustment=adjustment)
    assert calibrated_sensitivities(figure.metric, asked)
    parts = interval_parts(figure.metric, dict(figure.sensitivity), asked, known)
    moved = float(slopes_of(figure) @ adjustment.mean_vector)
    return Judged(figure, source, parts, (figure.log_error - moved) / deviation_of(parts), learnt)
