"""Fit the spreads that intervals are made of, and judge them by sources left out.

    python benchmarks/fit_spreads.py [--table TABLE.csv] [--write]

The logarithm of measured over predicted of a deployment's figures is taken as U·theta + its own offset + the run's: U
what each figure hangs on (`interval_evidence.py`), theta a factor on each class of seconds, drawn anew for every
deployment. Heavy tails (a multivariate t), every deployment counting like at most `COUNTED` figures, deviations held
near what is known of them before (`PRIOR`). What engines, kinds of model and GPUs differ by is shrunk towards the
whole. The ends of an interval in standard deviations are those that sources left out of all this showed (a source:
campaign, engine with its client, GPU). Coverage is of fits that saw nothing of the source, ends included.

`--write` rewrites `capacity/hardware/spreads.toml`. CPU: a minute and a half.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from interval_evidence import ALL, NO_CLIENT, NOTHING, SETTINGS, Figure, all_figures, load, save
from scipy.optimize import minimize
from served_data import shared_folder

from capacity.answers.interval_parts import Asked, Part, deviation_of, interval_parts
from capacity.answers.interval_parts import ends_of as interval_ends
from capacity.answers.intervals import beside_client_range
from capacity.base.toml_text import toml_key, toml_value
from capacity.hardware.fits import Fit
from capacity.hardware.spreads import Familiar, Held, Kind, Spreads, Tail, Unsaid
from capacity.step.time_classes import TIME_CLASSES

Floats = npt.NDArray[np.float64]
PRIOR = {"memory": 0.08, "compute": 0.12, "experts": 0.25, "all_reduce": 0.25, "host": 0.35, "eager": 0.5}
PRIOR_WIDTH = 0.35  # of the logarithm of a deviation
KINDS = tuple(f"{kind}_{what}" for what in ("ttft", "tpot", "saturated") for kind in ("dense", "moe"))
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
SHRINK = 4.0  # deployments that the whole counts for beside an engine's or a GPU's own
MOST_OFF = 3.0  # deviations of a deployment that count
STABLE_LOAD = 0.95  # beyond, an answer gives no upper end (`capacity/simulator/verdict.py`)
NOMINAL = 0.9
LEVELS = (
    0.08,
    0.07,
    0.06,
    0.05,
    0.045,
    0.04,
    0.035,
    0.03,
    0.025,
    0.02,
    0.015,
)  # beyond an end, the first that holds
NORMAL, MOST_END = 1.645, 4.0
BEFORE = 4.0  # sources that a normal's ends count for
WHOLE_SOURCE = 6  # figures; a source of fewer counts for as much less
TAILS = {"ttft": (0.2, 0.5), "tpot": (0.05, 0.25), "e2e": (0.05, 0.15)}  # before any: p90 and p99
CLASSES = len(TIME_CLASSES)
SPREADS = Path(__file__).parents[1] / "capacity/hardware/spreads.toml"


def usable(figure: Figure) -> bool:
    """Figures of loads that an answer speaks of."""
    if figure.said not in (ALL, NO_CLIENT, NOTHING):
        return False
    return figure.load_fraction is None or figure.load_fraction < STABLE_LOAD


def kind_name(figure: Figure) -> str:
    what = "ttft" if figure.metric == "ttft" else "tpot"
    if figure.statistic == "throughput":
        what = "saturated"
    return f"{'moe' if figure.is_moe else 'dense'}_{what}"


def fitted_on(figure: Figure) -> bool:
    """Means of latencies, once each, everything known being said; E2E follows from TTFT and TPOT."""
    if figure.said != ALL or not usable(figure):
        return False
    if figure.metric == "e2e":
        return figure.statistic == "throughput"
    return figure.statistic in ("mean", "median")


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
            np.array([[f.sensitivity[name] for name in TIME_CLASSES] for f in own]),
            np.array([KINDS.index(kind_name(f)) for f in own]),
        )
        for own in groups.values()
    ]


# the fit


def start() -> Floats:
    own = [OWN_PRIOR[kind] for kind in KINDS]
    return np.log([*(PRIOR[name] for name in TIME_CLASSES), *own, *own])


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


def fit_familiar(groups: Sequence[Deployment], deviations: Floats) -> tuple[Familiar, ...]:
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
            Familiar(engine=engine, is_moe=is_moe, gpu=gpu, deployments=len(squares), ttft=ttft, tpot=tpot)
        )
    return tuple(found)


def _own_factors(group: Deployment, deviations: Floats) -> tuple[float, float]:
    """Mean squares of TTFT's and TPOT's errors beyond their step times', over the whole's deviations; 1: none."""
    found = []
    by_class = np.square(group.sensitivity * deviations[:CLASSES]).sum(axis=1)
    for metric in ("ttft", "tpot"):
        kind = KINDS.index(f"{'moe' if group.is_moe else 'dense'}_{metric}")
        mine = group.kinds == kind
        if not mine.any():
            found.append(1.0)
            continue
        own = deviations[CLASSES + kind] ** 2 + deviations[CLASSES + len(KINDS) + kind] ** 2
        beyond = np.square(group.errors[mine]) - by_class[mine]
        found.append(float(np.clip(np.mean(beyond) / own, 0.0, MOST_OFF**2)))
    return found[0], found[1]


def fit_tails(figures: Sequence[Figure]) -> dict[str, Tail]:
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
        tails[metric] = Tail(p90=round(p90, 3), p95=round((p90 + p99) / 2, 3), p99=round(p99, 3))
    return tails


MOST_TAIL = 2.0


def fit_unsaid(figures: Sequence[Figure]) -> dict[str, dict[str, Unsaid]]:
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
    found: dict[str, dict[str, Unsaid]] = {}
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
            s: Unsaid(ttft=deviations["ttft"][s], tpot=deviations["tpot"][s], deployments=len(own))
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
HELD_OUT_BY = "source: campaign, engine with its client, GPU"


def made(
    figures: Sequence[Figure], ends: Mapping[str, tuple[float, float]], held: Mapping[str, Held] | None = None
) -> Spreads:
    """The spreads of these figures, with the ends that others gave, and what was held."""
    groups = deployments(figures)
    deviations = fit_deviations(groups)
    counts = Counter(kind_name(figure) for figure in figures if fitted_on(figure))
    kinds = {
        name: Kind(
            deployment=round(float(deviations[CLASSES + i]), 4),
            run=round(float(deviations[CLASSES + len(KINDS) + i]), 4),
            low=round(ends[name][0], 3),
            high=round(ends[name][1], 3),
            rows=counts[name],
        )
        for i, name in enumerate(KINDS)
    }
    tails = sum(f.statistic.startswith("p") and usable(f) for f in figures)
    unsaid = sum(f.said == NO_CLIENT and f.metric == "ttft" for f in figures)
    return Spreads(
        fit=_fit(SOURCE, sum(counts.values()), HELD_OUT_BY),
        classes={name: round(float(deviations[i]), 4) for i, name in enumerate(TIME_CLASSES)},
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
        **kinds,
    )


UNFAMILIAR = 1.25
TRANSFERRED = 0.08
NO_ENDS = dict.fromkeys(KINDS, (-NORMAL, NORMAL))


# judged by sources left out


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure, the parts that fits without its source give it, and its error in standard deviations of them all."""

    figure: Figure
    left_out: str
    parts: tuple[Part, ...]
    standard: float


def asked_of(figure: Figure) -> Asked:
    ttft_share = 0.0
    return Asked(
        engine=figure.engine,
        gpu=figure.gpu,
        model=figure.model,
        is_moe=figure.is_moe,
        statistic=figure.statistic,
        saturated=figure.statistic == "throughput",
        ttft_share=ttft_share,
        transferred=figure.gpu in TRANSFERRED_GPUS,
        unsaid=SETTINGS[:-1] if figure.said == NOTHING else (),
    )


TRANSFERRED_GPUS = ("h100-pcie-80gb", "a100-pcie-80gb")


def left_out(figures: Sequence[Figure], key: Callable[[Figure], str]) -> list[Judged]:
    """Every figure with the deviation by the others' sources."""
    found = []
    for source in sorted({key(f) for f in figures}):
        known = made([f for f in figures if key(f) != source], NO_ENDS)
        for figure in figures:
            if key(figure) == source and usable(figure):
                asked = asked_of(figure)
                parts = interval_parts(figure.metric, dict(figure.sensitivity), asked, known)
                found.append(Judged(figure, source, parts, figure.log_error / deviation_of(parts)))
    return found


def ends_of(judged: Iterable[Judged], beyond: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The ends of 90 % in standard deviations by kind of figure, every source the same weight.

    Quantiles at `beyond` and 1 - `beyond`, drawn to those of a normal as by `BEFORE` sources more.
    """
    own: dict[str, list[Judged]] = {}
    for each in judged:
        if fitted_on(each.figure):
            own.setdefault(kind_name(each.figure), []).append(each)
    return NO_ENDS | {name: _ends(rows, beyond[name]) for name, rows in own.items()}


def _ends(rows: Sequence[Judged], beyond: float) -> tuple[float, float]:
    weights = _weights([each.left_out for each in rows], [each.figure.group for each in rows])
    values = np.array([each.standard for each in rows])
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp([beyond, 1 - beyond], cumulated, values[order])
    seen = len({each.left_out for each in rows})
    low, high = (
        (seen * min(max(end, 0.0), MOST_END) + BEFORE * NORMAL) / (seen + BEFORE) for end in (-low, high)
    )
    return -float(low), float(high)


def fit_beyond(judged: Sequence[Judged]) -> dict[str, float]:
    """How far out the ends of each kind of figure must be for sources that had no part in them to be held: a dozen
    sources tell a quantile too narrowly. Held are figures and sources alike: of neither does a single one decide."""
    beyond = {}
    for name in KINDS:
        rows = [each for each in judged if fitted_on(each.figure) and kind_name(each.figure) == name]
        beyond[name] = next((level for level in LEVELS if rows and _held(rows, name, level)), LEVELS[-1])
    return beyond


def _held(rows: Sequence[Judged], name: str, level: float) -> bool:
    (each,) = coverage(holds(rows, {name: level}), kind_name)
    return (each.held + each.held_by_source) / 2 >= NOMINAL


def _weights(sources: Sequence[str], groups: Sequence[str]) -> Floats:
    """Of rows: sources count the same, and in them deployments."""
    pairs = list(zip(sources, groups, strict=True))
    figures, of_group = Counter(sources), Counter(pairs)
    of_source = Counter(source for source, _ in of_group)
    weights = np.array(
        [min(figures[s] / WHOLE_SOURCE, 1.0) / of_source[s] / of_group[s, g] for s, g in pairs]
    )
    return weights / weights.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals held whose source was left out: of figures, and of sources counted the same."""

    label: str
    figures: int
    sources: int
    held: float
    held_by_source: float
    half_width: float  # median of (high - low) / 2 over the prediction

    def __str__(self) -> str:
        return (
            f"{self.label:58s} {self.figures:5d} {self.sources:3d}   {self.held:4.0%} {self.held_by_source:4.0%}   "
            f"±{self.half_width:.0%}"
        )


HEADER = f"{'':58s} {'n':>5s} {'src':>3s}   held  by source   half-width"


def holds(judged: Sequence[Judged], beyond: Mapping[str, float]) -> list[tuple[Judged, bool, float]]:
    """Whether each interval held, its ends made without the source as well, and its half-width."""
    found = []
    for source in sorted({each.left_out for each in judged}):
        ends = ends_of((each for each in judged if each.left_out != source), beyond)
        for each in judged:
            if each.left_out == source:
                low_end, high_end = ends[kind_name(each.figure)]
                kind = Kind(deployment=0.0, run=0.0, low=low_end, high=high_end, rows=0)
                low, high = interval_ends(each.parts, kind)
                if each.figure.said != ALL and each.figure.metric != "tpot":
                    low, high = beside_client_range(low, high, each.figure.predicted_s)
                ratio = each.figure.measured_s / each.figure.predicted_s
                found.append((each, bool(low <= ratio <= high), float(high - low) / 2))
    return found


def coverage(
    rows: Sequence[tuple[Judged, bool, float]], label: Callable[[Figure], str | None]
) -> list[Coverage]:
    groups: dict[str, list[tuple[Judged, bool, float]]] = {}
    for row in rows:
        name = label(row[0].figure)
        if name is not None:
            groups.setdefault(name, []).append(row)
    found = []
    for name, own in sorted(groups.items()):
        weights = _weights([row[0].left_out for row in own], [row[0].figure.group for row in own])
        held = np.array([row[1] for row in own])
        found.append(
            Coverage(
                label=name,
                figures=len(own),
                sources=len({row[0].left_out for row in own}),
                held=float(held.mean()),
                held_by_source=float(weights @ held),
                half_width=float(np.median([row[2] for row in own])),
            )
        )
    return found


def by_metric(figure: Figure) -> str | None:
    metric = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E and throughput"}[figure.metric]
    if figure.statistic == "throughput":
        metric = "throughput of full engines"
    if figure.statistic.startswith("p"):
        return f"{figure.statistic} of {metric}"
    said = {ALL: "", NO_CLIENT: ", client not said", NOTHING: ", client and launch not said"}[figure.said]
    return f"{metric}, {'experts' if figure.is_moe else 'dense'}{said}"


def report(figures: Sequence[Figure]) -> tuple[dict[str, tuple[float, float]], dict[str, Held]]:
    """Print coverage by metric and by source; the ends of all sources, and what they held of those left out."""
    found = None
    for title, key in (
        ("source (campaign, engine with its client, GPU)", lambda f: f.source),
        ("campaign", lambda f: f.source.split()[0]),
    ):
        judged = left_out(figures, key)
        beyond = fit_beyond(judged)
        held = holds(judged, beyond)
        metrics = coverage(held, by_metric)
        print(f"\n90 % intervals, each {title} judged by the others'", HEADER, *metrics, sep="\n")
        if found is None:
            print("\nBy source, everything known being said", HEADER, *coverage(held, _by_source), sep="\n")
            found = (
                ends_of(judged, beyond),
                {
                    each.label: Held(
                        figures=each.figures,
                        sources=each.sources,
                        held=round(each.held, 3),
                        held_by_source=round(each.held_by_source, 3),
                        half_width=round(each.half_width, 3),
                    )
                    for each in metrics
                },
            )
    assert found is not None
    return found


def _by_source(figure: Figure) -> str | None:
    if (
        figure.said != ALL
        or figure.statistic.startswith("p")
        or (figure.metric == "e2e" and figure.statistic == "mean")
    ):
        return None
    return f"{figure.source} {figure.metric}"


# the file


def write(known: Spreads, path: Path) -> None:
    """As TOML, a table a kind."""
    lines = [
        "# Written by benchmarks/fit_spreads.py: deviations of the logarithm of measured over predicted."
    ]
    document = known.model_dump(mode="json", exclude_none=True)
    scalars = {name: value for name, value in document.items() if not isinstance(value, dict | list)}
    lines += [f"{name} = {toml_value(value)}" for name, value in scalars.items()]
    for name, value in document.items():
        if isinstance(value, dict):
            lines += _table(name, value)
        elif isinstance(value, list):
            for entry in value:
                lines += ["", f"[[{name}]]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in entry.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(name: str, value: Mapping[str, Any]) -> list[str]:
    plain = {k: v for k, v in value.items() if not isinstance(v, dict)}
    lines = (
        ["", f"[{name}]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in plain.items())] if plain else []
    )
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines += _table(f"{name}.{toml_key(key)}", inner)
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table", type=Path, help="figures that were saved; else they are made, and saved there"
    )
    parser.add_argument("--write", action="store_true", help="rewrite capacity/hardware/spreads.toml")
    options = parser.parse_args(arguments)
    if options.table and options.table.exists():
        figures = load(options.table)
    else:
        folder = shared_folder()
        if folder is None:
            print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
            return 2
        figures = all_figures(folder)
        if options.table:
            save(figures, options.table)
    ends, held = report(figures)
    known = made(figures, ends, held)
    print("\nclasses", known.classes, "\nends", {k: tuple(round(e, 2) for e in v) for k, v in ends.items()})
    if options.write:
        write(known, SPREADS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
