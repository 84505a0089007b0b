"""The view of `tornado`: how cost and latency change if an input differs from its assumed value."""

from collections.abc import Callable, Iterator

from capacity.planning.variations.tornado import Swing, Tornado
from capacity.report.display import phrase
from capacity.report.views import units
from capacity.report.views.view import Bars, Block, Column, Table, View, busiest_window_text

MEASURES = (("p95 E2E", "e2e_p95_change"), ("p95 TTFT", "ttft_p95_change"), ("$ per request", "cost_change"))


def tornado_view(answer: Tornado) -> View:
    """Return the view of `tornado`."""
    base = f"p95 E2E {units.SECONDS.texts(answer.base.e2e_p95_s)[0]} s"
    title = f"[bold]{answer.deployment}[/bold], {answer.workload}: {base}{busiest_window_text(answer.busiest_window)}"
    return View(title, _blocks(answer))


def _blocks(answer: Tornado) -> Iterator[Block]:
    yield _chart(answer)
    measures = (*MEASURES, ("at full load", "full_cost_change"))
    columns = [
        Column("input", "input"),
        *(Column(heading, _both_ends(path), units.TEXT) for heading, path in measures),
    ]
    swing = f"{answer.swing:.0%}"
    yield Table(
        f"Relative change of results if an input is {swing} lower / {swing} higher", answer.swings, columns
    )
    yield phrase("not varied: {}", "; ".join(answer.not_varied))


def _both_ends(path: str) -> Callable[[Swing], str]:
    return lambda swing: " / ".join(units.CHANGE.texts(end)[0] for end in getattr(swing, path))


def _chart(answer: Tornado) -> Bars:
    """Return the chart of the effect of each input on cost, the largest first; without a price, on p95 E2E latency."""
    priced = answer.base.usd_per_request_served is not None
    path, what = ("cost_change", "$ per request") if priced else ("e2e_p95_change", "p95 E2E latency")
    swings = sorted(
        answer.swings, key=lambda swing: -max(map(abs, filter(None, getattr(swing, path))), default=0.0)
    )
    worst = f"{what} depends most on {swings[0].input}" if swings else "no input was varied"
    ends = {
        f"{heading}, {end}": f"{path}.{place}"
        for heading, path in reversed(MEASURES)
        for place, end in enumerate(("low", "high"))
    }
    return Bars(
        name="tornado",
        title=f"Effect of ±{answer.swing:.0%} of an input on {what}",
        alt=f"{worst}. Base: p95 E2E {units.LATENCY.texts(answer.base.e2e_p95_s)[0]}.",
        data=units.read_series(
            swings,
            "input",
            {f"input {-answer.swing:+.0%}": f"{path}.0", f"input {answer.swing:+.0%}": f"{path}.1"},
        ),
        unit=units.CHANGE,
        axis=f"change of {what}, %",
        rows=units.read_rows(swings, {"input": "input", **ends}),
    )
