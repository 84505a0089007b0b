"""What `stack` answers, as tables: the techniques one upon the other, and each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.comparisons import compared_text
from capacity.report.display import text_and_interval, time_and_interval
from capacity.report.layout import Part, listed, notes

if TYPE_CHECKING:
    from capacity.planning.variations.stack import Stack
    from capacity.planning.variations.stack_figures import Factors, Figures
    from capacity.planning.variations.technique_stack import StackStep

Row = tuple[str, "Figures"]


def stack_tables(answer: Stack) -> list[Part]:
    """What is served at each step; the factors; why some differ; what could not be taken."""
    refused = [step for step in answer.steps if step.refused is not None]
    return [
        f"[bold]{answer.deployment}[/bold], {answer.workload}{compared_text(answer.busiest_window)}\n"
        f"naive: {answer.naive_flags}",
        _figures_table(answer),
        _factors_table(answer),
        _multiplied(answer),
        *explained(answer),
        *(f"[yellow]not here:[/yellow] {step.title}: {step.refused}" for step in refused),
        f"the last row: {_last_flags(answer)}",
        *notes(answer.observations),
    ]


def _numbered(answer: Stack) -> Callable[[StackStep], str]:
    """A technique with its place in the order."""
    place = {step.technique: number for number, step in enumerate(answer.steps, 1)}
    return lambda step: f"{place[step.technique]} {step.title}"


def _taken(answer: Stack) -> list[StackStep]:
    return [step for step in answer.steps if step.figures is not None]


def _figures_table(answer: Stack) -> Part:
    title = _numbered(answer)
    rows: list[Row] = [("naive", answer.naive)]
    rows += [(title(step), step.figures) for step in _taken(answer) if step.figures is not None]
    return listed(
        "One technique more in each row, on the same requests (90 % intervals)",
        rows,
        ("", "left", lambda row: row[0] + (" (overloaded)" if row[1].overloaded else "")),
        ("tokens/s", "right", lambda row: _spanned(row[1].output_tokens_per_s)),
        ("TTFT", "right", lambda row: _spanned_time(row[1].ttft_s)),
        ("TPOT, ms", "right", lambda row: _spanned(row[1].tpot_s, 1e3)),
        ("$/1M out", "right", lambda row: _spanned(row[1].usd_per_million_output_tokens)),
        ("batch", "right", lambda row: f"{row[1].mean_batch_size:,.1f}"),
        ("bound by", "left", lambda row: f"{row[1].bound} {row[1].bound_fraction:.0%}"),
        ("basis", "left", lambda row: row[1].basis),
    )


def _spanned(quantity: Quantity | None, unit: float = 1.0) -> str:
    if quantity is None:
        return "-"
    value, interval = text_and_interval(quantity, unit)
    return f"{value}\n[dim]{interval}[/dim]" if interval else value


def _spanned_time(seconds: Quantity | None) -> str:
    if seconds is None:
        return "-"
    value, interval = time_and_interval(seconds)
    return f"{value}\n[dim]{interval}[/dim]" if interval else value


def _factors_table(answer: Stack) -> Part:
    def of(name: str, factors: Factors | None) -> str:
        value = None if factors is None else getattr(factors, name)
        return "-" if value is None else times(value)

    place = {step.technique: number for number, step in enumerate(answer.steps, 1)}
    return listed(
        "Its factor upon all before, that of all so far, and the one that it has alone (above 1 is better)",
        _taken(answer),
        ("", "left", _numbered(answer)),
        ("tokens/s", "right", lambda step: of("throughput", step.own)),
        ("TTFT", "right", lambda step: of("ttft", step.own)),
        ("TPOT", "right", lambda step: of("tpot", step.own)),
        ("$", "right", lambda step: of("usd", step.own)),
        ("all so far: tokens/s", "right", lambda step: of("throughput", step.cumulative)),
        ("TPOT", "right", lambda step: of("tpot", step.cumulative)),
        ("alone: tokens/s", "right", lambda step: of("throughput", step.alone)),
        ("TPOT", "right", lambda step: of("tpot", step.alone)),
        ("upon", "left", lambda step: ", ".join(str(place[name]) for name in step.rests_upon) or "-"),
    )


def times(factor: float) -> str:
    """A factor with as many digits as it bears."""
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.1f}x" if factor >= 10 else f"{factor:.2f}x"


def _multiplied(answer: Stack) -> str:
    together, single = answer.together, answer.product_of_single
    return (
        f"together {times(together.throughput)} the tokens per second of the naive deployment; the factors of each "
        f"alone multiply to {times(single.throughput)}"
    )


def explained(answer: Stack) -> Iterator[str]:
    """For each technique whose factor differs from the one that it has alone, why."""
    for step in _taken(answer):
        if step.why and step.own is not None:
            alone = "" if step.alone is None else f" alone {times(step.alone.throughput)},"
            yield f"{step.title}:{alone} here {times(step.own.throughput)}: {step.why}"


def _last_flags(answer: Stack) -> str:
    taken = _taken(answer)
    return taken[-1].flags if taken else answer.naive_flags
