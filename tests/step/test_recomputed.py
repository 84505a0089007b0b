"""Steps without a KV cache: each token is a prompt as long as all before it."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import build
from capacity.deployment.pool import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.step.shape import without_kv_cache


def pool(model: str = "llama-3.1-8b", **fields: object) -> ResolvedPool:
    return resolve(
        model, build(Pool, {"gpu": "h100", "enforce_eager": True, "max_model_len": 8192, **fields})
    )


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite", "qwen3-30b-a3b"])
def test_an_answer_is_the_sum_of_prefills(model: str) -> None:
    """Prompt of 700, 50 tokens: the prefills of 700 to 749 tokens, whatever the layers."""
    with_cache, without = pool(model).step_model, pool(model, use_cache=False).step_model
    window = with_cache.model.window_tokens
    steps = [prefill_shape(1, 700, window_tokens=window)]
    steps += [decode_shape(1, 700 + place, window_tokens=window) for place in range(1, 50)]
    prefills = [
        with_cache.step_seconds(prefill_shape(1, 700 + place, window_tokens=window)) for place in range(50)
    ]
    assert [without.step_seconds(shape) for shape in steps] == pytest.approx(prefills, rel=1e-12)


def test_tokens_computed_are_quadratic() -> None:
    n = 128
    computed = sum(without_kv_cache(decode_shape(1, length)).num_tokens for length in range(1, n + 1))
    assert computed == n * (n + 1) // 2


def test_a_batch_of_equal_rows_is_a_batch_of_prompts() -> None:
    assert without_kv_cache(decode_shape(4, 100)) == prefill_shape(4, 100)
    assert without_kv_cache(decode_shape(4, 100, window_tokens=32), window_tokens=32) == prefill_shape(
        4, 100, window_tokens=32
    )


def test_rows_of_several_lengths_are_as_equal_as_they_can_be() -> None:
    shape = StepShape(decode_sequences=3, decode_context_tokens=10, decode_window_context_tokens=10)
    assert without_kv_cache(shape).prefill_pairs == 2 * 6 + 10
    assert without_kv_cache(shape).prefill_tokens == 10


def test_a_later_chunk_computes_the_earlier_ones_again() -> None:
    chunk = prefill_shape(1, 100, cached_tokens=300)
    assert without_kv_cache(chunk) == prefill_shape(1, 400)


def test_a_prompt_stays_a_prompt() -> None:
    shape = prefill_shape(3, 512)
    assert without_kv_cache(shape) == shape


def test_drafts_have_no_place() -> None:
    with pytest.raises(InvalidInput, match="KV cache"):
        without_kv_cache(decode_shape(1, 10)._replace(draft_tokens=2))


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"speculator": "ngram"}, "--speculator"),
        ({"enable_prefix_caching": True}, "--enable-prefix-caching"),
        ({"kv_offloading_size": 4.0}, "--kv-offloading-size"),
    ],
)
def test_what_needs_a_cache_is_refused(fields: dict[str, object], flag: str) -> None:
    with pytest.raises(InvalidInput, match=flag):
        pool(use_cache=False, **fields)


def test_an_engine_that_always_keeps_one_says_so() -> None:
    assert any("always keeps a KV cache" in note for note in pool(use_cache=False).notes)
    hf = pool(use_cache=False, engine="hf-transformers", kv_layout="contiguous", enforce_eager=False)
    assert not any("always keeps" in note for note in hf.notes)
    assert not pool(use_cache=False, enable_prefix_caching=None).prefix_caching


def test_the_table_of_a_step_adds_up() -> None:
    steps = pool(use_cache=False).step_model
    shape = decode_shape(2, 300)
    assert steps.step_cost(shape).seconds == pytest.approx(steps.step_seconds(shape), rel=1e-12)


def test_the_simulators_line_is_close_to_the_curve() -> None:
    """Between two knots the time is a straight line, where the true one is a little convex."""
    steps = pool(use_cache=False).step_model
    for context in (700, 1500, 3000):
        shape = decode_shape(1, context)
        assert steps.step_ps(shape) / 1e12 == pytest.approx(steps.step_seconds(shape), rel=0.01)
    assert steps.step_data() is None
