"""`fit`, `estimate` and `explain` as tables: the verdict, the parts of memory, and what binds a step."""

from __future__ import annotations

import capacity
from capacity.report.display import STANDARD, time_and_interval
from capacity.report.tables import render
from capacity.report.views.one_load import estimate_facts
from capacity.report.views.units import USD


def test_the_verdict_comes_first_with_the_reason_and_the_least_parallelism() -> None:
    assert render(capacity.fit("llama-3.1-8b", gpu="h100"), "table").splitlines()[0].endswith(": fits")
    answer = capacity.fit("llama-3.1-70b", gpu="h100")
    text = render(answer, "table")
    assert "does not fit:" in text.splitlines()[0]
    assert answer.smallest_tensor_parallel_size is not None
    (line,) = (line for line in text.splitlines() if "smallest TP" in line)
    assert str(answer.smallest_tensor_parallel_size) in line.split()


def test_every_part_of_memory_has_its_line() -> None:
    answer = capacity.fit("llama-3.1-8b", gpu="h100")
    text, memory = render(answer, "table"), answer.memory
    for part in (
        memory.weights_bytes,
        memory.activations_bytes,
        memory.overhead_bytes,
        memory.kv_cache_bytes,
    ):
        assert STANDARD.memory_text(part) in text


def test_a_step_is_shown_by_its_operators() -> None:
    load = {"gpu": "h100", "input_len": 500, "output_len": 50, "batch_size": 8}
    answer = capacity.estimate("llama-3.1-8b", **load)
    text = render(answer, "table")
    assert "  ".join(time_and_interval(answer.ttft_s)).split() == text.partition("TTFT")[2].split()[:6]
    assert "batch of 8 requests" in text
    alone = capacity.estimate("llama-3.1-8b", **load | {"batch_size": 1})
    assert "single request" in render(alone, "table")
    why = capacity.explain("llama-3.1-8b", **load)
    text = render(why, "table")
    for response in why.responses:
        assert f"{response.change:+.0%} {response.resource}" in text


def test_a_load_without_a_steady_state_has_its_bill_and_no_price_to_see_first() -> None:
    answer = capacity.estimate(
        "llama-3.1-8b", gpu="h100", input_len=500, output_len=50, request_rate=4000.0, price="2"
    )
    assert answer.cost is not None
    first = {fact.first: fact.instead for fact in estimate_facts(answer) if fact.first}
    assert first["$ a month"] == (f"${answer.cost.usd_per_month:,.0f}", "cannot serve this load")
    price = USD.texts(answer.usd_per_million_output_tokens)[0]
    assert first["$ per 1M output"] == ("-", f"overloaded; full load {price}")
    assert price in render(answer, "table")
