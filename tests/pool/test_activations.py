"""The peak of activations grows with the limits of a step."""

from __future__ import annotations

import pytest
from filled_pools import GIB, MODELS, VLLM, VLLM_011
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.engines import find_engine
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.pool.activations import activation_bytes


@given(
    name=st.sampled_from(MODELS),
    seqs=st.integers(1, 2048),
    tokens=st.integers(1, 65_536),
    more=st.integers(0, 4096),
)
def test_activations_grow_with_the_limits(name: str, seqs: int, tokens: int, more: int) -> None:
    model = load_model(name)
    base = activation_bytes(model, VLLM, sampled_rows=seqs, tokens=tokens)
    assert activation_bytes(model, VLLM, sampled_rows=seqs + more, tokens=tokens) >= base
    assert activation_bytes(model, VLLM, sampled_rows=seqs, tokens=tokens + more) >= base


@pytest.mark.parametrize(
    ("label", "name", "rows", "tokens", "tp", "printed"),
    [
        ("vllm@0.7.2", "qwen2.5-14b", 256, 32_768, 2, 2.84),  # distributed_agent_gc, the prompt in one step
        ("vllm@0.7.2", "qwen2.5-1.5b", 256, 32_768, 1, 2.02),
        ("vllm@0.10.2", "qwen2.5-3b", 1, 2048, 1, 0.17),  # memory-aware_RLHF: nothing but the layer
        ("vllm@0.10.2", "qwen3-30b-a3b-2507", 1024, 8192, 1, 5.58),  # mlops-assignment: sampling
    ],
)
def test_activations_against_logs(
    label: str, name: str, rows: int, tokens: int, tp: int, printed: float
) -> None:
    peak = activation_bytes(
        load_model(name), find_engine(label), sampled_rows=rows, tokens=tokens, tensor_parallel_size=tp
    )
    assert peak / GIB == pytest.approx(printed, rel=0.05)


def test_quantized_activations_are_narrower_than_16_bit() -> None:
    """Weights alone quantized leave the layer as it is; FP8 and NVFP4 narrow all but gate, up and the residual."""
    model = load_model("llama-3.1-70b")
    peaks = [
        activation_bytes(model, VLLM_011, sampled_rows=1, tokens=8192, scheme=scheme_for(model, name))
        for name in ("bf16", "awq", "fp8", "nvfp4")
    ]
    assert peaks[0] == peaks[1] == 8192 * 2 * (3 * 28_672 + 5 * 8192)
    assert peaks[2] == 8192 * 2 * (2.5 * 28_672 + 3 * 8192)
    assert peaks[2] > peaks[3] > 8192 * 2 * (2 * 28_672 + 8192)


def test_sampling_needs_less_since_017() -> None:
    """No sorted copies of the logits: 0.43 GiB for 256 rows of Llama's vocabulary, 1.17 before."""
    model = load_model("llama-3.1-8b")
    new, old = (
        activation_bytes(model, find_engine(f"vllm@{version}"), sampled_rows=256, tokens=2048)
        for version in ("0.17", "0.16")
    )
    assert (new / GIB, old / GIB) == pytest.approx((0.448, 1.189), abs=0.005)
