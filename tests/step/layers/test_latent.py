"""Latent attention: what a decode and a prefill read of it, sparse or dense."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.model import load_model
from capacity.step import decode_shape
from capacity.step.layers.latent import PADDED_HEADS
from capacity.step.shape import prefill_shape


def test_sparse_attention_reads_no_more_than_its_top_k() -> None:
    shapes = [decode_shape(8, context) for context in (4000, 40_000)]
    dense, sparse = (
        [
            {op.name: op.bytes for op in steps(model).step_cost(s).operators}["attention decode"]
            for s in shapes
        ]
        for model in ("deepseek-v3", "deepseek-v3.2")
    )
    assert dense[1] == pytest.approx(10 * dense[0], rel=0.1)  # and the queries, which do not grow
    assert sparse[1] == sparse[0]


def test_an_indexer_has_products_of_its_own_whole_on_every_rank() -> None:
    shape = decode_shape(8, 4000)
    dense, sparse = (
        {op.name: op for op in steps(model, tp=8).step_cost(shape).operators}
        for model in ("deepseek-v3", "deepseek-v3.2")
    )
    added = {name: op for name, op in sparse.items() if name not in dense}
    assert set(added) == {"indexer q", "indexer k", "indexer norms, rope, quantization", "sparse indexer"}
    assert added["indexer q"].flops == 61 * 2 * 8 * 1536 * 64 * 128  # of all heads, whatever the ranks
    assert added["indexer k"].flops == 61 * 2 * 8 * 7168 * (128 + 64)


def test_sparse_prefill_is_dense_up_to_its_top_k_and_gathers_beyond() -> None:
    top_k, model = 2048, steps("deepseek-v3.2", tp=8)
    short, long = (
        {op.name: op for op in model.step_cost(prefill_shape(1, tokens)).operators}
        for tokens in (top_k, 4 * top_k)
    )
    assert "attention prefill" in short
    assert "attention prefill (sparse)" not in short
    gathered = long["attention prefill (sparse)"]
    assert "attention prefill" not in long
    spec = load_model("deepseek-v3.2")
    mixer = spec.layer_groups[0].mixer
    per_token = mixer.kv_bytes_per_token(model._build.kv_cache)  # type: ignore[union-attr]
    pairs = 4 * top_k * top_k  # every new token reads top-k latents of its own
    assert gathered.bytes > spec.num_layers * pairs * per_token
    assert gathered.bytes == pytest.approx(spec.num_layers * pairs * per_token, rel=0.05)


def test_sparse_prefill_grows_with_its_prompt_alone_and_not_with_its_square() -> None:
    dense, sparse = (
        [
            sum(
                op.seconds
                for op in steps(model, tp=8).step_cost(prefill_shape(1, tokens)).operators
                if op.name.startswith("attention prefill")
            )
            for tokens in (16_000, 64_000)
        ]
        for model in ("deepseek-v3", "deepseek-v3.2")
    )
    assert dense[1] / dense[0] == pytest.approx(16, rel=0.15)
    assert sparse[1] / sparse[0] == pytest.approx(4, rel=0.05)


def test_kernels_that_fill_their_top_k_take_as_long_of_short_prompts_as_of_long_ones() -> None:
    """vLLM on Hopper: 8,192 new tokens x 2,048 slots x 64 heads, in prompts of 128 tokens and of 8,192 alike."""
    model = steps("deepseek-v3.2", gpu="h200-sxm-141gb", tp=8, engine="vllm@0.13")
    found = [
        {op.name: op for op in model.step_cost(prefill_shape(8192 // tokens, tokens)).operators}
        for tokens in (128, 8192)
    ]
    assert all("attention prefill" not in operators for operators in found)
    short, long = (operators["attention prefill (sparse)"] for operators in found)
    assert short.flops == long.flops == 61 * 8192 * 2048 * 64 * 2 * (2 * 512 + 64)
    assert short.bytes < long.bytes


def test_kernels_that_fill_their_top_k_decode_as_many_slots_of_a_short_context() -> None:
    flops = {
        engine: [
            next(
                op.flops for op in model.step_cost(decode_shape(8, context)).operators if "decode" in op.name
            )
            for context in (100, 2048)
        ]
        for engine in ("vllm@0.13", "sglang")
        for model in [steps("deepseek-v3.2", gpu="h200-sxm-141gb", tp=8, engine=engine)]
    }
    assert flops["vllm@0.13"][0] == flops["vllm@0.13"][1] == 4 * flops["sglang"][1]  # of 64 heads, not of 16
    assert flops["sglang"][0] < 0.05 * flops["sglang"][1]


def test_heads_of_a_rank_are_padded_where_its_kernels_do() -> None:
    """On Hopper to 64: of eight ranks each has 16 of 128 heads, and multiplies as many as one of two."""
    flops = [
        next(
            op.flops
            for op in steps("deepseek-v3.2", gpu=gpu, tp=tp).step_cost(prefill_shape(1, 8192)).operators
            if op.name == "attention prefill (sparse)"
        )
        for gpu in ("h200-sxm-141gb", "b200-sxm-180gb")
        for tp in (2, 8)
    ]
    assert PADDED_HEADS == {"hopper": 64}
    assert flops[1] == flops[0]
    assert flops[3] == pytest.approx(flops[2] / 4)


def test_older_releases_compute_some_products_separately() -> None:
    names = {"q_a", "kv_a", "qkv_a", "indexer k", "indexer gates"}
    oldest, older, newest = (
        {
            op.name: op
            for op in steps("deepseek-v3.2", tp=8, engine=f"vllm@{release}")
            .step_cost(decode_shape(8, 4000))
            .operators
            if op.name in names
        }
        for release in ("0.9.2", "0.19", "0.20")
    )
    assert set(oldest) == names - {"qkv_a"}
    assert set(older) == {"qkv_a", "indexer k", "indexer gates"}
    assert set(newest) == {"qkv_a", "indexer k"}
    for two, one in (
        ((oldest["q_a"], oldest["kv_a"]), older["qkv_a"]),
        ((older["indexer k"], older["indexer gates"]), newest["indexer k"]),
    ):
        assert sum(op.flops for op in two) == one.flops
        assert sum(op.seconds for op in two) > 1.3 * one.seconds  # each is bound by its launch


@pytest.mark.parametrize(
    ("model", "gpu", "release", "separate"),
    [
        ("deepseek-v3.2", "h200-sxm-141gb", "0.5.4", True),
        ("deepseek-v3.2", "h200-sxm-141gb", "0.5.23", True),
        ("glm-5", "h200-sxm-141gb", "0.5.14", True),
        ("glm-5", "h200-sxm-141gb", "0.5.15", False),
        ("glm-5", "mi300x-192gb", "0.5.23", True),
    ],
)
def test_sglang_computes_keys_and_gates_of_the_indexer_by_model_and_release(
    model: str, gpu: str, release: str, separate: bool
) -> None:
    cost = steps(model, tp=8, gpu=gpu, engine=f"sglang@{release}").step_cost(decode_shape(8, 4000))
    assert ("indexer gates" in {op.name for op in cost.operators}) is separate


def test_sglang_computes_keys_of_the_indexer_in_parallel_with_queries_up_to_1024_rows() -> None:
    def keys(gpu: str, rows: int) -> float:
        cost = steps("glm-5", tp=8, gpu=gpu, engine="sglang").step_cost(decode_shape(rows, 100))
        return sum(op.seconds for op in cost.operators if op.name == "indexer k")

    assert keys("h200-sxm-141gb", 1024) == 0 < keys("h200-sxm-141gb", 1025)
    assert keys("mi300x-192gb", 8) > 0
