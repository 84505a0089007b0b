"""Runs that are watched: the minute that is recorded, and what the typing sides are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from capacity_app.watch_view import MAX_REQUESTS, MAX_TOKENS, first_minute, typing_data, typing_file

import capacity
from capacity.report.display import Units, time_and_interval

PLACE = {"gpu": "h100", "input_len": 600}


class Shown:
    units = Units()


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"num_prompts": 5000, "request_rate": 2.0}, {"num_prompts": 120}),
        ({"num_prompts": 5000, "request_rate": 50.0}, {"num_prompts": MAX_REQUESTS}),
        ({"num_prompts": 30, "request_rate": 2.0}, {"num_prompts": 30}),
        ({"num_prompts": 30, "request_rate": 0.001}, {"num_prompts": 1}),
        ({"num_prompts": 5000, "concurrency": 8}, {"num_prompts": MAX_REQUESTS}),
        ({"trace": "t.csv", "trace_until_s": 600.0}, {"trace_until_s": 60.0}),
        ({"trace": "t.csv", "trace_until_s": 20.0}, {"trace_until_s": 20.0}),
        ({"request_rate": float("inf"), "num_prompts": 50}, {"num_prompts": 50}),
    ],
)
def test_the_first_minute_or_as_much_as_a_picture_holds(asked: dict[str, Any], kept: dict[str, Any]) -> None:
    found, words = first_minute(asked)
    assert found == {**asked, **kept}
    assert f"{next(iter(kept.values())):,g}" in words


def test_a_side_types_at_the_estimates_means() -> None:
    answer = capacity.estimate("llama-3.1-8b", batch_size=4, output_len=200, **PLACE)
    inputs: Any = Shown()
    side = typing_data("A", answer, inputs)
    assert side is not None
    assert answer.ttft_s is not None
    assert answer.tpot_s is not None
    assert (side["ttft_s"], side["tpot_s"], side["tokens"]) == (answer.ttft_s.value, answer.tpot_s.value, 200)
    assert side["end_s"] == pytest.approx(answer.ttft_s.value + 199 * answer.tpot_s.value)
    assert time_and_interval(answer.tpot_s)[0] in side["summary"]
    assert "1 x h100-sxm-80gb" in side["name"]
    long = typing_data("A", capacity.estimate("llama-3.1-8b", batch_size=4, output_len=5000, **PLACE), inputs)
    assert long is not None
    assert long["tokens"] == MAX_TOKENS
    for output_len, load in ((1, {"batch_size": 4}), (200, {"request_rate": 1e4})):
        none = capacity.estimate("llama-3.1-8b", output_len=output_len, **load, **PLACE)
        assert typing_data("A", none, inputs) is None


def test_what_is_typed_is_text_and_never_markup() -> None:
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", typing_file("js"))


def test_the_typing_view_asks_another_gpu_where_nothing_is_pinned(dashboard: Callable[..., Any]) -> None:
    opened = dashboard("estimate", view="typing", batch="8", typing_gpu="h200-sxm-141gb").settled()
    assert opened.refusals == []
    assert not opened.at.exception
    assert opened.at.selectbox(key="typing_gpu").value == "h200-sxm-141gb"
