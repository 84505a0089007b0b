"""What one, two or three measured rows of a deployment teach about its other rows: errors and coverage, by group.

    python benchmarks/calibration.py [--class dense|moe] [--only TEXT] [--draws 2] [--most 12]

For every group of at least six served rows (one GPU, engine, model and format) rows are drawn, or taken as `capacity
calibrate --suggest` would: those after which the intervals of the others are narrowest, which needs no measurement. The
constants are learnt from them as `capacity calibrate` does, and the others of the group are predicted: with its
posterior, and with 90 % intervals made of that posterior's covariance and the scatter of single figures. Both the prior
and the scatter were chosen on the groups that are marked so, half of them by a digest of their names; the others only
judge. Rows are read from the folder of reference data (CAPACITY_SHARED, or ../shared beside the checkout), each
measurement once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
from capacity_validate.posterior import (
    DIFFERENCE,
    Figure,
    Matrix,
    Vector,
    infer,
    learnt_covariance,
    noise_covariance,
)
from capacity_validate.replay_figures import adjustment_at, deployed, prior_of
from served_data import ServedRow, distinct, read_rows, shared_folder
from served_errors import scored
from served_rows import Server, server_of, simulated

from capacity.base.errors import CapacityError
from capacity.hardware.adjustment import NAMES
from capacity.hardware.priors import figure_deviation

LEAST_ROWS = 6
LEARNT = (0, 1, 2, 3)
SUGGESTED = 2  # rows taken as suggested
METRICS = ("tpot", "ttft")
WITHIN = 1.645
Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A served row with its server, and the derivatives of the logarithms of TPOT and TTFT by theta at the prior."""

    row: ServedRow
    server: Server
    slopes: Matrix
    known: dict[bytes, Vector] = field(default_factory=dict)  # by theta: every draw begins at the same ones

    @property
    def measured(self) -> Vector:
        return np.log([self.row.tpot_s, self.row.ttft_s])

    def predicted(self, theta: Vector) -> Vector:
        key = np.round(theta, 12).tobytes()
        if key not in self.known:
            self.known[key] = predicted(self.row, self.server, theta)
        return self.known[key]

    def deviation(self, metric: str) -> float:
        """From one row of such a deployment to the next."""
        return figure_deviation(metric, *deployed(self.server.resolved), is_moe=not self.row.dense)

    @property
    def figures(self) -> list[Figure]:
        values = (self.row.tpot_s, self.row.ttft_s)
        return [
            Figure(name=metric, value=value, deviation=self.deviation(metric), shared=f"{id(self)} {metric}")
            for metric, value in zip(METRICS, values, strict=True)
        ]


def predicted(row: ServedRow, server: Server, theta: Vector) -> Vector:
    """Logarithms of TPOT and TTFT; not-a-number where the server does not get that far."""
    adjustment = adjustment_at(theta)
    beyond = np.array([adjustment.mean(metric) for metric in METRICS])
    front = server.frontend
    there_s, back_s = adjustment.latencies(front.request_latency_s, front.response_latency_s)
    moved = replace(
        server,
        resolved=server.resolved.adjusted_by(adjustment),
        frontend=replace(front, request_latency_s=there_s, response_latency_s=back_s),
    )
    found = simulated(row, moved)
    if found.tpot_s is None or found.ttft_s is None:
        return np.full(2, np.nan)
    return np.log([found.tpot_s, found.ttft_s]) + beyond


def active(row: ServedRow) -> list[int]:
    """The parameters that can matter to served times."""
    ranks = row.tensor_parallel * row.data_parallel
    left_out = {
        "kv_overhead",
        *(("experts", "experts_tilt") if row.dense else ()),
        *(("all_reduce",) if ranks == 1 else ()),
    }
    return [i for i, name in enumerate(NAMES) if name not in left_out]


def prepared(row: ServedRow) -> Row | None:
    """The row with its derivatives; None where it is not predicted."""
    try:
        server = server_of(row)
    except CapacityError:
        return None
    steps = DIFFERENCE * np.sqrt(np.diag(prior_of(server.resolved).covariance_matrix))
    origin = np.zeros(len(NAMES))
    at = predicted(row, server, origin)
    slopes = np.zeros((2, len(NAMES)))
    for i in active(row):
        moved = origin.copy()
        moved[i] = steps[i]
        slopes[:, i] = (predicted(row, server, moved) - at) / steps[i]
    return Row(row=row, server=server, slopes=slopes) if np.isfinite(slopes).all() else None


def learn(rows: Sequence[Row], others: Sequence[Row]) -> tuple[Vector, Matrix]:
    """Mean and covariance of theta from these rows; of none, the prior's of the others' deployment."""
    known = prior_of(others[0].server.resolved).covariance_matrix
    if not rows:
        return np.zeros(len(NAMES)), known
    posterior = infer(
        lambda theta: np.concatenate([row.predicted(theta) for row in rows]),
        [figure for row in rows for figure in row.figures],
        np.zeros(len(NAMES)),
        known,
        active=active(rows[0].row),
    )
    return posterior.mean, posterior.covariance


def half_widths(row: Row, covariance: Matrix) -> Vector:
    """Of the 90 % intervals of TPOT's and TTFT's logarithms."""
    variances = np.diag(row.slopes @ covariance @ row.slopes.T)
    scatter = [row.deviation(metric) for metric in METRICS]
    return np.asarray(WITHIN * np.hypot(np.sqrt(variances), scatter))


def suggested(rows: Sequence[Row], count: int) -> set[int]:
    """The rows to learn from: one after the other that after which the rest is known best, whatever it measures."""
    covariance = prior_of(rows[0].server.resolved).covariance_matrix
    chosen: set[int] = set()
    for _ in range(count):
        after = {
            i: learnt_covariance(covariance, row.slopes, noise_covariance(row.figures))
            for i, row in enumerate(rows)
            if i not in chosen
        }
        left = {
            i: np.mean([half_widths(rows[j], found) for j in after if j != i]) for i, found in after.items()
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
    half_width: float


def judged(group: Group, rows: Sequence[Row], *, draws: int) -> Iterator[Judged]:
    """Every row of a group but those learnt from, by how many these were."""
    for learnt in LEARNT:
        for by_suggestion, chosen in taken(rows, learnt, draws=draws):
            theta, covariance = learn([rows[i] for i in sorted(chosen)], rows)
            for i, row in enumerate(rows):
                if i in chosen:
                    continue
                off = row.predicted(theta) - row.measured
                constants = off - theta[[NAMES.index(metric) for metric in METRICS]]
                halves = half_widths(row, covariance)
                for metric, error, alone, half in zip(METRICS, off, constants, halves, strict=True):
                    yield Judged(
                        group=group,
                        metric=metric,
                        learnt=learnt,
                        suggested=by_suggestion,
                        error=float(np.expm1(alone)),
                        error_beyond=float(np.expm1(error)),
                        held=bool(abs(error) <= half),
                        half_width=float(half),
                    )


def chosen_on(group: Group) -> bool:
    """Whether prior and scatter were chosen on this group: half of all, by a digest of the name."""
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
        f" {held * 100:4.0f} %  +-{np.expm1(half) * 100:3.0f}"
    )


def print_tables(found: Sequence[Judged], dense: dict[Group, bool]) -> None:
    """By class, half and number of rows learnt from; then by group."""
    print(f"{'median / p90 %, intervals that held, half-width %':52} {'TPOT':>40} {'TTFT':>40}")
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
                print(f"{name:52} {cell(own, 'tpot'):>40} {cell(own, 'ttft'):>40}")
    print(f"\n{'group':62} {'rows':>4} {'TPOT':>40} {'TTFT':>40}")
    for group in dense:
        for learnt, by_suggestion in ((0, False), (2, False), (2, True)):
            own = [
                each
                for each in found
                if each.group == group and (each.learnt, each.suggested) == (learnt, by_suggestion)
            ]
            name = " ".join(group) if not learnt else "  suggested" if by_suggestion else "  drawn"
            name += ", chosen on" if learnt and chosen_on(group) else ""
            print(f"{name:62} {learnt:4d} {cell(own, 'tpot'):>40} {cell(own, 'ttft'):>40}")


def judged_groups(
    rows: Iterable[ServedRow], *, draws: int, most: int
) -> tuple[list[Judged], dict[Group, bool]]:
    """Groups of at least six rows that are predicted, each by `most` of its rows; and which of them are dense."""
    groups: dict[Group, list[ServedRow]] = defaultdict(list)
    for row in distinct(row for row in rows if scored(row) and row.ttft_s > 0 and row.tpot_s > 0):
        groups[row.group].append(row)
    found: list[Judged] = []
    dense: dict[Group, bool] = {}
    for group, members in sorted(groups.items()):
        every = max(len(members) / most, 1.0)
        taken = [members[int(i * every)] for i in range(min(most, len(members)))]
        ready = [row for row in map(prepared, taken) if row is not None]
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
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    begin = time.process_time()
    rows = read_rows(folder, dense=options.model_class != "moe", moe=options.model_class != "dense")
    rows = [row for row in rows if options.only in " ".join(row.group)]
    found, dense = judged_groups(rows, draws=options.draws, most=options.most)
    print_tables(found, dense)
    print(f"\n{len(dense)} groups, {len(found)} figures in {time.process_time() - begin:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
