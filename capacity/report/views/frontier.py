"""The frontier: of each deployment the best within a limit on TPOT, or every point, and which no other beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capacity.answers.frontier import Frontier, FrontierLine
from capacity.answers.load_point import LoadPoint
from capacity.base.quantity import Quantity
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Fact, OwnChart, Refused, Table, View

TPOT_S = 0.025
MARK = "*"
FRONT = f"{MARK}: no other is both faster for a user and fuller"


@dataclass(frozen=True, slots=True)
class Place:
    """A point with its deployment and the numbers of both; `best`: no other is both faster for a user and fuller."""

    numbers: tuple[int, int]
    line: FrontierLine
    point: LoadPoint
    best: bool

    @property
    def tokens_per_s_of_a_user(self) -> Quantity | None:
        """Once the first token is there."""
        return None if self.point.tpot_s is None else self.point.tpot_s.inverse(1.0)


def places(answer: Frontier) -> list[Place]:
    """Return every point, in order."""
    front = answer.undominated()
    return [
        Place((number, place), line, point, (number, place) in front)
        for number, line in enumerate(answer.lines)
        for place, point in enumerate(line.points)
    ]


def best_places(answer: Frontier, tpot_s: float) -> list[Place]:
    """Return the best of each deployment within a TPOT (s), most per GPU first."""
    found = {id(place.point): place for place in places(answer)}
    return [found[id(point)] for _, point in answer.best(tpot_s)]


def frontier_facts(answer: Frontier, tpot_s: float) -> list[Fact]:
    """Return the deployment with the most output per GPU within a TPOT (s)."""
    best = best_places(answer, tpot_s)
    if not best:
        return [Fact("The best", "none", units.TEXT)]
    point = best[0].point
    facts = (
        Fact("The best", best[0].line.label, units.TEXT, f"{point.load:,.0f} in flight"),
        Fact("Best: per GPU", point.output_tokens_per_s_per_gpu, units.RATE),
        Fact("Best: per user", best[0].tokens_per_s_of_a_user, units.RATE),
        Fact("Best: $ per 1M", point.usd_per_million_output_tokens, units.USD),
    )
    return [fact for fact in facts if fact.value is not None]


def frontier_view(answer: Frontier, tpot_s: float = TPOT_S, *, every: bool = False) -> View:
    """Return the best of each deployment within a TPOT (s), most per GPU first, or `every` point."""
    from capacity.report.figures.frontiers import frontier_chart

    title = (
        f"[bold]{answer.model}[/bold], {answer.input_len:,} tokens in, {answer.output_len:,} out, closed loops: each "
        "deployment at the fewest GPUs that hold it, or at the size that was asked for"
    )
    notes = {p.price_note for line in answer.lines for p in line.points if p.price_note is not None}
    blocks = [OwnChart(lambda _: frontier_chart(answer)), *frontier_tables(answer, tpot_s, every=every)]
    return View(title, blocks, notes=sorted(notes))


def frontier_tables(answer: Frontier, tpot_s: float, *, every: bool = False) -> Iterator[Block]:
    """Return the points, which deployments have none within the limit, and which have none at all."""
    within = f"within a TPOT of {1e3 * tpot_s:g} ms"
    best = best_places(answer, tpot_s)
    title, shown = ("Every point", places(answer)) if every else (f"The most of each {within}", best)
    yield points_table(f"{title}; {FRONT}", shown)
    named = {place.line.label for place in best}
    slow = [line.label for line in answer.lines if line.points and line.label not in named]
    yield from (f"[yellow]{name}[/yellow]: none of its loads is {within}" for name in slow)
    yield Refused({line.label: line.reason for line in answer.lines if line.reason is not None})


def points_table(title: str, rows: Sequence[Place]) -> Table:
    """Return points with speed for a user, use of a GPU, and price."""
    columns = [
        Column("deployment", "line.label"),
        Column("in flight", "point.load", units.COUNT),
        Column("tokens/s for a user", "tokens_per_s_of_a_user", units.RATE),
        Column("tokens/s per GPU", "point.output_tokens_per_s_per_gpu", units.RATE),
        Column("$/1M out", "point.usd_per_million_output_tokens", units.USD_PER_MILLION),
        Column("", lambda place: MARK if place.best else "", units.TEXT),
    ]
    return Table(title, rows, columns)
