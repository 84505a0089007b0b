"""KV as pictures: bytes by context, and what each method buys over the whole KV."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.kv import context_chart, eviction_chart, eviction_rows, kind_rows, published_rows
from capacity.report.figures.of_answer import charts_of

CONTEXT = 32768


def test_bytes_and_ratios_are_the_answers() -> None:
    answer = capacity.kv("llama-3.1-8b", gpus="h100", eviction="all")
    (line,) = context_chart(answer).figure.data
    assert [2**30 * y for y in line.y] == pytest.approx(list(answer.rows[0].request_bytes.values()))
    rows = [row for row in answer.evictions if row.context_tokens == CONTEXT]
    whole, methods = rows[0], rows[1:]
    step, held, rate = eviction_chart(answer, CONTEXT).figure.data
    assert [1 + x for x in step.x] == pytest.approx([row.speedup for row in methods])
    assert [1 + x for x in held.x] == pytest.approx([(row.held or 0) / (whole.held or 1) for row in methods])
    assert [1 + x for x in rate.x] == pytest.approx(
        [(row.tokens_per_s or 0) / (whole.tokens_per_s or 1) for row in methods]
    )
    assert [row["method"] for row in eviction_rows(answer, CONTEXT)] == [row.method for row in rows]
    assert [row["method"] for row in published_rows(answer)] == [row.method for row in methods]
    assert kind_rows(answer)[0]["as it is"] == answer.rows[0].bytes_per_token / 1024
    drawn = charts_of(answer)
    assert [each.name for each in drawn] == ["kv_contexts", *["kv_eviction"] * len(answer.contexts)]
    assert all("<svg" in each.svg() for each in drawn)


def test_what_does_not_fit_has_no_bar() -> None:
    answer = capacity.kv("llama-3.1-8b", gpus="h100", eviction="snapkv")
    _, held, rate = eviction_chart(answer, 1 << 20).figure.data
    assert (held.x, rate.x) == ((None,), (None,))
    assert "does not fit" in eviction_chart(answer, 1 << 20).alt


def test_models_and_gpus_beside_each_other_have_bytes_alone() -> None:
    answer = capacity.kv(("llama-3.1-8b", "qwen3-8b"), eviction="snapkv")
    assert [each.name for each in charts_of(answer)] == ["kv_contexts"]
