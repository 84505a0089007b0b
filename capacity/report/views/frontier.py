"""The view of `frontier`: each deployment's best point within a TPOT limit, or all points with Pareto marks."""

from collections.abc import Iterator
from functools import partial

from capacity.answers.frontier import Frontier
from capacity.report.figures.frontiers import MARK, best_points, frontier_chart, frontier_points, points_table
from capacity.report.views import units
from capacity.report.views.view import Block, CustomChart, Fact, Rejections, View, known_facts

TPOT_S = 0.025
FRONT_LEGEND = f"{MARK} Pareto-optimal: no other point has more tokens/s both per user and per GPU"


def frontier_facts(answer: Frontier, tpot_s: float) -> list[Fact]:
    """Return the facts of the deployment with most output tokens/s per GPU within the TPOT limit (s)."""
    best = best_points(answer, tpot_s)
    if not best:
        return [Fact("Best deployment", "none", units.TEXT)]
    point = best[0].point
    facts = (
        Fact("Best deployment", best[0].line.label, units.TEXT, f"{point.load:,.0f} in flight"),
        Fact("Best: per GPU", point.output_tokens_per_s_per_gpu, units.RATE),
        Fact("Best: per user", best[0].tokens_per_s_of_a_user, units.RATE),
        Fact("Best: $ per 1M", point.usd_per_million_output_tokens, units.USD),
    )
    return known_facts(facts)


def frontier_view(answer: Frontier, tpot_s: float = TPOT_S, *, every: bool = False) -> View:
    """Return the best point of each deployment within the TPOT limit (s), or with `every` all points."""
    title = (
        f"[bold]{answer.model}[/bold], {answer.input_len:,} tokens in, {answer.output_len:,} out, closed loop: each "
        "deployment on the fewest GPUs that fit the model, or on the requested number"
    )
    notes = {p.price_note for line in answer.lines for p in line.points if p.price_note is not None}
    chart = CustomChart(partial(frontier_chart, answer), fixed=True)
    blocks = [chart, *frontier_tables(answer, tpot_s, every=every)]
    return View(title, blocks, notes=[*sorted(notes), *answer.notes])


def frontier_tables(answer: Frontier, tpot_s: float, *, every: bool = False) -> Iterator[Block]:
    """Return a table of points, the deployments without a point within the TPOT limit, and the rejected ones."""
    within = f"within a TPOT of {1e3 * tpot_s:g} ms"
    best = best_points(answer, tpot_s)
    title, shown = (
        ("All points", frontier_points(answer)) if every else (f"Most tokens/s per GPU {within}", best)
    )
    yield points_table(f"{title}; {FRONT_LEGEND}", shown)
    named = {place.line.label for place in best}
    slow = [line.label for line in answer.lines if line.points and line.label not in named]
    yield from (f"[yellow]{name}[/yellow]: no load is {within}" for name in slow)
    yield Rejections({line.label: line.reason for line in answer.lines if line.reason is not None})
