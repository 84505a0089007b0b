"""Points of a frontier with their deployments, and a table of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.answers.frontier import Frontier, FrontierLine
from capacity.answers.load_point import LoadPoint
from capacity.base.quantity import Quantity
from capacity.report.views import units
from capacity.report.views.view import Column, Table

MARK = "*"


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A point and its deployment; `best`: Pareto-optimal in tokens/s per user and tokens/s per GPU."""

    numbers: tuple[int, int]
    line: FrontierLine
    point: LoadPoint
    best: bool

    @property
    def tokens_per_s_of_a_user(self) -> Quantity | None:
        """Return the decode speed of one user: 1 / TPOT."""
        return None if self.point.tpot_s is None else self.point.tpot_s.inverse(1.0)


def frontier_points(answer: Frontier) -> list[FrontierPoint]:
    """Return all points, grouped by deployment."""
    front = answer.pareto_points()
    return [
        FrontierPoint((number, place), line, point, (number, place) in front)
        for number, line in enumerate(answer.lines)
        for place, point in enumerate(line.points)
    ]


def best_points(answer: Frontier, tpot_s: float) -> list[FrontierPoint]:
    """Return the best point of each deployment within the TPOT limit (s), the most tokens/s per GPU first."""
    found = {id(place.point): place for place in frontier_points(answer)}
    return [found[id(point)] for _, point in answer.best(tpot_s)]


def points_table(title: str, rows: Sequence[FrontierPoint]) -> Table:
    """Return a table of points with speed per user, throughput per GPU, and price."""
    columns = [
        Column("deployment", "line.label"),
        Column("in flight", "point.load", units.COUNT),
        Column("tokens/s per user", "tokens_per_s_of_a_user", units.RATE),
        Column("tokens/s per GPU", "point.output_tokens_per_s_per_gpu", units.RATE),
        Column("$/1M out", "point.usd_per_million_output_tokens", units.USD_PER_MILLION),
        Column("", lambda place: MARK if place.best else "", units.TEXT),
    ]
    return Table(title, rows, columns)
