"""The stack of techniques as pictures: what each makes of the deployment before it, and what it has alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout, log_axis
from capacity.report.figures.drawing import draw_chart, whiskers, with_interval
from capacity.report.figures.loads import FIGURES, Figure
from capacity.report.stack import times
from capacity.report.subject import subject_of
from capacity.report.views.view import Bars

if TYPE_CHECKING:
    from capacity.planning.variations.stack import Stack
    from capacity.planning.variations.stack_figures import Factors
    from capacity.planning.variations.technique_stack import StackStep

NAIVE = "naive"
GAINS = {
    "throughput": "throughput",
    "ttft": "ttft",
    "tpot": "tpot",
    "price": "usd",
}  # a `Factors`' field by figure
BETTER, WORSE, WHOLE = 2, 5, 0  # colours


def taken(answer: Stack) -> list[StackStep]:
    """The techniques that were taken, in their order."""
    return [step for step in answer.steps if step.figures is not None]


def figure_names(answer: Stack) -> tuple[str, ...]:
    """The figures that this stack has: without a price none of it, of single tokens no TPOT."""
    return tuple(name for name in GAINS if getattr(answer.naive, FIGURES[name].field) is not None)


def stack_chart(answer: Stack, figure_name: str = "throughput", units: Units = STANDARD) -> Chart:
    """A waterfall on a logarithmic axis, so that equal lengths are equal factors: one of `FIGURES` from the naive
    deployment to that with all techniques; whiskers are 90 % intervals."""
    import plotly.graph_objects as go

    of = FIGURES[figure_name]
    scale, steps = of.scale(units), taken(answer)
    names = [NAIVE, *(f"{step.title}, {times(_gain(step.own, figure_name))}" for step in steps)]
    values = [getattr(each, of.field) for each in (answer.naive, *(s.figures for s in steps if s.figures))]
    ends = [scale * value.value for value in values]
    figure = go.Figure()
    for index, (kind, wanted) in enumerate((("better", True), ("worse", False))):
        moved = [
            (name, before, after)
            for name, before, after, step in zip(names[1:], ends, ends[1:], steps, strict=False)
            if (_gain(step.own, figure_name) >= 1) is wanted
        ]
        figure.add_bar(
            y=[name for name, *_ in moved],
            x=[after - before for _, before, after in moved],
            base=[before for _, before, _ in moved],
            orientation="h",
            name=kind,
            hovertemplate="%{y}<extra></extra>",
            **bar_style((BETTER, WORSE)[index]),
        )
    figure.add_scatter(
        y=names,
        x=ends,
        mode="markers",
        name="with all up to here, 90 % interval",
        marker={"color": NEUTRAL, "symbol": "line-ns-open", "size": 12},
        error_x=whiskers(values, scale),
        text=[with_interval(value, scale) for value in values],
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    layout(figure, x=of.label(units), y="", height=150 + 30 * len(names), barmode="overlay")
    figure.update_xaxes(**log_axis([scale * end for v in values for end in (v.low, v.value, v.high) if end]))
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=names)
    return Chart(
        name=f"stack_{figure_name}",
        title=f"{of.title}, one technique upon the other",
        alt=(
            f"{of.label(units)}: {with_interval(values[0], scale)} naive, {with_interval(values[-1], scale)} with "
            f"{len(steps)} techniques."
        ),
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {"technique": name, of.label(units): scale * value.value}
            | {end: _scaled(getattr(value, end), scale) for end in ("low", "high")}
            | {"factor": None if step is None else _gain(step.own, figure_name)}
            for name, value, step in zip(
                [NAIVE, *(s.title for s in steps)], values, [None, *steps], strict=True
            )
        ),
    )


def factors_chart(answer: Stack, figure_name: str = "throughput") -> Chart:
    """The factor of each technique upon all before it, beside the one that it has alone, and those of all together."""
    together, single = (_gain(each, figure_name) for each in (answer.together, answer.product_of_single))
    own = {step.title: _gain(step.own, figure_name) for step in taken(answer)}
    alone = {step.title: _gain(step.alone, figure_name) for step in taken(answer)}
    drawing = Bars(
        name=f"stack_factors_{figure_name}",
        title=f"Factors of {FIGURES[figure_name].title}: in the stack, and alone",
        alt=f"Together {times(together)}; the factors that each has alone multiply to {times(single)}.",
        data={
            "upon all before it": {**own, "all together": together},
            "alone; of all, multiplied": {**alone, "all together": single},
        },
        axis="times as good",
        log=True,
        reference=(1.0, ""),
        rows=factor_rows(answer, figure_name),
    )
    return draw_chart(drawing, answer)


def factor_rows(answer: Stack, figure_name: str = "throughput") -> list[dict[str, object]]:
    """For each technique its factors, how it differs from the one alone, and what it is made of; or why it is none."""
    place = {step.technique: number for number, step in enumerate(answer.steps, 1)}

    def gain(factors: Factors | None) -> float | None:
        return None if factors is None else float(f"{_gain(factors, figure_name):.3g}")

    return [
        {
            "": place[step.technique],
            "technique": step.title,
            "upon all before": gain(step.own),
            "all so far": gain(step.cumulative),
            "alone": gain(step.alone),
            "rests upon": ", ".join(str(place[name]) for name in step.rests_upon) or None,
            "bound by": None if step.figures is None else _bound(step),
            "why not as alone, or not taken": step.refused or step.why or None,
        }
        for step in answer.steps
    ]


def _bound(step: StackStep) -> str:
    assert step.figures is not None
    return f"{step.figures.bound} {step.figures.bound_fraction:.0%}"


def _gain(factors: Factors | None, figure_name: str) -> float:
    """How many times better; 1 where there is no factor."""
    found = None if factors is None else getattr(factors, GAINS[figure_name])
    return 1.0 if found is None else float(found)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def label(figure_name: str) -> str:
    """The figure's title, for a choice."""
    of: Figure = FIGURES[figure_name]
    return of.title
