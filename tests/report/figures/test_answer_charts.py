"""The charts of an answer: those of its kind, each with what it is of; what cannot be drawn is left out."""

from __future__ import annotations

from dataclasses import replace

import capacity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.subject import describe_answer

PLACE = {"gpu": "h100", "input_len": 600, "output_len": 60}


def test_charts_say_of_what_they_are() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", loads=(1, 8), **PLACE)
    drawn = answer_charts(sweep)
    assert [chart.title.partition(" against")[0] for chart in drawn] == ["TTFT", "TPOT", "Output tokens/s"]
    assert {chart.subject for chart in drawn} == {describe_answer(sweep)}
    priced = answer_charts(capacity.load_sweep("llama-3.1-8b", loads=(1, 8), price="2", **PLACE))
    assert len(priced) == 4


def test_a_profile_of_ones_own_has_no_roof_to_look_up() -> None:
    answer = capacity.estimate("llama-3.1-8b", batch_size=4, **PLACE)
    own = replace(answer, gpu=replace(answer.gpu, name="mine"))
    assert [chart.name for chart in answer_charts(answer)] == ["decode_step", "ttft", "roofline"]
    assert [chart.name for chart in answer_charts(own)] == ["decode_step", "ttft"]
    single = capacity.estimate("llama-3.1-8b", batch_size=4, **{**PLACE, "output_len": 1})
    assert [chart.name for chart in answer_charts(single)] == ["prefill_step", "ttft", "roofline"]


def test_an_answer_without_charts_has_none() -> None:
    assert answer_charts(capacity.attention_traffic("llama-3.1-8b", gpu="h100")) == ()
