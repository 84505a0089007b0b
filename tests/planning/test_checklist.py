"""The checklist: every item is a change to try, or refused with its reason."""

from __future__ import annotations

import pytest
from listed_advice import LOAD, MODEL, line

from capacity import advise
from capacity.planning.advice import AdviceList

CHECKLIST = (
    "quantize the weights", "KV cache in fp8", "KV heads", "prefix cache", "chunked prefill", "CUDA graphs",
    "tensor parallelism", "speculative decoding", "max_model_len", "swap", "host memory", "streaming", "right-size",
    "spot", "queue requests", "batch", "token budget",
)  # fmt: skip


@pytest.mark.parametrize("item", CHECKLIST)
def test_every_item_is_evaluated_or_refused_with_a_reason(answer: AdviceList, item: str) -> None:
    found = line(answer, item)
    if found.refused is None:
        assert found.effects is not None
        assert found.effects.e2e_p95_s is not None
        assert found.effects.usd_per_hour is not None
        assert found.effects.usd_per_request_full is not None
        assert found.quality
    else:
        assert len(found.refused) > 10
        assert found.effects is None


def test_a_cheaper_gpu_is_cheaper_and_holds_the_model(answer: AdviceList) -> None:
    tried = [
        found
        for found in answer.advice
        if found.change.startswith("right-size to ") and "--gpu" in found.flags
    ]
    assert 1 <= len(tried) <= 3
    assert all(found.effects is not None and (found.effects.usd_per_hour or 0) < 0 for found in tried)


def test_grouped_heads_help_a_model_without_them() -> None:
    """Llama 2 7B has a KV head for each of its 32 query heads: 8 are a quarter of the cache to read."""
    found = line(advise("llama-2-7b", **LOAD, price="2"), "KV heads")
    assert "8 KV heads (GQA)" in found.change
    assert found.effects is not None
    assert (found.effects.tpot_p95_s or 0) < 0
    assert (found.effects.usd_per_request_full or 0) < 0


def test_a_latent_cache_has_no_heads_to_group() -> None:
    found = line(advise("deepseek-v2-lite", **(LOAD | {"num_prompts": 20})), "GQA")
    assert found.refused is not None
    assert "mla" in found.refused.lower()


def test_the_engine_that_swaps_is_asked_to() -> None:
    asked = {**LOAD, "num_prompts": 40, "engine": "vllm@0.6", "max_model_len": 2048}
    found = line(advise(MODEL, **asked), "swap")
    assert found.refused is None, found.refused
    assert found.effects is not None
    assert "--preemption-mode swap" in found.flags


def test_long_requests_keep_a_part_of_their_kv() -> None:
    """Decode then reads 1,024 of some 8,100 tokens; what it costs in quality is nobody's promise."""
    asked = LOAD | {"num_prompts": 40, "input_len": 8000, "max_model_len": 16384}
    found = line(advise(MODEL, **asked), "SnapKV")
    assert found.refused is None, found.refused
    assert "--kv-eviction snapkv" in found.flags
    assert not found.quality_known
    assert found.effects is not None
    given_up = line(advise(MODEL, **asked, kv_eviction="h2o", kv_budget=512), "whole KV")
    assert given_up.effects is not None


def test_drafts_in_use_are_given_up() -> None:
    found = line(advise(MODEL, **(LOAD | {"num_prompts": 40}), speculator="ngram"), "speculative decoding")
    assert found.change.startswith("give up")
    assert found.effects is not None
