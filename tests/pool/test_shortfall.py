"""Refusals in words: how far off, and ways out that hold when they are tried."""

from __future__ import annotations

from typing import Any

import pytest
from filled_pools import GIB, H100, H200, VLLM, VLLM_011, plan_of, pool_of

import capacity
from capacity.base.errors import DoesNotFit
from capacity.hardware import HardwareProfile, load_profile
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.pool.memory import MemoryPlan


def ways_out(plan: MemoryPlan) -> list[dict[str, str]]:
    """The changes that a reason offers, as flags and values."""
    assert plan.reason is not None
    _, _, offered = plan.reason.rpartition(" Use ")
    words = [way.split() for way in offered.removesuffix(".").split(", or ")]
    return [dict(zip(way[::2], way[1::2], strict=True)) for way in words]


def fields(way: dict[str, str]) -> dict[str, object]:
    return {flag.removeprefix("--").replace("-", "_"): value for flag, value in way.items()}


def test_not_fitting_says_how_far_off_in_the_units_of_the_table() -> None:
    plan = plan_of(load_model("llama-3.1-70b"), H200, VLLM)
    assert not plan.fits
    assert plan.reason is not None
    assert plan.reason.startswith("llama-3.1-70b (bf16) needs 131.45 GiB of weights")
    assert (
        f"has {plan.usable_bytes / GIB:.2f} GiB usable: {-plan.kv_cache_bytes / GIB:.2f} GiB too little"
        in plan.reason
    )
    assert " GB" not in plan.reason
    assert "\n" not in plan.reason
    with pytest.raises(DoesNotFit) as caught:
        plan.require_fit()
    assert caught.value.needed_bytes > caught.value.usable_bytes == plan.usable_bytes


REFUSED = [
    ("llama-3.1-70b", H200, {}),
    ("llama-3.1-70b", H100, {"tensor_parallel_size": 2}),
    ("gpt-oss-120b", H100, {"gpu_memory_utilization": 0.9}),
    ("gpt-oss-120b", H100, {"max_num_seqs": 64, "gpu_memory_utilization": 0.88}),
    ("deepseek-v3", H100, {"tensor_parallel_size": 8}),
    ("qwen3-32b", H100, {}),
    ("llama-3.1-8b", load_profile("l4"), {}),
    ("llama-3.1-8b", load_profile("rtx-4090"), {"enable_chunked_prefill": False}),
    ("gemma-3-27b", load_profile("rtx-5090"), {}),
    ("qwen3-next-80b-a3b", H100, {"pipeline_parallel_size": 2}),
]


@pytest.mark.parametrize(("model", "profile", "pool"), REFUSED, ids=str)
def test_every_way_out_fits_and_none_smaller_does(
    model: str, profile: HardwareProfile, pool: dict[str, object]
) -> None:
    """Asked of the memory plan itself; the least share of memory, the most tokens and requests, the fewest GPUs."""
    spec = load_model(model)
    plan = plan_of(spec, profile, VLLM, **pool)
    assert not plan.fits

    def fits(change: dict[str, object]) -> bool:
        stored = scheme_for(spec, str(change["quantization"])) if "quantization" in change else None
        return plan_of(spec, profile, VLLM, stored, **{**pool, **change}).fits

    ways = ways_out(plan)
    assert ways
    for way in ways:
        change = fields(way)
        assert fits(change), way
        for name, smaller in (
            ("gpu_memory_utilization", lambda value: round(float(value) - 0.01, 2)),
            ("max_num_batched_tokens", lambda value: 2 * int(value)),
            ("max_num_seqs", lambda value: 2 * int(value)),
            ("pipeline_parallel_size", lambda value: int(value) - 1),
            ("max_model_len", lambda value: int(value) + 1),
        ):
            if name in change and len(change) == 1:
                less = smaller(change[name])
                assert not fits({name: less}), (name, less)


def test_the_ways_that_people_take_are_among_them() -> None:
    """Two nodes, two stages or four bits for DeepSeek-V3 on 8 x H100; fewer requests for gpt-oss-120b on one."""
    two_nodes = ways_out(plan_of(load_model("deepseek-v3"), H100, VLLM, tensor_parallel_size=8))
    assert {"--tensor-parallel-size": "16"} in two_nodes
    assert {"--pipeline-parallel-size": "2"} in two_nodes
    assert {"--quantization": "int4"} in two_nodes
    one = ways_out(plan_of(load_model("gpt-oss-120b"), H100, VLLM_011))
    assert any("--max-num-seqs" in way for way in one)
    tight = ways_out(
        plan_of(load_model("gpt-oss-120b"), H100, VLLM, max_num_seqs=64, gpu_memory_utilization=0.88)
    )
    assert any("--gpu-memory-utilization" in way for way in tight)


def test_too_long_a_context_names_the_longest_that_fits() -> None:
    model = load_model("qwen3-32b")
    plan = plan_of(model, H100, VLLM_011)
    assert not plan.fits
    assert 0 < plan.max_concurrency < 1
    assert f"--max-model-len {plan.max_context_tokens}" in (plan.reason or "")
    assert plan_of(model, H100, VLLM_011, max_model_len=plan.max_context_tokens).fits
    assert not plan_of(model, H100, VLLM_011, max_model_len=plan.max_context_tokens + 1).fits


def test_what_fits_nowhere_says_so() -> None:
    plan = plan_of(load_model("kimi-k2"), load_profile("core-i9-13900k-64gb"), VLLM)
    assert (
        "No tested change makes the model fit, alone or combined: tensor parallelism up to 2, 8 pipeline"
        in (plan.reason or "")
    )


@pytest.mark.parametrize(
    ("model", "gpu", "options"),
    [
        ("deepseek-r1", "rtx-4090", {}),  # more GPUs with more stages
        ("llama-4-maverick", "trainium2", {}),  # more GPUs with narrower weights
        (
            "llama-4-scout",
            "rtx-pro-6000",
            {"engine": "hf-transformers", "tensor_parallel_size": 2},
        ),  # shorter
    ],
)
def test_two_changes_at_once_where_none_is_enough(model: str, gpu: str, options: dict[str, Any]) -> None:
    reason = capacity.fit(model, gpu=gpu, **options).reason or ""
    _, _, offered = reason.rpartition(" Use ")
    ways = [way.split() for way in offered.removesuffix(".").split(", or ")]
    assert all(len(way) == 4 for way in ways)
    for way in ways:
        change = fields(dict(zip(way[::2], way[1::2], strict=True)))
        assert capacity.fit(model, gpu=gpu, **options | change).fits


def test_the_planner_is_told_what_is_missing_without_trying_ways_out() -> None:
    pool = pool_of(load_model("llama-3.1-70b"), H200, VLLM)
    short = pool.memory_without_advice
    assert short.reason is not None
    assert (pool.memory.reason or "").startswith(short.reason)
    assert "Use" not in short.reason
