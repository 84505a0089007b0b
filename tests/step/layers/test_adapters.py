"""LoRA's kernels in a step: by hand, against what was published of them, and what they hang on."""

from __future__ import annotations

import pytest

import capacity
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import OpCost, StepShape, decode_shape, prefill_shape
from capacity.step.layers.adapters import KERNEL_S, packed_layers

LLAMA = "llama-3.1-8b"


def pool(**fields: object) -> ResolvedPool:
    return resolve(str(fields.pop("model", LLAMA)), Pool.model_validate({"gpu": "h100", **fields}))


def lora(resolved: ResolvedPool, shape: StepShape) -> OpCost:
    (found,) = [op for op in resolved.step_model.step_cost(shape).operators if op.name == "LoRA"]
    return found


def added_s(shape: StepShape, **fields: object) -> float:
    plain, adapted = (
        pool(**{name: value for name, value in fields.items() if "lora" not in name}),
        pool(**fields),
    )
    return adapted.step_model.step_seconds(shape) - plain.step_model.step_seconds(shape)


def test_packs_are_what_engines_pack() -> None:
    """Of Llama: q, k and v; the output; gate and up; down. Values are those of all seven matrices."""
    packs = list(packed_layers(load_model(LLAMA), 1))
    assert [(pack.slices, pack.inputs, pack.outputs) for pack in packs] == [
        (3, 4096, 6144),
        (1, 4096, 4096),
        (2, 4096, 28672),
        (1, 14336, 4096),
    ]
    assert all(len(pack.layers) == 32 for pack in packs)


def test_latent_attention_divides_its_expansions_by_heads_and_not_its_compressions() -> None:
    """q_b and kv_b make heads out of latents, so tensor parallelism divides their outputs."""
    one, two = ({pack.inputs: pack for pack in packed_layers(load_model("deepseek-v3"), n)} for n in (1, 2))
    assert (one[1536].outputs, two[1536].outputs) == (24576, 12288)
    assert (one[512].outputs, two[512].outputs) == (32768, 16384)
    assert one[7168].outputs in (1536 + 576, 2 * 18432, 2 * 2048)


def test_one_row_takes_its_kernels_and_the_time_to_read_one_adapter() -> None:
    resolved, shape = pool(max_loras=8, max_lora_rank=16), decode_shape(1, 500)
    cost = lora(resolved, shape)
    factors = 41_943_040 * 2
    of_row = sum(
        32 * (2 * pack.inputs + 8 * pack.slices * 16 + 4 * pack.outputs)
        for pack in packed_layers(resolved.model, 1)
    )
    assert cost.bytes == pytest.approx(factors + of_row)
    assert cost.flops == 2 * 41_943_040
    assert cost.bound == "launch"
    reading_s = cost.seconds - 256 * KERNEL_S
    assert 0.5 < cost.bytes / 3.35e12 / reading_s < 1  # of HBM's rate, what kernels that move bytes reach


def test_the_published_overhead_of_idle_kernels_is_found_again() -> None:
    """vLLM PR 25914: 10.5 % more latency of Llama-2-7B, 32 tokens in and 128 out, eight at a time."""
    load = {"gpu": "h100", "engine": "vllm@0.11", "input_len": 32, "output_len": 128, "batch_size": 8}
    plain, adapted = (capacity.estimate("llama-2-7b", **load, **each) for each in ({}, {"max_loras": 1}))
    assert plain.e2e_s is not None
    assert adapted.e2e_s is not None
    assert 1.08 < adapted.e2e_s.value / plain.e2e_s.value < 1.16


def test_adapters_of_a_step_are_at_most_its_rows_and_its_slots() -> None:
    few, many = pool(max_loras=2), pool(max_loras=64)
    one = decode_shape(1, 100)
    assert lora(few, one).bytes == lora(many, one).bytes
    batch = decode_shape(32, 100)
    assert lora(few, batch).bytes < lora(many, batch).bytes
    assert lora(pool(max_loras=32), batch).bytes == lora(many, batch).bytes


def test_higher_ranks_and_longer_prompts_cost_more() -> None:
    batch, prompt = decode_shape(32, 500), prefill_shape(1, 4096)
    ranks = [added_s(batch, max_loras=8, max_lora_rank=rank) for rank in (8, 64, 256)]
    assert 0 < ranks[0] < ranks[1] < ranks[2]
    assert added_s(prompt, max_loras=8) > added_s(prefill_shape(1, 512), max_loras=8) > 0
    assert added_s(prompt, max_loras=8, max_lora_rank=512) > 1.5 * added_s(prompt, max_loras=8)


def test_tensor_parallel_gpus_share_the_reading() -> None:
    batch = decode_shape(64, 500)
    alone, four = (lora(pool(max_loras=32, max_lora_rank=64, tensor_parallel_size=n), batch) for n in (1, 4))
    assert four.bytes < 0.6 * alone.bytes
    assert four.seconds < alone.seconds
