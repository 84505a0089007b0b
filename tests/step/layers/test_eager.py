"""Attention without FlashAttention, and by its versions: closed forms, and the published factors."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.base.errors import InvalidInput
from capacity.deployment import build
from capacity.deployment.pool import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import OpCost, StepShape, decode_shape, prefill_shape

MHA, GQA = "llama-2-7b", "llama-3.1-8b"


def pool(model: str, gpu: str, attention: str = "auto", **fields: object) -> ResolvedPool:
    return resolve(model, build(Pool, {"gpu": gpu, "attn_implementation": attention, **fields}))


def attention(resolved: ResolvedPool, shape: StepShape) -> OpCost:
    return next(
        op for op in resolved.step_model.step_cost(shape).operators if op.name.startswith("attention ")
    )


def named(resolved: ResolvedPool, shape: StepShape, name: str) -> OpCost:
    return next(op for op in resolved.step_model.step_cost(shape).operators if op.name == name)


@pytest.mark.parametrize("tokens", [1024, 4096])
def test_scores_go_through_hbm_four_times(tokens: int) -> None:
    """Of 32 layers of 32 heads of 128: Q, K, V, O once, and 4 N^2 values, of 2 bytes; the whole square's products."""
    cost = named(
        pool(MHA, "a100", "eager", max_model_len=4096), prefill_shape(1, tokens), "attention prefill"
    )
    assert cost.bytes == 32 * 32 * 2 * (4 * tokens * 128 + 4 * tokens**2)
    assert cost.flops == 32 * 32 * 4 * tokens**2 * 128


def test_keys_are_copied_for_every_query_head_where_heads_share_them() -> None:
    """A decode at 1,000 tokens: KV once, written and read four times as wide; Q and O; 4 scores a head and token."""
    context = 1000
    cost = named(pool(GQA, "h100", "eager", max_model_len=4096), decode_shape(1, context), "attention decode")
    kv, wide, row = 2 * 8 * 128 * 2, 2 * 32 * 128 * 2, 2 * 32 * 128 * 2
    assert cost.bytes == 32 * (context * (kv + 2 * wide) + row + 4 * context * 32 * 2)


def test_fp32_moves_scores_of_four_bytes() -> None:
    shape = prefill_shape(1, 2048)
    half, single = (
        named(pool(MHA, "a100", "eager", max_model_len=2048, dtype=dtype), shape, "attention prefill").bytes
        for dtype in ("auto", "float32")
    )
    assert single == 2 * half


@pytest.mark.parametrize(
    ("gpu", "version", "times"),
    [("a100", 2, 1.0), ("a100", 1, 2.0), ("h100", 3, 1.0), ("h100", 2, 1.75), ("h100", 1, 3.5)],
)
def test_long_prompts_take_the_published_factor_longer(gpu: str, version: int, times: float) -> None:
    shape = prefill_shape(1, 100_000)
    fitted, other = (
        named(pool(GQA, gpu, name), shape, "attention prefill").seconds
        for name in ("auto", f"flash_attention_{version}")
    )
    assert other / fitted == pytest.approx(times, rel=0.02)
    assert other >= fitted


def test_the_order_of_kernels_is_that_of_their_ages() -> None:
    shape = prefill_shape(1, 16_384)
    names = ("eager", "flash_attention_1", "flash_attention_2", "flash_attention_3")
    seconds = [
        named(
            pool(GQA, "h100", name, max_model_len=16_384, max_num_batched_tokens=2048),
            shape,
            "attention prefill",
        ).seconds
        for name in names
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.2 * seconds[1]


@pytest.mark.parametrize(("sequences", "times"), [(1, 132 / 32), (4, 132 / 128), (5, 1.0), (64, 1.0)])
def test_a_decode_that_is_not_split_leaves_processors_idle(sequences: int, times: float) -> None:
    """32 query heads a sequence are so many blocks, on the 132 processors of an H100."""
    shape = decode_shape(sequences, 8192)
    fitted, unsplit = (
        named(pool(GQA, "h100", name), shape, "attention decode").seconds
        for name in ("auto", "flash_attention_1")
    )
    assert unsplit / fitted == pytest.approx(times)


def test_models_with_sinks_prefill_by_another_kernel_below_hopper() -> None:
    """Of vLLM since gpt-oss came: 4.8 times as long on A100 where it computes, on H100 as before; decodes as before."""

    def seconds(gpu: str, engine: str, name: str) -> float:
        shape = prefill_shape(1, 32_000) if name == "attention prefill" else decode_shape(8, 32_000)
        operators = steps("gpt-oss-120b", gpu, tp=2, engine=engine).step_cost(shape).operators
        return next(op.seconds for op in operators if op.name == name)

    for gpu, name, times in (
        ("a100", "attention prefill", 4.8),
        ("h100", "attention prefill", 1.0),
        ("a100", "attention decode", 1.0),
    ):
        before, since = (seconds(gpu, engine, name) for engine in ("vllm@0.10", "vllm@0.11"))
        assert since == pytest.approx(times * before, rel=0.02)


def test_never_sooner_than_the_fitted_kernel() -> None:
    for shape in (decode_shape(1, 16), prefill_shape(1, 8)):
        fitted, eager = (
            attention(pool(MHA, "a100", name, max_model_len=4096), shape).seconds
            for name in ("auto", "eager")
        )
        assert eager >= fitted


def test_an_answer_says_what_it_rests_on() -> None:
    eager = pool(GQA, "h100", "eager", max_model_len=4096).step_model
    assert eager.basis == "assumed"
    assert any("FlashAttention" in note for note in eager.notes)
    assert eager.residuals("prefill").high > pool(GQA, "h100").step_model.residuals("prefill").high
    assert pool(GQA, "h100", "flash_attention_3").step_model.basis == "calibrated"


def test_scores_take_memory() -> None:
    """2 values of 2 bytes for each of 32 heads, 4,096 tokens of a step and 4,096 of context: 4 GiB."""
    fields = {"max_model_len": 4096, "max_num_batched_tokens": 4096, "max_num_seqs": 64}
    plain, eager = (pool(MHA, "a100", name, **fields).memory.activations_bytes for name in ("auto", "eager"))
    assert eager - plain == 2 * 2 * 32 * 4096 * 4096


@pytest.mark.parametrize(
    ("model", "gpu", "name", "says"),
    [
        ("deepseek-v2-lite", "h100", "eager", "mla"),
        (GQA, "a100", "flash_attention_3", "hopper"),
        (GQA, "mi300x", "flash_attention_1", "auto or eager"),
    ],
)
def test_kernels_that_are_not_there_are_refused(model: str, gpu: str, name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        pool(model, gpu, name)
