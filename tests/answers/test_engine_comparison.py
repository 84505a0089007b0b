"""Engines side by side: each row is what `estimate` says of that engine; the rest is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.answers.engine_comparison import DEFAULT_ENGINES
from capacity.base.errors import InvalidInput

LOAD: dict[str, Any] = {"input_len": 1000, "output_len": 200, "concurrency": 16}


def test_rows_are_the_estimates_and_the_fits_of_each_engine() -> None:
    answer = capacity.compare_engines("llama-3.1-8b", gpu="h100", max_model_len=8192, **LOAD)
    assert sorted(row.engine.split("@")[0] for row in answer.rows) == sorted(DEFAULT_ENGINES)
    rates = []
    for row in answer.rows:
        name = row.engine.split("@")[0]  # a named release is surer than a name
        own = capacity.estimate("llama-3.1-8b", gpu="h100", engine=name, max_model_len=8192, **LOAD)
        assert row.point.output_tokens_per_s == own.output_tokens_per_s
        assert (row.point.ttft_s, row.point.tpot_s, row.point.e2e_s) == (own.ttft_s, own.tpot_s, own.e2e_s)
        assert row.kv_capacity_tokens == own.kv_capacity_tokens
        if row.point.steady:
            rates.append(own.output_tokens_per_s.value)
    assert rates == sorted(rates, reverse=True)


def test_what_an_engine_lacks_is_what_its_file_says() -> None:
    rows = capacity.compare_engines("llama-3.1-8b", gpu="h100", max_model_len=8192, **LOAD).rows
    lacks = {row.engine.split("@")[0]: row.lacks for row in rows}
    assert not lacks["vllm"]
    assert {"paged KV", "CUDA graphs", "prefix caching"} <= set(lacks["hf-transformers"])
    assert "chunked prefill" in lacks["tensorrt-llm"]
    table = {row.engine: row for row in capacity.engine_table("h100").rows}
    for row in rows:
        assert row.sourced_fraction == table[row.engine].sourced_fraction
        assert ("paged KV" in row.lacks) is not table[row.engine].paged


def test_who_does_not_run_it_is_a_row_with_its_reason() -> None:
    rows = capacity.compare_engines("llama-3.1-8b", gpu="m4-max", **LOAD).rows
    refused = {row.engine.split("@")[0]: row for row in rows if not row.point.fits}
    assert refused.keys() == {"tensorrt-llm", "tgi"}
    for row in refused.values():
        assert "does not run on Apple silicon" in (row.point.reason or "")
        assert row.weights_bytes is None
    assert [row.point.fits for row in rows] == sorted((row.point.fits for row in rows), reverse=True)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_model_len": 10**6}, "exceeds the 131072 positions"),
        ({"engines": ["vllm", "vlm"]}, "vlm"),
        ({"engines": []}, "no engines"),
        ({"input_len": None}, "no lengths"),
    ],
)
def test_what_no_engine_can_be_asked_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        capacity.compare_engines("llama-3.1-8b", gpu="h100", **{**LOAD, **fields})
