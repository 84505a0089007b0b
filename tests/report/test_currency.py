"""Answers in another currency: every amount of the table and the HTML page is the amount in US dollars / rate."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html import unescape
from pkgutil import resolve_name
from typing import Any

import pytest
from quick_fleets import quick_fleet

import capacity
from capacity.base.money import currency_note, use_currency
from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.tables import render
from capacity.report.views.stack import FACTOR
from capacity.report.views.units import value_at
from capacity.report.views.view import Table

MODEL = "llama-3.1-8b"
LOAD: dict[str, Any] = {"input_len": 512, "output_len": 64, "request_rate": 4.0}
SIDES = [
    {"model": MODEL, "pools": [{"gpu": gpu}], "traffic": {**LOAD, "num_prompts": 100}, "cost": {"price": "4"}}
    for gpu in ("h100", "b200")
]
ASKED: dict[str, Callable[[], AnswerRecord]] = {
    "estimate": lambda: capacity.estimate(MODEL, gpu="h100", price_tier="on-demand", **LOAD),
    "gpu-comparison": lambda: capacity.compare_gpus(MODEL, gpus=("h100", "l4"), price_tier="spot", **LOAD),
    "load-sweep": lambda: capacity.load_sweep(
        MODEL, gpu="h100", price="2", input_len=512, output_len=64, loads=(1, 8)
    ),
    "simulate": lambda: capacity.simulate(MODEL, gpu="h100", price="2.5", num_prompts=100, **LOAD),
    "cost": lambda: capacity.cost(
        MODEL, gpu="h100", price="2.5", api_input_price=0.1, api_output_price=0.3, documents=9000, deadline_hours=9,
        interruptions_per_hour=0.1, restart_s=60, growth=40, months=3, batch_api="openai", api="all", **LOAD,
    ),
    "plan": lambda: capacity.plan(MODEL, slo="ttft:p95:1s", gpus=("h100", "l4"), price_tier="on-demand", **LOAD),
    "cascade": lambda: capacity.cascade(
        MODEL, gpu="h100", price="2", small="llama-3.2-1b", escalation_rate=0.3, num_prompts=60, **LOAD
    ),
    "fleet": lambda: quick_fleet(split_at=(500,), num_prompts=60, peak_to_mean=1.5),
    "side-by-side": lambda: capacity.compare_deployments(SIDES, slo=["ttft:p95:500ms"]),
    "frontier": lambda: capacity.frontier(
        MODEL, gpus=("h100",), loads=(1, 64), price="2", input_len=512, output_len=64
    ),
    "scale": lambda: capacity.scale(MODEL, gpu="h100", most_gpus=2, price="2"),
    "advise": lambda: capacity.advise(MODEL, gpu="h100", price="2", num_prompts=40, **LOAD),
    "stack": lambda: capacity.stack(MODEL, gpu="h100", price="2", num_prompts=40, order=("bf16",), **LOAD),
    "tornado": lambda: capacity.tornado(MODEL, gpu="h100", price="2", num_prompts=40, **LOAD),
}  # fmt: skip
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
RELATIVE = ("tornado", "advice")  # charts of relative changes
TENFOLD = 0.1  # US dollars per EUR: amounts are ten times as large, and have the same digits


@cache
def answer_of(verb: str) -> AnswerRecord:
    return ASKED[verb]()


def shown(answer: AnswerRecord, format: str, rate: float | None) -> str:
    if rate is None:
        return unescape(render(answer, format))
    with use_currency(f"EUR={rate}"):
        text = unescape(render(answer, format))
        if format == "html":  # charts are images
            text = re.sub(r"<figure>.*?</figure>", "", text, flags=re.DOTALL)
        return text


@pytest.mark.parametrize("verb", ASKED)
def test_table_at_a_rate_of_one_has_the_same_numbers_with_the_other_symbol(verb: str) -> None:
    answer = answer_of(verb)
    with use_currency("EUR=1"):
        note = currency_note()
    words = " ".join(shown(answer, "table", 1.0).split())
    assert words.endswith(note)
    assert words.removesuffix(note).split() == shown(answer, "table", None).replace("$", "€").split()
    assert "$" in shown(answer, "table", None)


@pytest.mark.parametrize("verb", ASKED)
def test_amounts_of_the_page_are_amounts_in_dollars_divided_by_the_rate(verb: str) -> None:
    dollars, euros = (shown(answer_of(verb), "html", rate) for rate in (1.0, TENFOLD))
    found = re.findall(rf"€({NUMBER})", dollars)
    converted = re.findall(rf"€({NUMBER})", euros)
    assert len(found) == len(converted)
    for before, after in zip(found, converted, strict=True):
        assert is_tenfold(before, after), (before, after)
    assert "$" not in euros


@pytest.mark.parametrize("verb", ASKED)
def test_cells_below_a_currency_symbol_are_amounts_divided_by_the_rate(verb: str) -> None:
    cells = money_cells(answer_of(verb))
    with use_currency(f"EUR={TENFOLD}"):
        converted = money_cells(answer_of(verb))
    assert len(cells) == len(converted)
    for (heading, before), (_, after) in zip(cells, converted, strict=True):
        for value, tenfold in zip(*(re.findall(NUMBER, text) for text in (before, after)), strict=True):
            assert is_tenfold(value, tenfold) or "%" in before, (heading, before, after)


def money_cells(answer: AnswerRecord) -> list[tuple[str, str]]:
    """Return heading and text of each cell below a heading with a dollar sign, except factors of the cost."""
    view = resolve_name(ANSWERS[answer.schema_name()].view)(answer)
    tables = [block for block in (*view.blocks, *view.detail) if isinstance(block, Table)]
    return [
        (column.heading, column.unit.text_with_interval(value_at(row, column.path)))
        for table in tables
        for column in table.columns
        if "$" in column.heading and column.unit != FACTOR
        for row in table.rows
    ]


def is_tenfold(before: str, after: str) -> bool:
    """Whether the second number is ten times the first, except for the rounding of both."""
    value, tenfold = (float(text.replace(",", "")) for text in (before, after))
    rounding = sum(
        factor * 0.5 * 10.0 ** -len(text.partition(".")[2]) for factor, text in ((10, before), (1, after))
    )
    return abs(10 * value - tenfold) <= rounding * 1.001 or abs(10 * value / tenfold - 1) < 0.01


@pytest.mark.parametrize("verb", ASKED)
def test_charts_show_the_currency_and_converted_amounts(verb: str) -> None:
    answer = answer_of(verb)
    before = {chart.name: chart for chart in answer_charts(answer)}
    with use_currency(f"EUR={TENFOLD}"):
        after = {chart.name: chart for chart in answer_charts(answer)}
    for name, chart in after.items():
        figure = chart.figure.to_plotly_json()
        assert "$" not in f"{figure} {chart.title} {chart.alt} {[list(row) for row in chart.rows]}", name
        for row, other in zip(before[name].rows, chart.rows, strict=True):
            for (key, value), (euro_key, converted) in zip(row.items(), other.items(), strict=True):
                assert euro_key == re.sub(rf"\$({NUMBER})?", "€", key) or "€" in euro_key
                if key.startswith("$") and isinstance(value, (int, float)) and name not in RELATIVE:
                    assert converted == pytest.approx(10 * value, rel=0.02), (name, key)


def test_records_and_rows_stay_in_dollars() -> None:
    answer = answer_of("cost")
    plain = {format: render(answer, format) for format in ("json", "csv")}
    with use_currency("EUR=2"):
        assert {format: render(answer, format) for format in ("json", "csv")} == plain
