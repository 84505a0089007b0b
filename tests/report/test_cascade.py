"""The cascade's tables: whole engines and many, intervals where there are any, and words for rates without an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.report.cascade import cascade_tables
from capacity.report.layout import printed

LENGTHS = {"input_len": 600, "output_len": 60, "request_rate": 4.0}


@pytest.fixture(scope="module")
def answer() -> CascadeAnswer:
    return capacity.cascade(
        "llama-3.3-70b", api="DeepInfra", api_ttft_s=0.5, small="llama-3.2-1b", small_gpu="l4", escalation_rate=0.25,
        price="0.5", **LENGTHS,
    )  # fmt: skip


def test_every_place_and_the_whole_are_shown(answer: CascadeAnswer) -> None:
    text = printed(cascade_tables(answer))
    assert "llama-3.2-1b before llama-3.3-70b: 4 requests/s of 600 tokens in, 60 out" in text
    assert "API of DeepInfra" in text
    assert "25.0%" in text
    assert f"{answer.cascade.usd_per_month.value:,.0f}" in text
    assert f"{answer.cascade.billed_gpus}" in text
    alone = next(line for line in text.splitlines() if line.startswith(" mean TTFT"))
    assert "500.0 ms" in alone  # as measured: without an interval
    assert alone.count(" to ") == 1


def test_rates_without_an_end_are_words(answer: CascadeAnswer) -> None:
    even = replace(answer.break_even, escalation_rate_at_scale=None, escalation_rate_here=1.0)
    text = printed(cascade_tables(replace(answer, break_even=even)))
    assert "at no rate" in text
    assert " any " in next(line for line in text.splitlines() if "the same, whole engines here" in line)
