"""What one, two or three measured rows of a deployment teach about its other rows: errors and coverage, by group.

    python benchmarks/calibration.py [--class dense|moe] [--only TEXT] [--draws 2] [--most 12] [--table TABLE.csv]

For every group of at least six served rows (one GPU, engine, model and format), calibration rows are drawn at random
or chosen as by `capacity calibrate --suggest`: the rows that would narrow the intervals of the other rows most. The
constants are fitted to these rows as in `capacity calibrate`. The other rows of the group are then predicted with the
resulting posterior and 90 % intervals.

Prior, scatter and interval ends are by default the shipped ones. With `--table` they come from all sources except that
of the group (a source is a campaign, an engine with its client, and a GPU); `fit_spreads.py --table` saves the figures,
or they are computed and saved here. The share of the spread between deployments that differs between runs
(`capacity.hardware.spreads.RUN_TO_RUN`) was chosen on half of the groups, drawn by a digest of their names; they are
marked in the table. Rows are read from the folder of reference data (CAPACITY_SHARED, or ../shared next to the
checkout), each measurement once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import fit_spreads
import numpy as np
from calibrated_rows import LEARNT_FROM, METRICS, Row, active, prepared, with_e2e
from capacity_validate.posterior import Matrix, Vector, calibrated_covariance, infer, noise_covariance
from interval_evidence import source_of
from served_data import ServedRow, distinct, read_rows, shared_folder
from served_errors import scored

from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.spreads import Spreads, load_spreads

LEAST_ROWS = 6
LEARNT = (0, 1, 2, 3)
SUGGESTED = 2  # rows taken as suggested
WITHIN = 1.645
Group = tuple[str, ...]


def learn(rows: Sequence[Row]) -> tuple[Vector, Adjustment | None]:
    """Mean of theta from these rows, and what intervals take of it; None of no rows."""
    if not rows:
        return np.zeros(len(NAMES)), None
    posterior = infer(
        lambda theta: np.concatenate([row.predicted(theta) for row in rows]),
        [figure for row in rows for figure in row.figures],
        np.zeros(len(NAMES)),
        rows[0].prior.covariance_matrix,
        active=active(rows[0].row),
    )
    return posterior.mean, Adjustment(
        covariance=tuple(map(tuple, posterior.covariance.tolist())),
        source="rows of its own",
        date=rows[0].spread.fit.date,
        rows=len(rows),
        models=(rows[0].asked.model,),
        engines=tuple({row.server.resolved.engine.label for row in rows}),
    )


def deviations(row: Row, covariance: Matrix) -> Vector:
    """Return `WITHIN` times the deviations of log TPOT and log TTFT, which `--suggest` minimises."""
    variances = np.diag(row.slopes @ covariance @ row.slopes.T)
    scatter = [row.deviation(metric) for metric in LEARNT_FROM]
    return np.asarray(WITHIN * np.hypot(np.sqrt(variances), scatter))


def suggested(rows: Sequence[Row], count: int) -> set[int]:
    """The rows to learn from: one after the other that after which the rest is known best, whatever it measures."""
    covariance = rows[0].prior.covariance_matrix
    chosen: set[int] = set()
    for _ in range(count):
        after = {
            i: calibrated_covariance(covariance, row.slopes, noise_covariance(row.figures))
            for i, row in enumerate(rows)
            if i not in chosen
        }
        left = {
            i: np.mean([deviations(rows[j], found) for j in after if j != i]) for i, found in after.items()
        }
        best = min(left, key=left.__getitem__)
        chosen.add(best)
        covariance = after[best]
    return chosen


def taken(rows: Sequence[Row], count: int, *, draws: int) -> Iterator[tuple[bool, set[int]]]:
    """What to learn from: rows drawn at random, and those suggested."""
    for draw in range(draws if count else 1):
        rng = np.random.default_rng(draw)
        yield False, set(rng.choice(len(rows), count, replace=False).tolist())
    if count == SUGGESTED:
        yield True, suggested(rows, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One metric of one row that was not learnt from: predicted over measured - 1, and whether its interval held.

    `learnt` rows were drawn, or `suggested`. `error` is by the constants alone, `error_beyond` with what is learnt of
    the deployment beyond them.
    """

    group: Group
    metric: str
    learnt: int
    suggested: bool
    error: float
    error_beyond: float
    held: bool
    half_width: float  # relative: (high - low) / 2 over the prediction


def judged(group: Group, rows: Sequence[Row], *, draws: int) -> Iterator[Judged]:
    """Every row of a group but those learnt from, by how many these were."""
    for learnt in LEARNT:
        for by_suggestion, chosen in taken(rows, learnt, draws=draws):
            theta, learned = learn([rows[i] for i in sorted(chosen)])
            for i, row in enumerate(rows):
                if i in chosen:
                    continue
                found = row.predicted(theta)
                beyond = theta[[NAMES.index(metric) for metric in LEARNT_FROM]]
                off = with_e2e(found, row.row) - row.measured
                constants = with_e2e(found - beyond, row.row) - row.measured
                own = (
                    None
                    if learned is None
                    else learned.model_copy(update={"engines": (row.asked.engine_label,)})
                )
                for metric, error, alone in zip(METRICS, off, constants, strict=True):
                    low, high = row.ends(metric, own)
                    yield Judged(
                        group=group,
                        metric=metric,
                        learnt=learnt,
                        suggested=by_suggestion,
                        error=float(np.expm1(alone)),
                        error_beyond=float(np.expm1(error)),
                        held=bool(low <= np.exp(-error) <= high),
                        half_width=(high - low) / 2,
                    )


def chosen_on(group: Group) -> bool:
    """Return whether `RUN_TO_RUN` was chosen on this group: half of all, by a digest of the name."""
    return crc32(repr(group).encode()) % 2 == 0


def cell(found: Sequence[Judged], metric: str) -> str:
    """Median and 90th percentile of absolute errors, how many intervals held, and their half-width, in per cent."""
    own = [judged_row for judged_row in found if judged_row.metric == metric]
    if not own:
        return "-"
    errors, beyond = (np.abs([getattr(e, name) for e in own]) for name in ("error", "error_beyond"))
    held = np.mean([each.held for each in own])
    half = np.median([each.half_width for each in own])
    return (
        f"{np.median(errors) * 100:5.1f} /{np.percentile(errors, 90) * 100:4.0f}"
        f" ({np.median(beyond) * 100:4.1f} /{np.percentile(beyond, 90) * 100:4.0f})"
        f" {held * 100:4.0f} %  +-{half * 100:3.0f}"
    )


def print_tables(found: Sequence[Judged], dense: dict[Group, bool]) -> None:
    """By class, half and number of rows learnt from; then by group."""
    heads = " ".join(f"{metric.upper():>40}" for metric in METRICS)
    print(f"{'median / p90 %, intervals that held, half-width %':52} {heads}")
    for is_dense in (True, False):
        for half in ("judged only", "chosen on", "all"):
            for learnt, by_suggestion in (*((n, False) for n in LEARNT), (SUGGESTED, True)):
                own = [
                    each
                    for each in found
                    if dense[each.group] == is_dense
                    and (each.learnt, each.suggested) == (learnt, by_suggestion)
                    and (half == "all" or chosen_on(each.group) == (half == "chosen on"))
                ]
                groups = len({each.group for each in own})
                name = f"{'dense' if is_dense else 'moe'}, {half} ({groups} groups), {learnt}"
                name += " suggested" if by_suggestion else ""
                print(f"{name:52} {cells(own)}")
    print(f"\n{'group':62} {'rows':>4} {heads}")
    for group in dense:
        for learnt, by_suggestion in ((0, False), (2, False), (2, True)):
            own = [
                each
                for each in found
                if each.group == group and (each.learnt, each.suggested) == (learnt, by_suggestion)
            ]
            name = " ".join(group) if not learnt else "  suggested" if by_suggestion else "  drawn"
            name += ", chosen on" if learnt and chosen_on(group) else ""
            print(f"{name:62} {learnt:4d} {cells(own)}")


def cells(found: Sequence[Judged]) -> str:
    return " ".join(f"{cell(found, metric):>40}" for metric in METRICS)


def judged_groups(
    rows: Iterable[ServedRow], *, draws: int, most: int, known: Mapping[str, Spreads] | None = None
) -> tuple[list[Judged], dict[Group, bool]]:
    """Groups of at least six rows that are predicted, each by `most` of its rows; and which of them are dense.

    `known`: by source the spreads of the others; without them those that ship.
    """
    groups: dict[Group, list[ServedRow]] = defaultdict(list)
    for row in distinct(row for row in rows if scored(row) and row.ttft_s > 0 and row.tpot_s > 0):
        groups[row.group].append(row)
    found: list[Judged] = []
    dense: dict[Group, bool] = {}
    for group, members in sorted(groups.items()):
        every = max(len(members) / most, 1.0)
        taken = [members[int(i * every)] for i in range(min(most, len(members)))]
        own = load_spreads() if known is None else known[source_of(members[0])]
        ready = [found_row for row in taken if (found_row := prepared(row, own)) is not None]
        if len(ready) >= LEAST_ROWS:
            dense[group] = members[0].dense
            found += judged(group, ready, draws=draws)
    return found, dense


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--class", dest="model_class", choices=("dense", "moe"), default=None)
    parser.add_argument("--only", default="", help="only groups whose name contains this text")
    parser.add_argument("--draws", type=int, default=2, help="how often rows are drawn anew")
    parser.add_argument("--most", type=int, default=12, help="rows of a group, evenly over it")
    parser.add_argument(
        "--table", type=Path, help="judge each group by the spreads of these figures without its source"
    )
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    begin = time.process_time()
    rows = read_rows(folder, dense=options.model_class != "moe", moe=options.model_class != "dense")
    rows = [row for row in rows if options.only in " ".join(row.group)]
    known = (
        None
        if options.table is None
        else fit_spreads.of_others(fit_spreads.figures_of(folder, options.table))
    )
    found, dense = judged_groups(rows, draws=options.draws, most=options.most, known=known)
    print_tables(found, dense)
    print(f"\n{len(dense)} groups, {len(found)} figures in {time.process_time() - begin:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
