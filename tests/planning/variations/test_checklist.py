"""The checklist: every item is a change to try, or refused with its reason."""

from __future__ import annotations

import pytest
from listed_advice import LOAD, MODEL, line

from capacity import advise, simulate
from capacity.planning.variations.advice import AdviceList

CHECKLIST = (
    "quantize the weights", "KV cache in fp8", "KV heads", "chunked prefill", "tensor parallelism", "right-size",
    "speculative decoding", "max_model_len", "swap", "host memory", "spot", "queue requests", "batch", "token budget",
    "smaller model", "quarter of the layers", "half of the layers", "of the width", "2:4 sparse",
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
        for found in (*answer.advice, *answer.without_benefit)
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
    assert found.quality_loss_change is None
    assert found.effects is not None
    given_up = line(advise(MODEL, **asked, kv_eviction="h2o", kv_budget=512), "whole KV cache")
    assert given_up.effects is not None


def test_lookahead_is_tried_where_the_engine_has_it() -> None:
    asked = LOAD | {"num_prompts": 12, "output_len": 16}
    with_it, without = (advise(MODEL, **asked, engine=name) for name in ("tensorrt-llm", "vllm"))
    found = line(with_it, "lookahead")
    assert found.refused is None, found.refused
    assert "--speculator lookahead" in found.flags
    assert not [each for each in (*without.advice, *without.refused) if "lookahead" in each.change]


def test_drafts_in_use_can_be_turned_off() -> None:
    found = line(advise(MODEL, **(LOAD | {"num_prompts": 40}), speculator="ngram"), "speculative decoding")
    assert found.change.startswith("turn off")
    assert found.effects is not None


def test_techniques_in_use_are_not_taken_away(answer: AdviceList) -> None:
    """Their value is the question of `capacity stack`."""
    found = (*answer.advice, *answer.without_benefit, *answer.refused)
    assert not [line.change for line in found if "give up" in line.change or "worth" in line.change]


def test_paging_and_flash_attention_are_advised_where_they_are_off() -> None:
    load = LOAD | {"num_prompts": 60, "max_model_len": 1024}
    for text, off, on in (
        ("use FlashAttention", {"attn_implementation": "eager"}, {}),
        ("use a paged KV cache", {"kv_layout": "contiguous"}, {}),
    ):
        effects = line(advise(MODEL, **load, **off, price="2"), text).effects
        assert effects is not None
        runs = [simulate(MODEL, **load, **extra).run.to_dict()["p95_e2el_ms"] for extra in (off, on)]
        assert 1e3 * (effects.e2e_p95_s or 0) == pytest.approx(runs[1] - runs[0], abs=1e-6)


def test_fp32_that_was_asked_for_is_given_up() -> None:
    found = line(advise(MODEL, **(LOAD | {"num_prompts": 20}), dtype="float32"), "instead of FP32")
    assert found.effects is not None
    assert (found.effects.e2e_p95_s or 0) < 0


def test_paging_makes_full_load_cheaper() -> None:
    """A request reserves 1,024 tokens and needs 240: of a KV cache of 4,096 four run at a time in place of 17."""
    load = LOAD | {"random_prefix_len": 0, "num_gpu_blocks_override": 257, "max_model_len": 1024}
    answer = advise(MODEL, **load, price="2", kv_layout="contiguous")
    found = line(answer, "use a paged KV cache").effects
    assert found is not None
    assert answer.base.usd_per_request_full is not None
    assert (found.usd_per_request_full or 0) < -0.5 * answer.base.usd_per_request_full
