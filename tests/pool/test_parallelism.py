"""Parallel sizes that a model allows."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.pool.parallelism import tensor_parallel_sizes
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import OpCost, decode_shape, prefill_shape


def test_tensor_parallel_sizes_divide_heads() -> None:
    assert tensor_parallel_sizes(load_model("llama-3.1-70b"), 64) == (1, 2, 4, 8, 16, 32, 64)
    assert tensor_parallel_sizes(load_model("phi-4"), 8) == (1, 2, 5)


# decode context parallelism


def shared(model: str, ranks: int, tp: int = 8, engine: str = "vllm") -> ResolvedPool:
    return resolve(
        model,
        Pool(gpu="h200", engine=engine, tensor_parallel_size=tp, decode_context_parallel_size=ranks),
    )


@pytest.mark.parametrize(("model", "ranks"), [("deepseek-v3", 8), ("deepseek-v3", 2), ("qwen3-30b-a3b", 2)])
def test_ranks_that_share_a_context_hold_so_many_times_the_tokens(model: str, ranks: int) -> None:
    one, many = shared(model, 1).memory, shared(model, ranks).memory
    assert many.kv_capacity_blocks == one.kv_capacity_blocks
    assert many.kv_block_tokens == ranks * one.kv_block_tokens
    assert many.kv_capacity_tokens == ranks * one.kv_capacity_tokens


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b"])
def test_they_read_their_part_of_it_and_send_queries_and_outputs(model: str) -> None:
    def table(ranks: int) -> dict[str, OpCost]:
        operators = shared(model, ranks).step_model.step_cost(decode_shape(8, 40_000)).operators
        return {op.name: op for op in operators}

    one, two = table(1), table(2)
    name = "attention decode"
    assert two[name].bytes == pytest.approx(one[name].bytes / 2, rel=0.05)
    assert two[name].flops == pytest.approx(one[name].flops)
    assert two[name].seconds < one[name].seconds
    spec = load_model(model)
    heads = spec.layer_groups[0].mixer.num_heads / 8
    per_head = 512 + 64 if model == "deepseek-v3" else 128
    assert two["gather queries"].bytes == pytest.approx(8 * heads * per_head * 2 * spec.num_layers)
    assert "gather queries" not in one
    prompt = prefill_shape(1, 1000)
    times = [shared(model, ranks).step_model.step_seconds(prompt) for ranks in (1, 2)]
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("model", "ranks", "engine", "problem"),
    [
        ("llama-3.1-8b", 2, "vllm", "keeps 1 copies of 8 KV heads"),
        ("deepseek-v3", 3, "vllm", "the number of copies must be a multiple of 3"),
        ("qwen3-30b-a3b", 4, "vllm", "keeps 2 copies of 4 KV heads"),
        ("gpt-oss-120b", 8, "vllm", "have different KV caches"),
        ("qwen3-30b-a3b", 2, "sglang", r"only for models with latents \(MLA\)"),
        ("deepseek-v3", 2, "tensorrt-llm", "does not support decode context parallelism"),
    ],
)
def test_what_engines_refuse_is_refused(model: str, ranks: int, engine: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        assert shared(model, ranks, engine=engine).memory


def test_every_verb_answers_for_shared_contexts() -> None:
    asked: dict[str, Any] = {"gpu": "h200", "tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    load = {
        "input_len": 2000,
        "output_len": 60,
        "concurrency": 8,
        "random_range_ratio": 0.2,
        "num_prompts": 60,
    }
    assert capacity.fit("deepseek-v3", **asked).fits
    means = capacity.estimate("deepseek-v3", **asked, **load).whole_run
    run = capacity.simulate("deepseek-v3", **asked, **load).run.summary
    assert means is not None
    assert run.ttft_ms is not None
    assert means.ttft_s == pytest.approx(run.ttft_ms.mean / 1e3)
