"""GPUs with the same chip and different memory: the one with more bandwidth is never slower."""

from itertools import permutations

import pytest

from capacity.deployment import Pool
from capacity.hardware import HardwareProfile, load_profile, profile_names
from capacity.pool.resolve import resolve
from capacity.step import decode_shape
from capacity.step.shape import prefill_shape

SHAPES = (
    decode_shape(1, 500),
    decode_shape(64, 2_000),
    prefill_shape(1, 512),
    prefill_shape(4, 2_048),
)
FORMATS = (
    ("llama-3.1-8b", "bf16"),
    ("llama-3.1-8b", "fp8"),
    ("qwen3-8b", "fp8-block"),
    ("qwen3-30b-a3b", "bf16"),
    ("qwen3-30b-a3b", "fp8"),
    ("qwen3-30b-a3b", "fp8-block"),
    ("qwen3-30b-a3b", "awq-int4"),
    ("gpt-oss-20b", "mxfp4"),
    ("deepseek-v2-lite", "bf16"),
)
UNSUPPORTED = {"a100-sxm-40gb": {("tensorrt-llm", name) for name in ("fp8", "fp8-block", "mxfp4")}}
ROUNDING = 1e-9
SAME = ("vendor", "form_factor", "compute_capability", "sm_count", "dense_flops_per_s", "tdp_watts")


def _is_faster(slower: HardwareProfile, faster: HardwareProfile) -> bool:
    """Return whether only memory differs, and its bandwidth is higher."""
    same = slower.vendor == "nvidia" and all(getattr(slower, name) == getattr(faster, name) for name in SAME)
    return same and slower.hbm_bytes_per_s < faster.hbm_bytes_per_s


PROFILES = [load_profile(name) for name in profile_names()]
SISTERS = [(a.name, b.name) for a, b in permutations(PROFILES, 2) if _is_faster(a, b)]


def test_sister_cards_are_found() -> None:
    assert {("h100-sxm-80gb", "h200-sxm-141gb"), ("a100-sxm-40gb", "a100-sxm-80gb")} <= set(SISTERS)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(("slower", "faster"), SISTERS)
def test_card_with_more_bandwidth_is_never_slower(slower: str, faster: str, engine: str) -> None:
    """Each kernel, and the whole step; launch gaps and host time are what the GPU's time does not hide."""
    for model, quantization in FORMATS:
        if (engine, quantization) in UNSUPPORTED.get(slower, ()):
            continue
        steps = [
            resolve(model, Pool(gpu=gpu, engine=engine, quantization=quantization)).step_model
            for gpu in (slower, faster)
        ]
        for shape in SHAPES:
            here, there = ({op.name: op.seconds for op in step.step_cost(shape).operators} for step in steps)
            kernels = here.keys() - {"launch gaps", "host"}
            assert {name for name in kernels if there[name] > here[name] * (1 + ROUNDING)} == set()
            assert steps[1].step_seconds(shape) <= steps[0].step_seconds(shape) * (1 + ROUNDING)


@pytest.mark.parametrize("gpu", ["h200-nvl-141gb", "h20-96gb", "gh200-144gb"])
def test_kernels_that_the_source_lacks_come_from_its_own_source(gpu: str) -> None:
    """H200 has no tables of decode attention and takes H100's, and so do GPUs that take H200's constants."""
    steps = resolve("llama-3.1-8b", Pool(gpu=gpu, engine="vllm")).step_model
    measured = load_profile("h100").step_time
    assert measured is not None
    constants = steps._lookup.kernel("decode_attention", "16bit")
    assert constants.occupancy_s == measured.families["vllm"].decode_attention["16bit"].occupancy_s
    assert "decode_attention 16bit" in steps.assumed
