"""What a step model is made of: whose constants, which CUDA graphs, which ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.hardware.adjustment import Adjustment
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.step import prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import HostTime, StepSetting, coefficient_sources, graph_sizes


def test_a_ring_over_two_sockets_is_slower_and_nvlink_has_none() -> None:
    """70B over eight L40S, 2,048 tokens: 709 ms by TensorRT-LLM 0.8's documents, over four 673 ms (0.9)."""
    by_gpu = {
        gpu: StepSetting(model=load_model("llama-2-70b"), profile=load_profile(gpu))
        for gpu in ("l40s", "h100")
    }
    four, eight = (by_gpu["l40s"].find_link(gpus).bytes_per_s for gpus in (4, 8))
    assert four == load_profile("l40s").pcie.bytes_per_s
    assert eight / four == pytest.approx(0.81, abs=0.02)
    assert by_gpu["h100"].find_link(8) == by_gpu["h100"].find_link(4)
    (note,) = replace(by_gpu["l40s"], tensor_parallel_size=8).crossing_notes()
    assert f"{eight / 1e9:.0f} GB/s" in note
    for gpus, measured_s in ((4, 0.6733), (8, 0.7087)):
        setting = replace(
            by_gpu["l40s"],
            engine=find_engine("tensorrt-llm"),
            host=HostTime(),
            scheme=scheme_for(by_gpu["l40s"].model, "fp8"),
            kv_cache_dtype="fp8",
            tensor_parallel_size=gpus,
        )
        assert StepModel(setting).step_seconds(prefill_shape(1, 2048)) == pytest.approx(measured_s, rel=0.06)


def test_another_gpus_fit_is_refused_with_a_way_out() -> None:
    h100 = load_profile("h100-sxm-80gb")
    stolen = h100.model_copy(update={"step_time": load_profile("a100-sxm-80gb").step_time})
    with pytest.raises(InvalidInput, match="transferred_from"):
        coefficient_sources(stolen)


def test_transferred_constants_come_after_own_ones() -> None:
    own, other = coefficient_sources(load_profile("h200-sxm-141gb"))
    assert own.gpu == "h200-sxm-141gb"
    assert other.gpu == "h100-sxm-80gb"
    assert len(coefficient_sources(load_profile("h100-sxm-80gb"))) == 1


def test_vllm_graph_sizes() -> None:
    sizes = graph_sizes(512)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-2:] == (496, 512)
    assert len(sizes) == 3 + 32 + 16


def test_host_time_is_the_engines_unless_it_is_set() -> None:
    model, profile = load_model("llama-3.1-8b"), load_profile("h100")
    bare = StepSetting(model=model, profile=profile).host_time()
    assert bare == HostTime(graph_sizes=graph_sizes(512))
    engine = StepSetting(model=model, profile=profile, engine=find_engine("vllm"), max_num_seqs=100)
    assert engine.host_time().step_s > 0
    assert engine.host_time().graph_sizes[-1] < 512
    assert StepSetting(model=model, profile=profile, host=HostTime(step_s=1.0)).host_time().step_s == 1.0


def test_without_asynchronous_scheduling_nothing_hides() -> None:
    model, profile = load_model("llama-3.1-8b"), load_profile("h100")
    for name, default in (("vllm@0.15", True), ("vllm@0.8", False), ("tensorrt-llm@1.0-no-overlap", False)):
        setting = StepSetting(model=model, profile=profile, engine=find_engine(name))
        assert setting.host_time().overlapped is default
        for asked in (True, False):
            assert replace(setting, async_scheduling=asked).host_time().overlapped is asked


def test_a_slower_machine_takes_longer_for_all_that_its_cpu_does() -> None:
    profile, engine = load_profile("h100"), find_engine("vllm")
    setting = StepSetting(model=load_model("llama-3.1-8b"), profile=profile, engine=engine)
    slower = Adjustment(means={"host": math.log(2.0)}, source="a test", date="2026-11-22")
    usual, slow = setting.host_time(), replace(setting, profile=profile.with_adjustment(slower)).host_time()
    for name in ("step_s", "per_sequence_s", "serial_s"):
        assert getattr(slow, name) == pytest.approx(2 * getattr(usual, name)) != 0
    assert slow.graph_sizes == usual.graph_sizes


def test_host_time_of_a_sequence_is_the_same_at_any_depth() -> None:
    shallow, deep = (
        StepSetting(model=load_model(name), profile=load_profile("h100"), engine=find_engine("vllm@0.8"))
        for name in ("llama-3.1-8b", "llama-3.1-70b")
    )
    assert shallow.host_time().per_sequence_s == deep.host_time().per_sequence_s > 0


@pytest.mark.parametrize(("model", "joint"), [("llama-3.1-8b", False), ("mixtral-8x7b", True)])
def test_only_a_mixture_shares_experts_among_ranks(model: str, joint: bool) -> None:
    setting = StepSetting(
        model=load_model(model),
        profile=load_profile("h100"),
        data_parallel_size=2,
        enable_expert_parallel=True,
    )
    assert (setting.runs_joint_steps, setting.expert_parallel) == (joint, joint)
    assert setting.weights is setting.model.checkpoint


@pytest.mark.parametrize(
    ("engine", "gpu", "kernel"),
    [
        ("vllm@0.11", "h100-sxm-80gb", "w4a16"),  # Marlin
        ("vllm@0.15", "h100-sxm-80gb", "mxfp4"),  # OpenAI's Triton kernels: vLLM PR 27523
        ("vllm@0.11", "b200-sxm-180gb", "mxfp4"),
        ("vllm@0.15", "a100-sxm-80gb", "w4a16"),
        ("tensorrt-llm@1.1", "h100-sxm-80gb", "mxfp4"),
    ],
)
def test_mxfp4_experts_run_by_the_kernels_that_the_release_takes(engine: str, gpu: str, kernel: str) -> None:
    model = load_model("gpt-oss-120b")
    setting = StepSetting(model=model, profile=load_profile(gpu), engine=find_engine(engine))
    execution = setting.execution(model.checkpoint.format_of("experts"))
    assert (execution.kernel, execution.compute_dtype) == (kernel, "bf16")
