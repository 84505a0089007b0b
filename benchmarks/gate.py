"""Compare errors and interval coverage by group with those of the last release; exit with 1 if a group got worse.

    python benchmarks/gate.py            # compare with benchmarks/gate_release.csv
    python benchmarks/gate.py --record   # write that file: once for each release

Sets: `served` (closed loops in closed form), `served simulated` (a sample of them), `public` (the evaluation set),
`blind` and `judged` (capacity/answers/published_runs.csv and judged_runs.csv; no fit reads the second), `start-up` (KV
capacity). The first three need the folder of reference data
(CAPACITY_SHARED, or ../shared beside the checkout) and are skipped without it.

A group is a set, one of GPU, engine, model class and source, and a metric. Its noise is the standard error of its
median error by bootstrap over its rows, and of its coverage by the binomial distribution. A group that is worse by
more than its noise fails, unless docs/accuracy.md lists it under "Accepted changes".
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import kv_startup
import numpy as np
import served_blind
import served_public
from served_data import ServedRow, read_rows, shared_folder
from served_errors import Prediction, scored
from served_rows import by_formula, by_simulation

RELEASE = Path(__file__).with_name("gate_release.csv")
ACCEPTED = Path(__file__).parents[1] / "docs" / "accuracy.md"
ACCEPTED_HEADING = "## Accepted changes"
LEAST_ROWS = 4  # of a group that is compared
NOMINAL_COVERAGE = 0.9
LEAST_NOISE = 0.005  # of a median error
SIMULATED_EVERY, SIMULATED_TOKENS = (
    12,
    60_000,
)  # every n-th served row of at most so many output tokens in flight
OFFLINE_EVERY = 6  # of the public rows under offline load, the slowest to simulate
SETS = ("served", "served simulated", "public", "blind", "judged", "start-up")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFigure:
    """One measured figure and its prediction: relative error, and whether the 90 % interval contains it."""

    set: str
    gpu: str
    engine: str
    model_class: str
    source: str
    metric: str
    error: float
    inside: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """Errors and coverage of one group. `held` is NaN where its figures have no intervals."""

    set: str
    group: str
    metric: str
    rows: int
    median: float
    p90: float
    noise: float
    held: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.set, self.group, self.metric

    @property
    def label(self) -> str:
        return ", ".join(self.key)

    @property
    def coverage_noise(self) -> float:
        """Standard error of the share held, at the nominal coverage or at the share found."""
        variance = max(self.held * (1 - self.held), NOMINAL_COVERAGE * (1 - NOMINAL_COVERAGE))
        return math.sqrt(variance / self.rows)


def collect_figures(folder: Path | None) -> Iterator[ScoredFigure]:
    """Predict all sets for which there is data."""
    if folder is not None:
        yield from _served_figures(folder)
        rows = served_public.read_rows(folder)
        offline = [row for row in rows if row["rate"]]
        closed = [row for row in rows if not row["rate"]]
        yield from _judged_figures("public", closed + offline[::OFFLINE_EVERY])
    yield from _judged_figures(
        "blind", [r for r in served_blind.read_rows() if not served_blind.is_too_old(r)]
    )
    yield from _judged_figures("judged", served_blind.read_rows(served_blind.JUDGED))
    for line in kv_startup.score():
        yield ScoredFigure(
            set="start-up",
            gpu=line.gpu,
            engine=line.engine,
            model_class=line.part,
            source=line.model,
            metric="KV capacity",
            error=line.error,
        )


def _served_figures(folder: Path) -> Iterator[ScoredFigure]:
    rows = [row for row in read_rows(folder) if scored(row)]
    for row in rows:
        yield from _figures_of(by_formula(row), "served", ("tpot",))
    short = [row for row in rows if row.concurrency * row.output_len <= SIMULATED_TOKENS]
    for row in short[::SIMULATED_EVERY]:
        yield from _figures_of(by_simulation(row), "served simulated", ("ttft", "tpot"))


def _figures_of(prediction: Prediction, set_name: str, metrics: Sequence[str]) -> Iterator[ScoredFigure]:
    row: ServedRow = prediction.row
    for metric in metrics:
        error = prediction.error(f"{metric}_s")
        if not math.isnan(error):
            yield ScoredFigure(
                set=set_name,
                gpu=row.gpu,
                engine=row.backend,
                model_class="dense" if row.dense else "experts",
                source=f"{row.campaign} {row.model}",
                metric=metric,
                error=error,
            )


def _judged_figures(set_name: str, rows: Iterable[dict[str, str]]) -> Iterator[ScoredFigure]:
    for found in served_blind.predictions(rows):
        yield ScoredFigure(
            set=set_name,
            gpu=found.gpu,
            engine=found.engine.split("@")[0],
            model_class="experts" if found.is_moe else "dense",
            source=found.source,
            metric=found.metric,
            error=found.error,
            inside=found.inside,
        )


def score_groups(figures: Iterable[ScoredFigure]) -> list[GroupScore]:
    """Errors and coverage by set, group and metric; groups of fewer than LEAST_ROWS rows are left out."""
    groups: dict[tuple[str, str, str], list[ScoredFigure]] = {}
    for figure in figures:
        names = {
            "all": "all",
            "GPU": figure.gpu,
            "engine": figure.engine,
            "model": figure.model_class,
            "source": figure.source,
        }
        for dimension, name in names.items():
            group = name if dimension == "all" else f"{dimension} {name}"
            groups.setdefault((figure.set, group, figure.metric), []).append(figure)
    return [_score(key, found) for key, found in sorted(groups.items()) if len(found) >= LEAST_ROWS]


def _score(key: tuple[str, str, str], figures: Sequence[ScoredFigure]) -> GroupScore:
    errors = np.abs([figure.error for figure in figures])
    draws = np.random.default_rng(0).integers(len(errors), size=(400, len(errors)))
    held = [figure.inside for figure in figures if figure.inside is not None]
    return GroupScore(
        set=key[0],
        group=key[1],
        metric=key[2],
        rows=len(errors),
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        noise=max(float(np.std(np.median(errors[draws], axis=1))), LEAST_NOISE),
        held=float(np.mean(held)) if held else math.nan,
    )


def find_regression(now: GroupScore, before: GroupScore) -> str | None:
    """Return what got worse by more than the release's noise, or None."""
    if now.rows < before.rows:
        return f"{before.rows - now.rows} of {before.rows} rows are no longer answered"
    if now.median > before.median + before.noise:
        return f"median error {before.median:.1%} -> {now.median:.1%} (noise {before.noise:.1%})"
    shortfall, previous = (max(0.0, NOMINAL_COVERAGE - score.held) for score in (now, before))
    if shortfall > previous + before.coverage_noise:
        return f"coverage {before.held:.0%} -> {now.held:.0%} (noise {before.coverage_noise:.0%})"
    return None


def accepted_changes(path: Path = ACCEPTED) -> set[tuple[str, ...]]:
    """Groups that docs/accuracy.md lists as changed on purpose: set, group and metric of each table row."""
    text = path.read_text(encoding="utf-8").partition(ACCEPTED_HEADING)[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {tuple(cell.strip() for cell in row[:3]) for row in rows[2:]}


def read_scores(path: Path = RELEASE) -> dict[tuple[str, str, str], GroupScore]:
    """Return the scores of the last release by set, group and metric."""
    texts = ("set", "group", "metric")
    with path.open(newline="", encoding="utf-8") as file:
        found = [
            GroupScore(
                **{name: text if name in texts else float(text) for name, text in row.items()}  # type: ignore[arg-type]
            )
            for row in csv.DictReader(file)
        ]
    return {score.key: score for score in found}


def write_scores(scores: Sequence[GroupScore], path: Path = RELEASE) -> None:
    """Write the file that later runs are compared with."""
    names = [field.name for field in fields(GroupScore)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for score in scores:
            values = [getattr(score, name) for name in names]
            writer.writerow([f"{value:.5g}" if isinstance(value, float) else value for value in values])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every group that changed, and return 1 if one got worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the scores of a release")
    parser.add_argument("--all", action="store_true", help="print groups that did not change, too")
    options = parser.parse_args(arguments)
    begin, folder = time.process_time(), shared_folder()
    scores = score_groups(collect_figures(folder))
    if options.record:
        if folder is None:
            print("no reference data to record a release with: set CAPACITY_SHARED", file=sys.stderr)
            return 2
        write_scores(scores)
    release, accepted = read_scores(), accepted_changes()
    now = {score.key: score for score in scores}
    sets = {score.set for score in scores}
    failed = [f"{', '.join(key)}: no longer answered" for key in release if key[0] in sets and key not in now]
    print(
        f"{'group':66s} {'rows':>5s} {'median: release':>16s} {'now':>7s} {'held: release':>14s} {'now':>6s}"
    )
    for key, score in now.items():
        before = release.get(key)
        if before is None:
            print(f"{score.label:66s} {score.rows:5d} {'new':>16s} {score.median:7.1%}")
            continue
        problem = find_regression(score, before)
        if problem and key not in accepted:
            failed.append(f"{score.label}: {problem}")
        if problem or options.all or abs(score.median - before.median) > LEAST_NOISE:
            mark = "" if not problem else " accepted" if key in accepted else " WORSE"
            print(
                f"{score.label:66s} {score.rows:5d} {before.median:16.1%} {score.median:7.1%}"
                f" {before.held:14.0%} {score.held:6.0%}{mark}"
            )
    print(f"{len(now)} groups of {len(sets)} sets in {time.process_time() - begin:.0f} CPU s")
    for line in failed:
        print(f"worse: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
