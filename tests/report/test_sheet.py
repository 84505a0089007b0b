"""An answer on a page: question, numbers, charts, sources and command are there, and nothing of a name is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from html import escape, unescape
from typing import Any

import pytest

import capacity
from capacity.base import registry
from capacity.report.display import rate_and_interval, time_and_interval
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.sheet import answer_html, number_sources, page_heading
from capacity.report.subject import describe_answer, gpu_names
from capacity.report.tables import render

PLACE = {"gpu": "h100", "input_len": 600, "output_len": 60}
SIXTH = date(2026, 11, 6)
LARGEST = 60_000  # bytes of a page: the script of the plotting library alone takes eighty times as many


def words(page: str) -> str:
    """What a reader reads, charts aside."""
    without = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without)).split())


@pytest.fixture(scope="module")
def estimate() -> Any:
    return capacity.estimate("llama-3.1-8b", concurrency=8, price_tier="on-demand", **PLACE)


def test_a_page_holds_question_answer_charts_sources_and_commands(estimate: Any) -> None:
    page = render(estimate, "html", command="capacity estimate 'it'", python="import capacity\n")
    read = words(page)
    assert "<h1>Predict TTFT, TPOT, throughput and cost of a deployment</h1>" in page
    assert describe_answer(estimate) == (
        "llama-3.1-8b, 1 x h100-sxm-80gb, vllm@0.33, bf16 weights, 600 tokens in, 60 out, closed loop of 8 requests"
    )
    assert describe_answer(estimate) in read
    for shown in (*time_and_interval(estimate.ttft_s), *rate_and_interval(estimate.output_tokens_per_s)):
        assert shown in read
    assert estimate.cost is not None
    assert estimate.cost.source in read
    assert "Basis: fitted to published measurements" in read
    for warning in estimate.warnings:
        assert " ".join(warning.split()) in read
    assert "h100-sxm-80gb: " in read
    assert "datasheet, 2026-" in read
    assert "Command capacity estimate 'it'" in read
    assert "In Python import capacity" in read
    assert "--detail" not in read
    assert page.count("<svg") == len(answer_charts(estimate)) == 3
    assert len(page.encode()) < LARGEST
    assert not re.search(r'src=|href="(?!#)|@import|url\((?!#)', page)


def test_charts_of_a_page_say_of_what_they_are_and_the_day(estimate: Any) -> None:
    page = answer_html(estimate, [], made=SIXTH)
    charts = re.findall(r"<svg.*?</svg>", page, re.S)
    for chart in charts:
        assert "h100-sxm-80gb, vllm@0.33" in chart
        assert "2026-11-06" in chart
    assert page.rstrip().endswith("2026-11-06</footer></body></html>")


ANSWERS = {
    "fit": lambda: capacity.fit("llama-3.1-70b", gpu="h100"),
    "explain": lambda: capacity.explain("llama-3.1-8b", batch_size=4, **PLACE),
    "gpu-comparison": lambda: capacity.compare_gpus(
        "llama-3.1-8b", gpus=("h100", "l4"), batch_size=4, input_len=600, output_len=60
    ),
    "frontier": lambda: capacity.frontier(
        "llama-3.1-8b", gpus=("h100", "l4"), loads=(1, 8), input_len=600, output_len=60
    ),
    "load-sweep": lambda: capacity.load_sweep("llama-3.1-8b", loads=(1, 8), **PLACE),
    "simulation": lambda: capacity.simulate("llama-3.1-8b", request_rate=8.0, num_prompts=40, **PLACE),
    "cost": lambda: capacity.cost("llama-3.1-8b", request_rate=8.0, num_prompts=40, price="2", **PLACE),
    "cascade": lambda: capacity.cascade(
        "llama-3.1-8b",
        small="llama-3.2-1b",
        small_gpu="l4",
        escalation_rate=0.3,
        request_rate=8.0,
        num_prompts=40,
        price="2",
        **PLACE,
    ),
    "attention-io": lambda: capacity.attention_traffic("llama-3.1-8b", gpu="h100"),
    "speculate": lambda: capacity.speculate("llama-3.1-8b", gpu="h100", batches=(1, 8)),
}
WITHOUT_CHARTS = {"attention-io"}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_a_page(name: str) -> None:
    answer = ANSWERS[name]()
    page = render(answer, "html", command="capacity it")
    assert escape(page_heading(name)) in page
    assert (page.count("<svg") > 0) is (name not in WITHOUT_CHARTS)
    assert len(page.encode()) < LARGEST
    assert "capacity it" in words(page)
    assert all(f"{gpu}: " in words(page) for gpu in gpu_names(answer))


def test_every_answer_has_a_heading_of_one_line() -> None:
    for name in registry.ANSWERS:
        question = page_heading(name)
        assert "\n" not in question
        assert not question.endswith(".")
        assert question[0].isupper()
        assert len(question) > len(name)


def test_nothing_of_an_answer_is_markup(estimate: Any) -> None:
    foreign = "<script>alert(1)</script>[bold]x[/bold]"
    hostile = replace(
        estimate,
        engine=foreign,
        warnings=(foreign,),
        verdict_reason=foreign,
        model=replace(estimate.model, name=foreign),
        gpu=replace(estimate.gpu, name=f"{foreign}"),
    )
    page = render(hostile, "html", command=foreign, python=foreign)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<html") == page.count("</html>") == 1


def test_nothing_is_opened_because_an_answer_names_it(estimate: Any, tmp_path: Any) -> None:
    named = tmp_path / "config.json"
    named.write_text("{}")
    hostile = replace(
        estimate, model=replace(estimate.model, name=str(named)), gpu=replace(estimate.gpu, name=str(named))
    )
    said = number_sources(hostile)
    assert f"{named}: custom configuration" in said
    assert f"{named}: custom profile" in said
