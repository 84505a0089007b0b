"""Layers of the CPU and weights over PCIe: which operators, for which rows, and rates that people measured."""

from __future__ import annotations

from typing import Any

import pytest
from step_models import steps

import capacity
from capacity.base.errors import InvalidInput
from capacity.hardware import load_profile
from capacity.step import decode_shape, prefill_shape
from capacity.step.layers import MIN_GPU_OFFLOAD_ROWS


def split(gpu_layers: int | None, **more: Any) -> Any:
    named = {"model": "llama-2-7b", "gpu": "rtx-3090", "engine": "llama.cpp", "quantization": "q4_0"} | more
    return steps(**named, gpu_layers=gpu_layers, host_cpu="core-i9-13900k")


def test_few_rows_are_the_cpus_and_many_the_gpus() -> None:
    few, many = (
        {op.name: op.seconds for op in split(16).step_cost(shape).operators if op.seconds}
        for shape in (
            decode_shape(int(MIN_GPU_OFFLOAD_ROWS) - 1, 100),
            decode_shape(int(MIN_GPU_OFFLOAD_ROWS), 100),
        )
    )
    products = {"qkv", "attention output", "gate_up", "down"}
    assert {f"cpu {name}" for name in products} <= few.keys()
    assert not any(name.startswith("host ") for name in few)
    assert {f"host {name}" for name in products} <= many.keys()
    assert not {f"cpu {name}" for name in products} & many.keys()
    for kernels in (few, many):
        assert {"attention decode", "cpu attention decode", "cpu lm_head"} <= kernels.keys()


@pytest.mark.parametrize(
    "shape", [decode_shape(1, 500), decode_shape(64, 500), prefill_shape(1, 512)], ids=str
)
def test_every_layer_runs_once(shape: Any) -> None:
    """FLOPs are the same wherever layers are computed, and no layer more on the GPU is slower."""
    whole = split(None).step_cost(shape)
    seconds = []
    for gpu_layers in (0, 8, 16, 24, 32, 33):
        cost = split(gpu_layers).step_cost(shape)
        assert sum(op.flops for op in cost.operators) == pytest.approx(
            sum(op.flops for op in whole.operators)
        )
        seconds.append(cost.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == whole.seconds


def test_the_head_is_the_first_layer_that_leaves() -> None:
    names = {op.name for op in split(32).step_cost(decode_shape(1, 100)).operators}
    assert "cpu lm_head" in names
    assert not any(name.startswith("cpu ") for name in names - {"cpu lm_head", "cpu sampling"})


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_weights_over_pcie_take_the_time_of_their_bytes(name: str) -> None:
    """All of the layers, in a decode step of one request and of many, which need no more of them (dense ones)."""
    gpu = load_profile("l40s")
    own, here = (steps(name, "l40s", engine="vllm", host_weight_share=share) for share in (1.0, 0.0))
    shape = decode_shape(1, 100)
    layers = sum(
        op.bytes for op in here.step_cost(shape).operators if op.name in WEIGHTS or "experts" in op.name
    )
    taken = own.step_seconds(shape) - here.step_seconds(shape)
    assert taken == pytest.approx(layers / gpu.pcie.bytes_per_s, rel=0.1)
    assert own.step_seconds(decode_shape(16, 100)) >= own.step_seconds(shape)
    assert own.unmeasured["offload"] > 1
    assert "offload" not in here.unmeasured


WEIGHTS = (
    "qkv",
    "o",
    "gate_up",
    "down",
    "q",
    "kv_a",
    "kv_b",
    "q_absorb",
    "v_absorb",
    "router",
    "shared gate_up",
)
M2 = {"gpu": "m2-ultra", "engine": "llama.cpp"}
CARD = {"gpu": "rtx-3090", "engine": "llama.cpp"}
MEASURED = [
    # tokens/s. Sources: pull requests of ggml-org/llama.cpp unless another is named
    ("mistral-7b", {**M2, "quantization": "q4_0"}, "decode", 102.29),  # 6539
    ("llama-2-7b", {**M2, "quantization": "q4_0"}, "prefill", 1235.0),  # 3648
    ("llama-2-7b", {**M2, "dtype": "float16"}, "prefill", 1265.0),  # 3084
    ("llama-2-7b", {**CARD, "quantization": "q4_0"}, "decode", 121.8),  # 4766
    ("llama-2-7b", {**CARD, "quantization": "q4_0"}, "prefill", 3408.0),
    ("llama-2-7b", {**CARD, "dtype": "float16"}, "decode", 48.5),
    ("llama-2-7b", {**CARD, "dtype": "float16"}, "prefill", 4185.0),
    ("llama-2-7b", {**CARD, "gpu": "i9-13900k", "quantization": "q4_0"}, "decode", 18.27),  # issue 34
    ("llama-2-7b", {**CARD, "gpu": "i9-13900k", "quantization": "q4_0"}, "prefill", 55.2),
    (
        "llama-2-7b",
        {**CARD, "quantization": "q4_0", "n_gpu_layers": 18, "host_cpu": "i9-13900k"},
        "prefill of 1024",
        784.7,  # 6083, a 3090 Ti
    ),
    ("llama-3-70b", {"gpu": "gh200", "cpu_offload_gb": 56.0}, "decode", 4.6),  # vLLM pull request 6317
]


@pytest.mark.parametrize(("model", "pool", "phase", "measured"), MEASURED, ids=str)
def test_measured_rates_are_within_the_interval(
    model: str, pool: dict[str, Any], phase: str, measured: float
) -> None:
    """Of chips without a measurement of their own, and of models in two memories."""
    tokens = 1024 if "1024" in phase else 512
    answer = capacity.estimate(model, **pool, input_len=tokens, output_len=128, concurrency=1)
    seconds = answer.tpot_s if phase == "decode" else answer.ttft_s
    assert seconds is not None
    assert seconds.low is not None
    assert seconds.high is not None
    rows = 1 if phase == "decode" else tokens
    assert rows / seconds.high < measured < rows / seconds.low
    off = 1.16 if phase == "decode" else 2.6  # what docs/offload.md says of either
    assert 1 / off < rows / seconds.value / measured < off


def test_a_cpu_beside_no_layers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="host-cpu"):
        capacity.estimate(
            "llama-2-7b", gpu="rtx-3090", engine="llama.cpp", host_cpu="epyc-9755", concurrency=1
        )
