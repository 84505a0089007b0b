"""The view of `stack`: the effect of techniques applied one after the other, and of each technique alone."""

from collections.abc import Iterator, Mapping

from capacity.planning.variations.stack import Stack
from capacity.planning.variations.technique_stack import Factors, StackStep
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit, mark_if, name_units, value_at
from capacity.report.views.view import Bars, Block, Column, Fact, Table, View, Waterfall, busiest_window_text

NO_INTERVAL_NOTE = (
    "Factors have no interval because both simulations use the same requests and step model, so most of its error "
    "cancels. Below 1 is worse."
)
CHARTS: Mapping[str, tuple[str, str, Unit, str]] = {  # title: field of `Figures`, of `Factors`, unit, axis
    "Output tokens/s": ("output_tokens_per_s", "throughput", units.COUNT, "Output tokens/s"),
    "TTFT": ("ttft_s", "ttft", units.MS, "TTFT, {time}"),
    "TPOT": ("tpot_s", "tpot", units.MS, "TPOT, {time}"),
    "$ per 1M output tokens": ("usd_per_million_output_tokens", "usd", units.USD_3, "$ per 1M output tokens"),
}


def factor_text(factor: float) -> str:
    """Return a factor as text: `2.35x`, `14.2x`, or `120x` without decimals from 100 on."""
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.1f}x" if factor >= 10 else f"{factor:.2f}x"


FACTOR = Unit(text=factor_text)


def charted_figures(answer: Stack) -> tuple[str, ...]:
    """Return the titles of the metrics in the answer: no cost without a price, no TPOT without decode steps."""
    return tuple(title for title in CHARTS if getattr(answer.naive, CHARTS[title][0]) is not None)


def stack_facts(answer: Stack) -> Iterator[Fact]:
    """Return the metrics with all techniques, compared with the naive deployment."""
    naive, last = answer.naive, answer.last_figures
    yield Fact("Together", answer.together.throughput, FACTOR, "relative to the naive deployment's tokens/s")
    yield Fact("If multiplied", answer.product_of_single.throughput, FACTOR, "product of separate factors")
    for label, field, unit in (
        ("Output tokens/s", "output_tokens_per_s", units.RATE),
        ("TTFT", "ttft_s", units.LATENCY),
        ("TPOT", "tpot_s", units.LATENCY),
        ("$ per 1M output", "usd_per_million_output_tokens", units.USD_PER_MILLION),
    ):
        first = getattr(naive, field)
        if first is not None or field == "tpot_s":
            yield Fact(label, getattr(last, field), unit, f"{unit.texts(first)[0]} naive")


def stack_view(answer: Stack, title: str | None = None) -> View:
    """Return the view of `stack`; its charts show all metrics, or only the metric with this `title`."""
    head = f"[bold]{answer.deployment}[/bold], {answer.workload}{busiest_window_text(answer.busiest_window)}"
    title_text = f"{head}\nnaive: {answer.naive_flags}"
    return View(title_text, _blocks(answer, title), notes=answer.observations)


def _blocks(answer: Stack, title: str | None) -> Iterator[Block]:
    for each in charted_figures(answer) if title is None else (title,):
        yield _waterfall(answer, each)
    yield _factors_chart(answer, title or next(iter(CHARTS)))
    yield from _tables(answer)
    yield (
        f"All techniques together: {factor_text(answer.together.throughput)} the tokens/s of the naive deployment; the "
        f"product of the single factors is {factor_text(answer.product_of_single.throughput)}"
    )
    for step in answer.taken:
        if step.why and step.own is not None:
            alone = "" if step.alone is None else f" alone {factor_text(step.alone.throughput)},"
            yield f"{step.title}:{alone} in the stack {factor_text(step.own.throughput)}: {step.why}"
    refused = (step for step in answer.steps if step.refused is not None)
    yield from (f"[yellow]not applicable:[/yellow] {step.title}: {step.refused}" for step in refused)
    yield f"flags with all techniques: {answer.last_flags}"


def _tables(answer: Stack) -> Iterator[Table]:
    """Return two tables: the metrics after each technique, and the improvement factors."""
    place = {step.technique: number for number, step in enumerate(answer.steps, 1)}
    naive = StackStep(technique="naive", title="naive", flags=answer.naive_flags, figures=answer.naive)

    def step_title(step: StackStep) -> str:
        return f"{place[step.technique]} {step.title}" if step.technique in place else step.title

    yield Table(
        "Each row adds one technique, on the same requests (90 % intervals)",
        [naive, *answer.taken],
        [
            Column("", mark_if(step_title, "figures.overloaded", " (overloaded)")),
            Column("tokens/s", "figures.output_tokens_per_s", units.TIMES),
            Column("TTFT", "figures.ttft_s", units.LATENCY),
            Column("TPOT, {time}", "figures.tpot_s", units.MS),
            Column("$/1M out", "figures.usd_per_million_output_tokens", units.USD_2),
            Column("batch", "figures.mean_batch_size", Unit(1)),
            Column("bound by", "{0.figures.bound} {0.figures.bound_fraction:.0%}".format),
            Column("basis", "figures.basis"),
        ],
        wrap=True,
    )
    yield Table(
        "Factors: on top of the previous techniques, cumulative, and alone (above 1 is better)",
        answer.taken,
        [
            Column("", step_title),
            Column("tokens/s", "own.throughput", FACTOR),
            Column("TTFT", "own.ttft", FACTOR),
            Column("TPOT", "own.tpot", FACTOR),
            Column("$", "own.usd", FACTOR),
            Column("cumulative: tokens/s", "cumulative.throughput", FACTOR),
            Column("TPOT", "cumulative.tpot", FACTOR),
            Column("alone: tokens/s", "alone.throughput", FACTOR),
            Column("TPOT", "alone.tpot", FACTOR),
            Column("builds on", lambda step: ", ".join(str(place[name]) for name in step.rests_upon) or "-"),
        ],
        wrap=True,
    )


def _waterfall(answer: Stack, title: str) -> Waterfall:
    """Return a waterfall of one metric from the naive deployment to all techniques; whiskers: 90 % intervals."""
    field, factor, unit, axis = CHARTS[title]
    gains = {f"{step.title}, {factor_text(_gain(step.own, factor))}": step for step in answer.taken}
    values = {"naive": getattr(answer.naive, field)}
    values |= {label: getattr(step.figures, field) for label, step in gains.items()}
    first, last = (
        unit.text_with_interval(getattr(each, field)) for each in (answer.naive, answer.last_figures)
    )
    return Waterfall(
        name=f"stack_{factor}",
        title=f"{title}, one technique after the other",
        alt=f"{name_units(axis)}: {first} naive, {last} with {len(gains)} techniques.",
        data={axis: values},
        unit=unit,
        labels="technique",
        axis=axis,
        rising=factor == "throughput",
    )


def _factors_chart(answer: Stack, title: str) -> Bars:
    """Return the chart of each technique's improvement factor, in the given order and alone, and of all together."""
    factor = CHARTS[title][1]
    columns = [
        Column("technique", "title"),
        Column("on top of the previous", f"own.{factor}", Unit(significant=3)),
        Column("cumulative", f"cumulative.{factor}", Unit(significant=3)),
        Column("alone", f"alone.{factor}", Unit(significant=3)),
    ]
    together, single = (_gain(each, factor) for each in (answer.together, answer.product_of_single))
    own = {step.title: _gain(step.own, factor) for step in answer.taken}
    alone = {step.title: _gain(step.alone, factor) for step in answer.taken}
    return Bars(
        name=f"stack_factors_{factor}",
        title=f"Factors of {title}: in the stack, and alone",
        alt=f"All together {factor_text(together)}; the product of the single factors is {factor_text(single)}.",
        data={
            "on top of the previous": {**own, "all together": together},
            "alone (last bar: product of all)": {**alone, "all together": single},
        },
        axis="improvement factor",
        log=True,
        reference=(1.0, ""),
        note=NO_INTERVAL_NOTE,
        rows=table_records(Table("", answer.taken, columns)),
    )


def _gain(factors: Factors | None, name: str) -> float:
    """Return the improvement factor `name`; 1 if it is unknown."""
    found = value_at(factors, name)
    return 1.0 if found is None else float(found)
