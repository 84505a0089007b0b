"""The frontier: of each deployment the best within a limit on TPOT, or every point, and which no other beats."""

from __future__ import annotations

from collections.abc import Iterator

from capacity.answers.frontier import Frontier
from capacity.report.figures.frontiers import frontier_chart
from capacity.report.views import units
from capacity.report.views.frontier_points import MARK, best_places, places, points_table
from capacity.report.views.view import Block, Fact, OwnChart, Refused, View

TPOT_S = 0.025
FRONT = f"{MARK}: no other is both faster for a user and fuller"


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
