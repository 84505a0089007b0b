"""Weights and layers in host memory: who can, what stays on the GPU, and refusals in one line with the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.pool.memory import memory_plan
from capacity.pool.offload import gpu_weights, host_weight_share
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.pool.weights import stage_weights
from capacity.step import decode_shape, prefill_shape

GIB = 2**30
LAYERS = {"engine": "llama.cpp", "quantization": "q4_0", "gpu": "rtx-3090", "max_model_len": 4096}


def resolved(model: str = "llama-3.1-8b", **fields: Any) -> ResolvedPool:
    return resolve(model, Pool.model_validate({"gpu": "l4", "max_model_len": 4096, **fields}))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"n_gpu_layers": 8},
            r"--n-gpu-layers 8: vllm@.* cannot keep layers in host memory; use --cpu-offload-gb, or",
        ),
        (
            {"engine": "llama.cpp", "cpu_offload_gb": 4},
            r"cannot keep weights in host memory; use --n-gpu-layers, or",
        ),
        (
            {"engine": "tgi", "cpu_offload_gb": 4},
            r"tgi.* cannot keep weights in host memory; use --engine .*vllm",
        ),
        ({"gpu": "m4-max", "engine": "llama.cpp", "n_gpu_layers": 8}, "has no separate host memory"),
        ({**LAYERS, "n_gpu_layers": 8, "pipeline_parallel_size": 2}, "not modelled: leave one of them out"),
        ({**LAYERS, "n_gpu_layers": 8, "host_cpu": "epyc"}, "no hardware profile"),
        ({**LAYERS, "n_gpu_layers": 8, "host_cpu": "l4"}, "l4-24gb"),
    ],
)
def test_what_cannot_be_kept_there_is_refused_with_the_way_out(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as caught:
        resolved(**fields)
    assert "\n" not in str(caught.value)


def test_offloaded_weights_make_room_for_kv_and_cost_each_step_their_way_over_pcie() -> None:
    whole, part = resolved(), resolved(cpu_offload_gb=6)
    moved = 6 * GIB
    assert gpu_weights(part, 0) == gpu_weights(whole, 0) - moved
    assert part.memory.kv_cache_bytes == pytest.approx(whole.memory.kv_cache_bytes + moved, rel=1e-3)
    link = load_profile("l4").pcie.bytes_per_s
    stays = 1 - host_weight_share(part)
    decode = decode_shape(1, 256)
    seconds, before = part.step_model.step_seconds(decode), whole.step_model.step_seconds(decode)
    assert moved / link < seconds < moved / link + before
    assert seconds == pytest.approx(moved / link + before * stays, rel=0.25)
    assert any("6.00 GiB of each GPU's weights are in host memory" in note for note in part.notes)


def test_no_more_than_the_layers_leaves_the_gpu() -> None:
    """The embedding and the LM head stay: vLLM offloads the weights of layers alone."""
    part = resolved(cpu_offload_gb=100)
    assert host_weight_share(part) == 1
    ends = 2 * 128256 * 4096 * 2
    assert gpu_weights(part, 0) == pytest.approx(ends, rel=0.01)


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_the_gib_are_those_of_each_gpu(name: str) -> None:
    two = resolved(**{name: 2})
    part = resolved(**{name: 2}, cpu_offload_gb=2)
    assert gpu_weights(part, 0) == gpu_weights(two, 0) - 2 * GIB


def test_layers_of_the_cpu_leave_the_gpu_with_their_weights_and_their_kv() -> None:
    whole = resolved(**LAYERS)
    half, least = (resolved(**LAYERS, n_gpu_layers=layers) for layers in (16, 1))
    assert resolved(**LAYERS, n_gpu_layers=33).memory.weights_bytes == whole.memory.weights_bytes
    assert half.memory.kv_block_bytes * 2 == whole.memory.kv_block_bytes
    ratio = half.memory.kv_capacity_blocks / whole.memory.kv_capacity_blocks
    assert ratio > 2  # half the bytes a token, and more room
    assert least.memory.weights_bytes == pytest.approx(half.memory.weights_bytes / 16, rel=0.01)
    decode = [pool.step_model.step_seconds(decode_shape(1, 256)) for pool in (whole, half, least)]
    assert decode == sorted(decode)
    cpu, gpu = (load_profile(name).hbm_bytes_per_s for name in ("xeon-8592-plus", "rtx-3090"))
    assert 0.5 * gpu / cpu < decode[2] / decode[0] < 2 * gpu / cpu


def test_the_cpu_beside_the_card_is_asked_for() -> None:
    server, desktop = (
        resolved(**LAYERS, n_gpu_layers=16, host_cpu=name) for name in ("epyc-9755", "i9-13900k")
    )
    decode = decode_shape(1, 256)
    assert desktop.step_model.step_seconds(decode) > 1.5 * server.step_model.step_seconds(decode)
    assert any("core-i9-13900k-64gb (--host-cpu)" in note for note in desktop.notes)


def test_all_on_the_gpu_is_no_offload() -> None:
    decode = (decode_shape(4, 1000), prefill_shape(1, 512))
    whole, same = resolved(**LAYERS).step_model, resolved(**LAYERS, n_gpu_layers=99).step_model
    assert [same.step_seconds(shape) for shape in decode] == [whole.step_seconds(shape) for shape in decode]
    assert same.unmeasured == whole.unmeasured == {}
    assert resolved(cpu_offload_gb=0).notes == resolved().notes


def test_a_model_beyond_the_card_fits_by_offload() -> None:
    big = {"gpu": "rtx-4090", "quantization": "fp8", "model": "qwen2.5-32b"}
    assert not resolved(**big).memory.fits
    assert resolved(**big, cpu_offload_gb=16).memory.fits
    with pytest.raises(DoesNotFit, match=r"or --cpu-offload-gb (\d+)\.$") as caught:
        resolved(**big).memory.require_fit()
    least = int(str(caught.value).rstrip(".").split()[-1])
    assert resolved(**big, cpu_offload_gb=least).memory.fits
    assert not resolved(**big, cpu_offload_gb=least - 1).memory.fits


def test_fewer_layers_on_the_card_is_the_way_out_of_llama_cpp() -> None:
    with pytest.raises(DoesNotFit, match=r"or --n-gpu-layers (\d+)\.$") as caught:
        resolved("llama-3.3-70b", **LAYERS).memory.require_fit()
    most = int(str(caught.value).rstrip(".").split()[-1])
    assert resolved("llama-3.3-70b", **LAYERS, n_gpu_layers=most).memory.fits
    with pytest.raises(DoesNotFit) as caught:
        resolved("llama-3.3-70b", **{**LAYERS, "gpu": "m2-max", "quantization": "bf16"}).memory.require_fit()
    assert "n-gpu-layers" not in str(caught.value)


def test_without_a_layer_on_the_gpu_decode_is_that_of_the_cpu() -> None:
    """`-ngl 0`: the memory is the CPU's, a step of few rows its own, and one of many reads weights over PCIe."""
    name = "core-i9-13900k"
    none = resolved(**LAYERS, n_gpu_layers=0, host_cpu=name)
    cpu = resolved(**(LAYERS | {"gpu": name}))
    assert none.memory.layout == cpu.memory.layout
    assert none.memory.kv_capacity_blocks == cpu.memory.kv_capacity_blocks
    decode, prefill = decode_shape(1, 256), prefill_shape(1, 2048)
    assert none.step_model.step_seconds(decode) == pytest.approx(
        cpu.step_model.step_seconds(decode), rel=0.05
    )
    assert none.step_model.step_seconds(prefill) < 0.5 * cpu.step_model.step_seconds(prefill)


def test_kv_of_the_cpus_layers_must_find_room_in_its_memory() -> None:
    """With one layer on the GPU its HBM would hold a hundred times what 64 GB of DRAM hold of the others."""
    small, large = (
        resolved("llama-2-7b", **LAYERS, n_gpu_layers=1, host_cpu=cpu)
        for cpu in ("core-i9-13900k", "epyc-9755")
    )
    # 31 layers of 2 x 32 x 128 values at 16 bit, in what 64 GB leave beside 3.5 GiB of weights
    assert small.memory.kv_capacity_tokens < 64e9 / (31 * 2 * 4096 * 2)
    assert small.memory.kv_capacity_tokens < large.memory.kv_capacity_tokens / 8
    with pytest.raises(DoesNotFit):
        resolved("llama-3.1-405b", **LAYERS, n_gpu_layers=1, host_cpu="core-i9-13900k").memory.require_fit()


@pytest.mark.parametrize("tp", [1, 2])
def test_weights_and_kv_of_the_cpus_layers_fill_its_memory_to_the_byte(tp: int) -> None:
    """The host holds the offloaded weights of all GPUs, and as many blocks as fit in the rest: 31 layers' KV."""
    pool = resolved("llama-2-7b", **LAYERS, n_gpu_layers=1, host_cpu="core-i9-13900k")
    pool = replace(pool, pool=pool.pool.model_copy(update={"gpu_memory_utilization": 1.0}))
    pool = pool.with_tensor_parallel_size(tp)
    weights = tp * round(stage_weights(pool, 0) - gpu_weights(pool, 0))
    block = 31 * 2 * 32 // tp * 128 * 2 * 256
    assert pool.host_cpu is not None
    for more, blocks in ((-1, 299), (0, 300), (block - 1, 300), (block, 301)):
        memory = {"memory_engine_bytes": weights + 300 * block + more}
        plan = memory_plan(replace(pool, host_cpu=pool.host_cpu.model_copy(update=memory)))
        assert plan.kv_capacity_blocks == blocks
