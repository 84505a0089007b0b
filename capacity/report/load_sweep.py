"""One deployment over its load as a table."""

from __future__ import annotations

from capacity.answers.load_point import LoadPoint
from capacity.answers.load_sweep import LoadSweep
from capacity.report.display import STANDARD, rate_and_interval, usd_text
from capacity.report.figures.loads import LOAD_WORDS, full_sentence
from capacity.report.layout import Part, listed, notes


def load_sweep_tables(answer: LoadSweep) -> list[Part]:
    """A line for each load, and where the engine is full."""
    place = f"{answer.num_gpus} x {answer.gpu}" if answer.num_gpus > 1 else answer.gpu
    headline = (
        f"[bold]{answer.model}[/bold] on [bold]{place}[/bold], {answer.engine}, {answer.input_len:,} tokens in, "
        f"{answer.output_len:,} out, over {LOAD_WORDS[answer.over]}"
    )
    table = listed(
        "",
        answer.points,
        (LOAD_WORDS[answer.over], "right", lambda p: f"{p.load:,.4g}"),
        ("TTFT", "right", lambda p: "-" if p.ttft_s is None else STANDARD.time_text(p.ttft_s.value)),
        ("TPOT", "right", lambda p: "-" if p.tpot_s is None else STANDARD.time_text(p.tpot_s.value)),
        ("tokens/s", "right", _rate),
        ("$/1M out", "right", lambda p: usd_text(p.usd_per_million_output_tokens)),
        ("", "left", lambda p: p.reason or p.verdict or ""),
    )
    table.title = None
    return [headline, full_sentence(answer), table, *notes([answer.price_note] if answer.price_note else [])]


def _rate(point: LoadPoint) -> str:
    rate = point.output_tokens_per_s
    return "-" if rate is None else rate_and_interval(rate)[0]
