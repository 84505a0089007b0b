"""Launches of a step without a CUDA graph: by layers, formats and ranks, and the time of the slowest rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.step.launches import (
    LAUNCH_QUEUE,
    RANK_SPREAD,
    expected_maximum,
    kernels_launched,
    launch_lag,
    launch_seconds,
    waiting_seconds,
)
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting
from capacity.step.shape import prefill_shape


def setting(
    model: str, quantization: str | None = None, *, gpu: str = "b200-sxm-180gb", **words: object
) -> StepSetting:
    spec = load_model(model)
    return StepSetting(
        model=spec,
        profile=load_profile(gpu),
        scheme=scheme_for(spec, quantization) if quantization else None,
        **words,  # type: ignore[arg-type]
    )


def test_a_dense_layer_by_hand() -> None:
    """Two norms, qkv, rope, cache write, attention, output, gate and up, activation, down; and two all-reduces."""
    assert kernels_launched(setting("llama-3.1-70b")) == 80 * 10
    assert kernels_launched(setting("llama-3.1-70b", tensor_parallel_size=8)) == 80 * 12


def test_inputs_are_quantized_before_products_in_eight_bits_and_not_for_weights_alone() -> None:
    plain = kernels_launched(setting("llama-3.1-70b"))
    assert kernels_launched(setting("llama-3.1-70b", "fp8")) == plain + 80 * 4
    assert kernels_launched(setting("llama-3.1-70b", "awq")) == plain


def test_what_an_engine_launches_on_the_way_of_another_kernel_counts_less() -> None:
    """TensorRT-LLM: of FP8 a fifth of a launch for each product's input, and norms of q and k in rope's kernel."""
    trtllm = find_engine("tensorrt-llm")
    assert kernels_launched(setting("llama-3.1-70b", "fp8", engine=trtllm)) == pytest.approx(80 * 10.8)
    assert kernels_launched(setting("qwen3-32b", engine=trtllm)) == 64 * 10
    assert kernels_launched(setting("qwen3-32b", engine=find_engine("vllm"))) == 64 * 12


@pytest.mark.parametrize(
    ("fewer", "more"),
    [
        ("llama-3.1-70b", "qwen3-32b"),  # norms of q and k
        ("qwen3-32b", "qwen3-30b-a3b"),  # experts
        ("qwen3-30b-a3b", "deepseek-v3"),  # latents, shared experts
        ("deepseek-v3", "glm-5.2"),  # an indexer
    ],
)
def test_what_launches_more_a_layer(fewer: str, more: str) -> None:
    few, many = setting(fewer, tensor_parallel_size=8), setting(more, tensor_parallel_size=8)
    assert kernels_launched(few) / few.model.num_layers < 0.9 * kernels_launched(many) / many.model.num_layers


def test_layers_of_nemotron_h_by_hand() -> None:
    """Each is one block: a norm, and an all-reduce. Mamba-2 adds 4 kernels and 7 of Triton; attention 5; a dense
    feed-forward 3."""
    spec = load_model("nemotron-h-56b")
    kinds = [(group.mixer.kind, group.num_layers) for group in spec.layer_groups]
    per_kind = {"mamba2": 4 + 3 * 7, "gqa": 5, "": 3}
    by_hand = sum((1 + per_kind[kind]) * layers for kind, layers in kinds)
    assert kernels_launched(setting("nemotron-h-56b")) == by_hand
    assert kernels_launched(setting("nemotron-h-56b", tensor_parallel_size=8)) == by_hand + spec.num_layers


def test_mxfp4_experts_are_triton_kernels_on_hopper_alone() -> None:
    """Router, and seven kernels that Triton launches; Marlin, which vLLM ran until 0.11, is called as others are."""
    layers = load_model("gpt-oss-120b").num_layers
    blackwell, marlin, triton = (
        kernels_launched(setting("gpt-oss-120b", gpu=gpu, engine=find_engine(engine))) / layers
        for gpu, engine in (
            ("b200-sxm-180gb", "vllm@0.15"),
            ("h200-sxm-141gb", "vllm@0.11"),
            ("h200-sxm-141gb", "vllm@0.15"),
        )
    )
    assert marlin == 2 + 5 + 9
    assert triton == 2 + 5 + 1 + 3 * 7
    assert blackwell < triton


def test_mixed_steps_of_the_log_are_launches() -> None:
    """60 ms for 1,000 to 4,000 prompt tokens of gpt-oss-120b on four H200, vLLM 0.15, whatever their number."""
    of = setting(
        "gpt-oss-120b", gpu="h200-sxm-141gb", engine=find_engine("vllm@0.15"), tensor_parallel_size=4
    )
    assert of.host_time().eager_s == pytest.approx(0.060, rel=0.1)


def test_ranks_that_exchange_tokens_launch_that_too() -> None:
    alone = setting("qwen3-30b-a3b")
    joint = setting("qwen3-30b-a3b", data_parallel_size=4, enable_expert_parallel=True)
    assert kernels_launched(joint) == kernels_launched(alone) + 48 * 4


def test_the_largest_of_draws() -> None:
    assert expected_maximum(1) == 0.0
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    assert expected_maximum(8) == pytest.approx(1.42360, rel=1e-4)  # tables of order statistics


def test_the_slowest_rank_sets_the_pace() -> None:
    one, eight = setting("llama-3.1-70b"), setting("llama-3.1-70b", tensor_parallel_size=8)
    assert launch_seconds(one, 1e-5) == pytest.approx(800e-5)
    assert launch_seconds(eight, 1e-5) == pytest.approx(960e-5 * (1 + RANK_SPREAD * 1.4236), rel=1e-4)


def test_an_engines_step_takes_its_launches() -> None:
    engine = find_engine("sglang")
    host = setting("deepseek-v3", engine=engine, tensor_parallel_size=8).host_time()
    expected = launch_seconds(setting("deepseek-v3", tensor_parallel_size=8), engine.kernel_launch_s)
    assert host.eager_s + host.waiting_s == pytest.approx(expected)
    assert host.eager_s > 0.05


def prefill_with_and_without_graphs(of: StepSetting, prompt_tokens: int) -> tuple[float, float]:
    """Seconds of one prompt launched kernel by kernel, and of the same replayed as a CUDA graph."""
    shape = prefill_shape(1, prompt_tokens)
    graphs = replace(of.host_time(), graph_sizes=(prompt_tokens,), graphs_for_prefill=True)
    return StepModel(of).step_seconds(shape), StepModel(replace(of, host=graphs)).step_seconds(shape)


def test_a_long_prefill_of_experts_under_sglang_waits_for_their_launches() -> None:
    """Qwen3-30B-A3B on H20, 7 thousand tokens: 310 ms without CUDA graphs, 289 with (SGLang pull request 11845)."""
    of = setting("qwen3-30b-a3b", gpu="h20-96gb", engine=find_engine("sglang@0.5.9"))
    launched, replayed = prefill_with_and_without_graphs(of, 7000)
    assert launched - replayed == pytest.approx(0.021, rel=0.15)
    assert replayed > 2 * launch_seconds(of, 4.5e-5)  # the GPU is busy all the time


def test_launches_of_dense_layers_hide_behind_a_busy_gpu() -> None:
    launched, replayed = prefill_with_and_without_graphs(
        setting("qwen3-32b", engine=find_engine("sglang@0.5.9")), 7000
    )
    assert launched == pytest.approx(replayed, rel=0.002)


@pytest.mark.parametrize(
    ("model", "launches"),
    [
        ("qwen3-32b", 0),
        ("qwen3-30b-a3b", 48 * 9),
        ("deepseek-v3", 58 * 11),  # and their inputs quantized, in all but three dense layers
        ("glm-5.2", 78 * 12 + 75 * 11),  # and an indexer
        ("qwen3.5-397b-a17b", 60 * 9 + 45 * (8 + 3 * 11)),  # and linear attention in three of four layers
    ],
)
def test_which_launches_wait(model: str, launches: int) -> None:
    engine = find_engine("sglang@0.5.9")
    assert waiting_seconds(setting(model, engine=engine), 1.0) == launches
    assert waiting_seconds(setting(model, engine=find_engine("vllm")), 1.0) == 0.0
    assert waiting_seconds(setting(model), 1.0) == 0.0
    replayed = find_engine("sglang@0.5.10")  # a CUDA graph a layer of prefill
    assert waiting_seconds(setting(model, engine=replayed), 1.0) == 0.0


def test_nvidias_forward_of_gpt_oss_is_within_a_third() -> None:
    """30 ms of CPU calls for 886 prompt and 3 decode tokens on two B200: aisimulate issue 277."""
    engine = find_engine("tensorrt-llm")
    host = setting("gpt-oss-120b", engine=engine, tensor_parallel_size=2).host_time()
    assert host.eager_s == pytest.approx(0.030, rel=1 / 3)


def test_results_wait_for_what_the_launch_queue_does_not_hold() -> None:
    """Of 16 kernels a layer, each with a place in the queue, however quickly it was launched."""
    words = {"quantization": "fp8", "tensor_parallel_size": 8, "engine": find_engine("tensorrt-llm")}
    assert launch_lag(setting("llama-3.1-70b", **words)) == pytest.approx(1 - LAUNCH_QUEUE / (80 * 16))  # type: ignore[arg-type]
    assert launch_lag(setting("llama-3.1-8b", **words)) == 0.0  # type: ignore[arg-type]
    few = setting("qwen3-32b", engine=find_engine("sglang"))
    assert launch_lag(few) == 0.0


def test_a_cpu_that_waits_in_every_layer_ends_with_the_gpu() -> None:
    """SGLang's launches of experts: of 94 layers, the last is launched when 93 have run."""
    assert launch_lag(setting("qwen3-235b-a22b", engine=find_engine("sglang@0.5.9"))) == pytest.approx(
        93 / 94
    )
    in_queue = launch_lag(setting("qwen3-235b-a22b", engine=find_engine("tensorrt-llm")))
    assert 0.0 < in_queue < 93 / 94


def test_results_that_another_process_reads_wait_for_no_launch() -> None:
    assert launch_lag(setting("deepseek-v3", engine=find_engine("vllm"))) == 0.0
    assert launch_lag(setting("deepseek-v3")) == 0.0
