"""Keeping less KV: what a pool's engines then hold, read and compute, by closed form; and refusals in one line."""

from __future__ import annotations

import math

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.deployment.launch_writers import launch_command
from capacity.model import load_model
from capacity.pool.kv_eviction import evict_to_budget, find_eviction, kv_evictions
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape
from capacity.step.shape import prefill_shape

PROMPT, BUDGET = 20_000, 1024


def pool(**fields: object) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100", max_model_len=32_768, **fields))  # type: ignore[arg-type]


def seconds(resolved: ResolvedPool, *, decode: bool) -> float:
    make = decode_shape(16, PROMPT, window_tokens=resolved.model.window_tokens)
    prompt = prefill_shape(1, PROMPT, window_tokens=resolved.model.window_tokens)
    return resolved.step_model.step_seconds(make if decode else prompt)


def test_a_decode_step_reads_what_is_kept() -> None:
    """Of a context of 20,000 it is the step of a context of 1,024, through the same step model."""
    plain, kept = pool(), pool(kv_eviction="snapkv", kv_budget=BUDGET)
    assert seconds(kept, decode=True) == pytest.approx(
        plain.step_model.step_seconds(decode_shape(16, BUDGET))
    )
    assert seconds(kept, decode=True) < 0.5 * seconds(plain, decode=True)


def test_a_prompt_is_computed_whole_before_anything_is_dropped() -> None:
    """Scores are all computed again where every query's count: half of attention's products more, as d = d_v."""
    plain, snapkv = pool(), pool(kv_eviction="snapkv", kv_budget=BUDGET)
    assert seconds(snapkv, decode=False) == pytest.approx(seconds(plain, decode=False))
    h2o, sinks = (pool(kv_eviction=name, kv_budget=BUDGET) for name in ("h2o", "streaming-llm"))

    def attention_flops(of: ResolvedPool) -> float:
        cost = of.step_model.step_cost(prefill_shape(1, PROMPT, window_tokens=of.model.window_tokens))
        return sum(op.flops for op in cost.operators if op.name == "attention prefill")

    pairs = PROMPT * (PROMPT + 1) // 2
    assert attention_flops(plain) == pytest.approx(32 * 4 * 32 * 128 * pairs)
    assert attention_flops(h2o) == pytest.approx(1.5 * attention_flops(plain))
    cut = BUDGET * (BUDGET + 1) // 2 + (PROMPT - BUDGET) * BUDGET
    assert attention_flops(sinks) == pytest.approx(attention_flops(plain) * cut / pairs)


def test_requests_shrink_to_their_budget_once_their_prompt_is_computed() -> None:
    """One of them holds its prompt, the others 1,024 tokens and a block that is begun."""
    kept = pool(kv_eviction="snapkv", kv_budget=BUDGET)
    blocks, whole, after = kept.memory.usable_blocks, math.ceil(PROMPT / 16), BUDGET // 16 + 1
    assert kept.concurrent_requests(PROMPT) == 1 + (blocks - whole) // after
    assert kept.concurrent_requests(PROMPT) > 10 * pool().concurrent_requests(PROMPT)
    short = pool(kv_eviction="snapkv", kv_budget=BUDGET)
    assert short.concurrent_requests(160) == blocks // 10  # below the budget nothing is dropped


def test_neither_chunks_nor_shared_prefixes() -> None:
    kept, sinks = pool(kv_eviction="snapkv", kv_budget=9), pool(kv_eviction="streaming-llm", kv_budget=9)
    assert (kept.chunked_prefill, kept.prefix_caching) == (False, False)
    assert (sinks.chunked_prefill, sinks.prefix_caching) == (True, False)
    assert kept.max_num_batched_tokens >= kept.max_model_len  # a prompt is one step
    assert [note for note in kept.notes if "vllm has no flag for it" in note]
    assert [note for note in kept.notes if "not lossless" in note]
    assert not [note for note in pool().notes if "KV" in note]


def test_an_engine_that_keeps_all_of_a_window_drops_it_all_the_same() -> None:
    """TGI's windows save no memory; what is evicted does, or it would not be eviction."""
    tgi = pool(engine="tgi", kv_eviction="streaming-llm", kv_budget=64)
    assert tgi.memory.layout.window_groups
    assert not tgi.memory.layout.full_groups


def test_taking_it_away_gives_the_whole_model_back() -> None:
    model = load_model("llama-3.1-8b")
    cut = evict_to_budget(model, Pool(gpu="h100", kv_eviction="snapkv", kv_budget=8))
    assert cut.window_tokens == 8
    assert model.window_tokens is None
    assert evict_to_budget(cut, Pool(gpu="h100")) == model
    assert evict_to_budget(model, Pool(gpu="h100")) is model


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        ("llama-3.1-8b", {"kv_eviction": "snapkv"}, "add --kv-budget"),
        ("llama-3.1-8b", {"kv_eviction": "kivi-2", "kv_budget": 9}, "is a KV format"),
        ("llama-3.1-8b", {"kv_eviction": "dmc", "kv_budget": 9}, "keeps a fraction"),
        (
            "llama-3.1-8b",
            {"kv_eviction": "h2o", "kv_budget": 9, "enable_prefix_caching": True},
            "need the evicted tokens",
        ),
        (
            "llama-3.1-8b",
            {"kv_eviction": "h2o", "kv_budget": 9, "enable_chunked_prefill": True},
            "in one step",
        ),
        ("gemma-3-27b", {"kv_eviction": "h2o", "kv_budget": 9}, "windows, latents or recurrent states"),
        ("deepseek-v3", {"kv_eviction": "h2o", "kv_budget": 9, "tensor_parallel_size": 8}, "with KV heads"),
    ],
)
def test_what_does_not_go_together_is_refused(model: str, fields: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        resolve(model, Pool(gpu="h200", **fields))  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="snapkv"):
        find_eviction("snap-kv2")
    assert find_eviction("Streaming_LLM").name == "streaming-llm"


def test_every_method_has_a_published_figure_with_source_and_date() -> None:
    for method in kv_evictions().values():
        assert method.published, method.name
        assert all(each.source and each.date for each in method.published), method.name


def test_scores_that_are_looked_at_again_are_pairs_of_the_prompt() -> None:
    """All of them (the triangle), those of the last 32 queries, or none."""
    h2o, snapkv, sinks = (find_eviction(name) for name in ("h2o", "snapkv", "streaming-llm"))
    assert h2o.scored_pairs(100) == 5050
    assert snapkv.scored_pairs(100) == sum(range(69, 101))
    assert snapkv.scored_pairs(10) == 55
    assert sinks.scored_pairs(100) == 0


def test_a_launch_says_that_the_engine_keeps_all() -> None:
    launch = launch_command("vllm", "m", Pool(gpu="h100", kv_eviction="snapkv", kv_budget=8))
    assert "--kv-eviction" not in launch.words
    assert any("keeps all KV" in note for note in launch.notes)
