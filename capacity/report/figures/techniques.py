"""Techniques as pictures: what each change does, each format, each number of GPUs, each size of cache, each split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from capacity.answers.records import Quantity
from capacity.report.display import as_sure, last_place, number_text, rounded, shown
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, symbol
from capacity.report.techniques.cells import tokens

if TYPE_CHECKING:
    from capacity.answers.records import Simulation
    from capacity.planning.variations.advice import Advice, AdviceList
    from capacity.techniques.cache_curve import CacheCurve
    from capacity.techniques.quantize import QuantizedOption, Quantizing
    from capacity.techniques.scaling import Layout, Scaling

MOST_CHANGES = 12
SMALLEST_TEXT = 11  # px; bars too short for it have none
NAME_WIDTH = 22  # letters of a line beside the bars, for a phone
LEAST_CHANGE = 0.01  # of anything: less is no bar
FARTHEST = 100.0  # percent; bars that go on are cut there, and their numbers stand beside them
CHANGES = (
    ("p95 TTFT", "ttft_p95_change"),
    ("p95 TPOT", "tpot_p95_change"),
    ("p95 E2E", "e2e_p95_change"),
    ("$ a request at full load", "cost_change"),
)
DRAWN = (CHANGES[0], CHANGES[1], CHANGES[3])


# advice


def advice_rows(answer: AdviceList) -> list[dict[str, object]]:
    """The changes that help, with their effects; seconds and $ are differences."""
    return [_digits(_advice_row(line)) for line in answer.advice if line.effects is not None]


def _advice_row(line: Advice) -> dict[str, object]:
    assert line.effects is not None
    effects = line.effects
    return {
        "needs": line.needs,
        "change": line.change,
        "flags": line.flags,
        **{f"{name}, %": _percent(getattr(effects, field)) for name, field in CHANGES},
        "p95 TTFT, ms": None if effects.ttft_p95_s is None else 1e3 * effects.ttft_p95_s,
        "p95 TPOT, ms": None if effects.tpot_p95_s is None else 1e3 * effects.tpot_p95_s,
        "$/h": effects.usd_per_hour,
        "requests that fail": line.failed,
        "quality": line.quality,
        "remark": line.note,
    }


def advice_chart(answer: AdviceList) -> Chart:
    """The most beneficial changes, by what each does to latency and cost, relative to the deployment as it is."""
    import plotly.graph_objects as go

    best = [line for line in answer.advice if _moves(line)][:MOST_CHANGES]
    figure = go.Figure()
    for index, (name, field) in enumerate(DRAWN):
        values = [_percent(getattr(line.effects, field)) for line in best]
        figure.add_bar(
            y=[line.change for line in best],
            x=values,
            orientation="h",
            name=name,
            hovertemplate=f"{name}: %{{x:+.1f}} %<extra>%{{y}}</extra>",
            **bar_style(index),
        )
    names = [line.change for line in best]
    figure.update_yaxes(
        autorange="reversed", tickvals=names, ticktext=["<br>".join(wrap(name, NAME_WIDTH)) for name in names]
    )
    figure.update_xaxes(range=[-FARTHEST, FARTHEST], nticks=5, zeroline=True, zerolinecolor=NEUTRAL)
    layout(figure, x="change, %: less is better", y="", height=130 + 58 * max(len(best), 1), barmode="group")
    words = "no change helps" if not best else f"the most beneficial is to {best[0].change}"
    return Chart(
        name="advice",
        title="What would help here",
        alt=f"{len(answer.advice)} changes simulated on the same arrivals: {words}.",
        figure=figure,
        rows=tuple(advice_rows(answer)),
    )


def _moves(line: Advice) -> bool:
    """Whether a change does anything that a bar would show."""
    if line.effects is None:
        return False
    return any(abs(getattr(line.effects, field) or 0.0) >= LEAST_CHANGE for _, field in DRAWN)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _digits(row: dict[str, object]) -> dict[str, object]:
    """A row whose numbers say no more than they know: those with an interval by that, others in three digits."""
    return {name: _digits_of(value) for name, value in row.items()}


def _digits_of(value: object) -> object:
    if isinstance(value, Quantity):
        return rounded(value.value, value)
    return rounded(value) if isinstance(value, float) else value


def _in_ms(row: Layout | QuantizedOption, name: str) -> Quantity | None:
    """A time of the row in ms, with its interval; None where it has none."""
    seconds = getattr(row, name)
    low, high = row.intervals_s.get(name, (None, None))
    return None if seconds is None else Quantity(value=seconds, low=low, high=high).scaled(1e3)


def _hanging_on(value: float | None, time: Quantity | None) -> Quantity | None:
    """What hangs on a time, as sure as that."""
    return None if value is None else as_sure(value, time)


# quantization


def quantization_rows(answer: Quantizing) -> list[dict[str, object]]:
    """Every method, in numbers; `why not` where it has no times."""
    return [_digits(_quantization_row(row)) for row in answer.rows]


def _quantization_row(row: QuantizedOption) -> dict[str, object]:
    return {
        "method": row.method,
        "bits per weight": row.bits_per_weight,
        "weights, GB": row.weights_bytes / 1e9,
        "multiplied in": row.compute,
        "most requests": row.max_batch,
        "TTFT, ms": _in_ms(row, "ttft_s"),
        "TPOT of 1, ms": _in_ms(row, "tpot_small_s"),
        f"TPOT of {row.large_batch}, ms": _in_ms(row, "tpot_large_s"),
        "pays below batch": row.pays_below_batch,
        "$/1M tokens": _hanging_on(row.usd_per_million_tokens, _in_ms(row, "tpot_large_s")),
        "quality, as published": "; ".join(row.quality) or "nothing published",
        "the engine loads it": row.engine_loads,
        "why not": row.reason,
    }


def quantization_chart(answer: Quantizing, *, every: bool = False) -> Chart:
    """TPOT of the methods that the engine loads, or of `every` one that runs, alone and in a large batch."""
    import plotly.graph_objects as go

    run = [row for row in answer.rows if row.tpot_small_s is not None and (every or row.engine_loads)]
    figure = go.Figure()
    series = (("a batch of 1", "tpot_small_s"), (f"a batch of {answer.large_batch}", "tpot_large_s"))
    for index, (name, field) in enumerate(series):
        values = [_in_ms(row, field) for row in run]
        figure.add_bar(
            y=[row.method for row in run],
            x=[None if each is None else each.value for each in values],
            orientation="h",
            name=name,
            error_x=_whiskers(values),
            text=[_text_of(each) for each in values],
            textposition="inside",
            insidetextanchor="start",  # the whisker is at the other end
            textangle=0,
            hovertemplate=f"{name}: %{{text}} ms<extra>%{{y}}</extra>",
            **bar_style(index),
        )
    figure.update_yaxes(autorange="reversed")
    layout(figure, x="TPOT, ms", y="", height=130 + 40 * max(len(run), 1), barmode="group")
    figure.update_layout(uniformtext={"minsize": SMALLEST_TEXT, "mode": "hide"})
    times = [1e3 * (getattr(row, field) or 0.0) for row in run for _, field in series]
    figure.update_xaxes(
        range=[0, 1.2 * max(times, default=1.0)]
    )  # the widest whiskers are of the slowest, and go on
    fastest = min(run, key=lambda row: row.tpot_large_s or float("inf"), default=None)
    words = "none runs here" if fastest is None else f"{fastest.method} is the fastest in a batch"
    return Chart(
        name="quantization",
        title="Time per output token, by format",
        alt=f"{len(run)} of {len(answer.rows)} formats on {answer.gpu.count} x {answer.gpu.name}: {words}.",
        figure=figure,
        rows=tuple(quantization_rows(answer)),
    )


# more GPUs


def scaling_rows(answer: Scaling) -> list[dict[str, object]]:
    """Every layout, in numbers."""
    return [
        _digits(
            {
                "GPUs": row.num_gpus,
                "most requests": row.max_batch,
                "TTFT, ms": _in_ms(row, "ttft_s"),
                "TPOT, ms": _in_ms(row, "tpot_s"),
                "times as fast": row.speedup,
                "output tokens/s a GPU": _hanging_on(row.output_tokens_per_s_per_gpu, _in_ms(row, "tpot_s")),
                "efficiency, %": _percent(row.efficiency),
                "links, % of a step": _percent(row.communication_share),
                "$/1M tokens": _hanging_on(row.usd_per_million_tokens, _in_ms(row, "tpot_s")),
                "why not": row.reason,
            }
        )
        for row in answer.rows
    ]


def scaling_chart(answer: Scaling) -> Chart:
    """TPOT, and output tokens per second and GPU, over the number of GPUs."""
    run = [row for row in answer.rows if row.tpot_s is not None]
    figure = _panels(
        [str(row.num_gpus) for row in run],
        {
            "TPOT, ms": [_in_ms(row, "tpot_s") for row in run],
            "output tokens/s a GPU": [
                _hanging_on(row.output_tokens_per_s_per_gpu, _in_ms(row, "tpot_s")) for row in run
            ],
        },
        x="GPUs",
        bare=("output tokens/s a GPU",),
    )
    words = "no layout runs"
    if run:
        last = run[-1]
        words = (
            f"{last.num_gpus} GPUs take {_text_of(_in_ms(last, 'tpot_s'))} ms a token, "
            f"{shown(last.speedup, '.2f')} times as fast as {run[0].num_gpus}, with "
            f"{shown(last.efficiency, '.0%')} of its tokens a GPU"
        )
    return Chart(
        name="scaling",
        title=f"What more GPUs buy: {answer.axis} parallelism",
        alt=f"{answer.concurrency} requests in flight: {words}.",
        figure=figure,
        rows=tuple(scaling_rows(answer)),
    )


# prefix caching


def hit_rate_chart(answer: CacheCurve) -> Chart:
    """Share of tokens and of blocks that a cache of each size would have had."""
    import plotly.graph_objects as go

    sized = [row for row in answer.rows if row.capacity_tokens is not None]
    whole = next((row for row in answer.rows if row.capacity_tokens is None), None)
    figure = go.Figure()
    for index, (name, field) in enumerate(
        (("tokens", "token_hit_fraction"), ("blocks", "block_hit_fraction"))
    ):
        figure.add_scatter(
            x=[row.capacity_tokens for row in sized],
            y=[_percent(getattr(row, field)) for row in sized],
            mode="lines+markers",
            name=f"{name} found",
            line={"color": colour(index), "dash": ("solid", "dash")[index]},
            marker={"symbol": symbol(index), "size": 10},
        )
    if whole is not None:
        figure.add_hline(
            y=_percent(whole.token_hit_fraction),
            line={"color": NEUTRAL, "dash": "dot"},
            annotation_text="no limit",
        )
    sizes = [row.capacity_tokens or 0 for row in sized]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[tokens(size) for size in sizes])
    figure.update_yaxes(rangemode="tozero")
    layout(figure, x="cache, tokens", y="found, %")
    most = 0.0 if whole is None else whole.token_hit_fraction
    return Chart(
        name="hit_rate",
        title="What a prefix cache finds, by its size",
        alt=(
            f"{answer.requests:,} requests: at most {most:.1%} of their prompt tokens are found, and nothing "
            f"more beyond {answer.knee_tokens:,} tokens."
        ),
        figure=figure,
        rows=tuple(
            {
                "cache, tokens": row.capacity_tokens or "no limit",
                "tokens found, %": _percent(row.token_hit_fraction),
                "blocks found, %": _percent(row.block_hit_fraction),
            }
            for row in answer.rows
        ),
    )


# prefill here, decode there


SPLIT_FIGURES = {  # headings of the table, by the summary's names
    "p95 TTFT, ms": "p95_ttft_ms",
    "p95 TPOT, ms": "p95_tpot_ms",
    "p95 E2E, ms": "p95_e2el_ms",
    "requests/s": "request_throughput",
    "output tokens/s": "output_throughput",
}


def split_rows(runs: Mapping[str, Simulation]) -> list[dict[str, object]]:
    """Every split of the replicas, with the figures of its run."""
    return [
        _digits(
            {
                "replicas": name,
                "verdict": "-" if run.verdict is None else run.verdict.verdict,
                **{heading: _simulated(run, field) for heading, field in SPLIT_FIGURES.items()},
            }
        )
        for name, run in runs.items()
    ]


def split_chart(runs: Mapping[str, Simulation]) -> Chart:
    """p95 of TTFT and TPOT by how many of the replicas only prefill."""
    panels = {
        heading: [_simulated(run, field) for run in runs.values()]
        for heading, field in list(SPLIT_FIGURES.items())[:2]
    }
    tpots = dict(zip(runs, panels["p95 TPOT, ms"], strict=True))
    best = min(tpots, key=lambda name: math.inf if (tpot := tpots[name]) is None else tpot.value)
    return Chart(
        name="disaggregation",
        title="p95 latency, by how many replicas only prefill",
        alt=f"{listed(list(runs))}: the lowest p95 TPOT is that of {best}.",
        figure=_panels(list(runs), panels, x="replicas"),
        rows=tuple(split_rows(runs)),
    )


def _simulated(run: Simulation, field: str) -> Quantity | None:
    """A figure of a run by the summary's name, with its interval where it has one."""
    value = run.to_dict()[field]
    return None if value is None else run.predicted_ms.get(field) or Quantity(value=value)


def _panels(
    names: Sequence[str], panels: Mapping[str, Sequence[Quantity | None]], *, x: str, bare: Sequence[str] = ()
) -> Any:
    """Bars of several quantities, one above the other, over the same names, with whiskers but for the `bare`."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(panels), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for index, (title, values) in enumerate(panels.items()):
        figure.add_bar(
            x=list(names),
            y=[None if each is None else each.value for each in values],
            name=title,
            text=[_text_of(each) for each in values],
            error_y=None if title in bare else _whiskers(values),
            textposition="inside",
            insidetextanchor="start",
            hovertemplate=f"%{{x}} {x}: %{{text}}<extra>{title}</extra>",
            showlegend=False,
            row=index + 1,
            col=1,
            **bar_style(index),
        )
    layout(figure, x="", y="", height=220 * len(panels) + 60)
    for index, title in enumerate(panels):
        figure.update_yaxes(title_text=title, rangemode="tozero", row=index + 1, col=1)
    figure.update_xaxes(title_text=x, type="category", row=len(panels), col=1)
    return figure


def _text_of(number: Quantity | None) -> str:
    """With the digits that its interval leaves, or three; "-" for None."""
    if number is None:
        return "-"
    return (
        f"{rounded(number.value):,.12g}" if last_place(number) is None else number_text(number.value, number)
    )


def _whiskers(values: Sequence[Quantity | None]) -> Mapping[str, object]:
    """From the low to the high end of each; none where nothing is known."""
    known = [
        (0.0, 0.0)
        if each is None or each.low is None or each.high is None
        else (each.value - each.low, each.high - each.value)
        for each in values
    ]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high for _, high in known],
        "arrayminus": [low for low, _ in known],
        "color": NEUTRAL,
    }
