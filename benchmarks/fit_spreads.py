"""Fit the spreads that intervals are made of, and judge them by sources left out.

    python benchmarks/fit_spreads.py [--table TABLE.csv] [--write]

The logarithm of measured over predicted of a deployment's figures is taken as U·theta + its own offset + the run's: U
what each figure hangs on (`interval_evidence.py`), theta a factor on each class of seconds, drawn anew for every
deployment. Heavy tails (a multivariate t), every deployment counting like at most `COUNTED` figures, deviations held
near what is known of them before (`PRIOR`). What engines, kinds of model and GPUs differ by is shrunk towards the
whole. The ends of an interval in standard deviations are those that sources left out of all this showed (a source:
campaign, engine with its client, GPU). Coverage is of fits that saw nothing of the source, ends included; at three
levels of knowledge: no settings, release given, full launch line (`by_level`).

`--write` rewrites `capacity/hardware/spreads.toml`. CPU: nine minutes, six of them to make the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import beyond_said
import numpy as np
from beyond_said import NOMINAL, campaign_of, weights_of
from blind_figures import blind_figures
from fit_inputs import listed_inputs
from interval_evidence import (
    ALL,
    NOTHING,
    OTHER_LAB,
    PUBLISHED,
    PUBLISHED_NOTHING,
    PUBLISHED_RELEASE,
    RELEASE,
    THIRD_PARTIES,
    Figure,
    all_figures,
    load,
    save,
)
from left_out import LEARNT_RUNS, Judged, add_client_latency_range, learnt_left_out, left_out, without_each
from other_labs import other_labs
from scipy.stats import t
from served_data import shared_folder
from spread_model import E2E_KINDS, KINDS, NO_ENDS, ends_name, ends_on, made
from spreads_file import write

from capacity.answers.interval_parts import relative_ends as interval_ends
from capacity.hardware.spreads import IntervalCoverage, MetricSpread, Spreads, UnspecifiedSpread

LEVELS = tuple(step / 400 for step in range(120, 5, -1))  # beyond an end, the first that holds
MOST_END = 4.0
BEFORE = 4.0  # sources that the ends held before count for
SPREADS = Path(__file__).parents[1] / "capacity/hardware/spreads.toml"


# judged by sources left out


def ends_of(judged: Iterable[Judged], beyond: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The ends of 90 % in standard deviations by kind of figure, every source the same weight.

    Quantiles at `beyond` and 1 - `beyond`, drawn to those of one more source as by `BEFORE` sources more; those of E2E
    to TPOT's, of which it mostly is.
    """
    own: dict[str, list[Judged]] = {}
    for each in judged:
        if ends_on(each.figure):
            own.setdefault(ends_name(each.figure), []).append(each)
    found = dict(NO_ENDS)
    for name in (*KINDS, *E2E_KINDS):
        if name in own:
            before = found[name.replace("e2e", "tpot")] if name in E2E_KINDS else None
            found[name] = _ends(own[name], beyond[name], before)
    return found


def _ends(
    rows: Sequence[Judged], beyond: float, before: tuple[float, float] | None = None
) -> tuple[float, float]:
    weights = weights_of([each.left_out for each in rows], [each.figure.group for each in rows])
    values = np.array([each.standard for each in rows])
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp([beyond, 1 - beyond], cumulated, values[order])
    seen = len({each.left_out for each in rows})
    low_before, high_before = before or (-one_more(seen), one_more(seen))
    low, high = (
        (seen * min(max(end, 0.0), MOST_END) + BEFORE * held_before) / (seen + BEFORE)
        for end, held_before in ((-low, -low_before), (high, high_before))
    )
    return -float(low), float(high)


def one_more(sources: int) -> float:
    """How far one more source lies off at the most in 90 of 100 cases, in deviations of so many: Student's t."""
    freedom = max(sources - 1, 1)
    return float(t.ppf((1 + NOMINAL) / 2, freedom) * np.sqrt(1 + 1 / max(sources, 1)))


def fit_beyond(judged: Sequence[Judged]) -> dict[str, float]:
    """How far out the ends of each kind of figure must be for sources that had no part in them to be held: a dozen
    sources tell a quantile too narrowly. Held are figures and sources alike: of neither does a single one decide. Then
    the quantiles of what lies beyond what is said (`beyond_said.py`)."""
    beyond: dict[str, float] = {}
    for name in (*KINDS, *E2E_KINDS):
        needed = {name, name.replace("e2e", "tpot")}
        rows = [each for each in judged if ends_on(each.figure) and ends_name(each.figure) in needed]
        beyond[name] = next(
            (level for level in LEVELS if _held(rows, name, beyond | {name: level})), LEVELS[-1]
        )
    ends = {
        source: ends_of((each for each in judged if each.left_out != source), beyond)
        for source in {each.left_out for each in judged}
    }
    return beyond | beyond_said.fit_quantiles(judged, ends.__getitem__, beyond_said.nothing_said)


def _held(rows: Sequence[Judged], name: str, beyond: Mapping[str, float]) -> bool:
    found = {each.label: each for each in coverage(holds(rows, beyond), ends_name)}
    return name in found and (found[name].held + found[name].held_by_source) / 2 >= NOMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals held whose source was left out: of figures, and of sources counted the same."""

    label: str
    figures: int
    sources: int
    held: float
    held_by_source: float
    half_width: float  # median of (high - low) / 2 over the prediction
    p90_error: float  # of the absolute logarithm of measured over predicted: no honest interval is narrower

    @property
    def kept(self) -> IntervalCoverage:
        """For the file."""
        return IntervalCoverage(
            figures=self.figures,
            sources=self.sources,
            held=round(self.held, 3),
            held_by_source=round(self.held_by_source, 3),
            half_width=round(self.half_width, 3),
        )

    def __str__(self) -> str:
        return (
            f"{self.label:58s} {self.figures:5d} {self.sources:3d}   {self.held:4.0%} {self.held_by_source:4.0%}   "
            f"±{self.half_width:<11.0%}{self.p90_error:.0%}"
        )


HEADER = f"{'':58s} {'n':>5s} {'src':>3s}   held  by source   half-width  p90 error"


def holds(
    judged: Sequence[Judged],
    beyond: Mapping[str, float],
    machines: Machines | None = None,
) -> list[tuple[Judged, bool, float]]:
    """Whether each interval held, its ends made without the source as well, and its half-width.

    `machines`: the part for other machines, made without the source's campaign; None: without such a part.
    """
    found = []
    for source in sorted({each.left_out for each in judged}):
        others = [each for each in judged if each.left_out != source]
        ends = ends_of(others, beyond)
        campaign = source.split()[0]
        elsewhere = (each for each in others if campaign_of(each.figure) != campaign)
        unsaid = beyond_said.spreads_of(elsewhere, ends, beyond)
        least = {} if machines is None else machines.without(campaign)
        for each in judged:
            if each.left_out == source:
                low_end, high_end = ends[ends_name(each.figure)]
                kind = MetricSpread(deployment=0.0, run=0.0, low=low_end, high=high_end, rows=0)
                more = beyond_said.parts_of(each.figure, least, unsaid)
                low, high = interval_ends((*each.parts, *more), kind)
                if each.figure.said != ALL and each.figure.metric != "tpot":
                    low, high = add_client_latency_range(low, high, each.figure.predicted_s)
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
        weights = weights_of([row[0].left_out for row in own], [row[0].figure.group for row in own])
        held = np.array([row[1] for row in own])
        found.append(
            Coverage(
                label=name,
                figures=len(own),
                sources=len({row[0].left_out for row in own}),
                held=float(held.mean()),
                held_by_source=float(weights @ held),
                half_width=float(np.median([row[2] for row in own])),
                p90_error=float(np.quantile([abs(row[0].figure.log_error) for row in own], 0.9)),
            )
        )
    return found


LEVEL_NAMES = {
    NOTHING: "no settings",
    PUBLISHED_NOTHING: "no settings",
    RELEASE: "release given",
    PUBLISHED_RELEASE: "release given",
    ALL: "full launch line",
    OTHER_LAB: "full launch line",
    PUBLISHED: "full launch line",
}


def by_metric(figure: Figure) -> str | None:
    """Name figures of servers of which everything is known, client included; percentiles apart."""
    if figure.said != ALL:
        return None
    if figure.statistic == "throughput":
        return f"throughput of full engines, {_model_kind(figure)}"
    if figure.statistic.startswith("p"):
        return f"{figure.statistic} of {METRIC_NAMES[figure.metric]}"
    return f"{METRIC_NAMES[figure.metric]}, {_model_kind(figure)}"


METRIC_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E and throughput"}


def _model_kind(figure: Figure) -> str:
    return "experts" if figure.is_moe else "dense"


def by_level(figure: Figure) -> str | None:
    """Name means by what is known of the server, those of third parties apart."""
    if figure.said not in LEVEL_NAMES or figure.statistic not in ("mean", "median"):
        return None
    whose = ", third parties" if figure.said in THIRD_PARTIES else ""
    return f"{METRIC_NAMES[figure.metric]}, {_model_kind(figure)}, {LEVEL_NAMES[figure.said]}{whose}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of intervals by kind of figure, before any run of a deployment and after a few; what they held."""

    before: dict[str, tuple[float, float]]
    learnt: dict[str, tuple[float, float]]
    held: dict[str, IntervalCoverage]
    beyond_said: dict[str, UnspecifiedSpread]
    machines: dict[str, UnspecifiedSpread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What servers of known launch differ by: figures, each judged by all other campaigns and laboratories.

    `quantiles`: by kind of model and metric, the quantile of the deviations that figures need which is enough for
    campaigns left out.
    """

    judged: Sequence[Judged]
    ends: Mapping[str, tuple[float, float]]
    quantiles: Mapping[str, float]

    @classmethod
    def fit(cls, figures: Sequence[Figure], ends: Mapping[str, tuple[float, float]]) -> Machines:
        judged = left_out([f for f in figures if f.said in (ALL, OTHER_LAB)], campaign_of)
        quantiles = beyond_said.fit_quantiles(judged, lambda _: ends, beyond_said.all_said)
        return cls(judged=judged, ends=ends, quantiles=quantiles)

    def without(self, campaign: str | None = None) -> dict[str, UnspecifiedSpread]:
        """Return the spreads without one campaign, or of all."""
        judged = [each for each in self.judged if campaign_of(each.figure) != campaign]
        return beyond_said.other_machines(judged, self.ends, self.quantiles)


def report(figures: Sequence[Figure]) -> Ends:
    """Print coverage by metric and by source; the ends of all sources, and what they held of those left out."""
    known = without_each(figures, _source)
    judged, learnt = left_out(figures, _source, known), learnt_left_out(figures, _source, known)
    beyond, beyond_learnt = fit_beyond(judged), fit_beyond(learnt)
    before = ends_of(judged, beyond)
    machines = Machines.fit(figures, before)
    held = holds(judged, beyond, machines)
    metrics = [*coverage(held, by_metric), *coverage(held, by_level)]
    after = after_runs(learnt, beyond_learnt)
    print("90 % intervals, each source (campaign, engine with its client, GPU) judged by the others'")
    print(HEADER, *metrics, *after, sep="\n")
    print("\nBy source, everything known being said", HEADER, *coverage(held, _by_source), sep="\n")
    return Ends(
        before=before,
        machines=machines.without(),
        beyond_said=beyond_said.spreads_of(judged, before, beyond),
        learnt=ends_of(learnt, beyond_learnt),
        held={each.label: each.kept for each in (*metrics, *after)},
    )


def _source(figure: Figure) -> str:
    return figure.source


def after_runs(learnt: Sequence[Judged], beyond: Mapping[str, float]) -> list[Coverage]:
    """By metric, and by how many runs of its deployment were learnt from before a figure was predicted."""
    held = holds(learnt, beyond)
    found = []
    for count in LEARNT_RUNS:
        own = [row for row in held if row[0].learnt == count]
        found += coverage(own, lambda f, count=count: f"{by_metric(f)}, {count} own runs")  # type: ignore[misc]
    return found


def _by_source(figure: Figure) -> str | None:
    if (
        figure.said not in (ALL, OTHER_LAB)
        or figure.statistic.startswith("p")
        or (figure.metric == "e2e" and figure.statistic == "mean")
    ):
        return None
    return f"{figure.source} {figure.metric}, {_model_kind(figure)}"


def of_others(figures: Sequence[Figure]) -> dict[str, Spreads]:
    """By source the spreads of all other sources, ends included."""

    def key(figure: Figure) -> str:
        return figure.source

    known = without_each(figures, key)
    judged, learnt = left_out(figures, key, known), learnt_left_out(figures, key, known)
    beyond, beyond_learnt = fit_beyond(judged), fit_beyond(learnt)
    found = {}
    for source in known:
        before, after = (
            ends_of((each for each in rows if each.left_out != source), levels)
            for rows, levels in ((judged, beyond), (learnt, beyond_learnt))
        )
        unsaid = beyond_said.spreads_of((each for each in judged if each.left_out != source), before, beyond)
        found[source] = made([f for f in figures if f.source != source], before, after, beyond_said=unsaid)
    return found


def figures_of(folder: Path, table: Path | None) -> list[Figure]:
    """As they were saved in `table`; else they are made, and saved there where it is named."""
    if table is not None and table.exists():
        return load(table)
    measured = folder / "reference" / "measured"
    figures = [*all_figures(folder), *other_labs(measured), *blind_figures()]
    if table is not None:
        save(figures, table)
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table", type=Path, help="figures that were saved; else they are made, and saved there"
    )
    parser.add_argument("--write", action="store_true", help="rewrite capacity/hardware/spreads.toml")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    figures = figures_of(folder, options.table)
    found = report(figures)
    known = made(figures, found.before, found.learnt, found.held, found.beyond_said, found.machines)
    print("\nclasses", known.classes)
    print("other machines", known.other_machines)
    print("beyond what is said", known.beyond_said)
    for title, ends in (("ends", found.before), ("ends after runs of its own", found.learnt)):
        print(title, {name: tuple(round(end, 2) for end in pair) for name, pair in ends.items()})
    if options.write:
        write(known, SPREADS)
    return 0


if __name__ == "__main__":
    with listed_inputs():
        sys.exit(main())
