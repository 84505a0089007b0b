"""The peak of activations grows with the limits of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from filled_pools import GIB, MODELS, VLLM, VLLM_011
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.engines import find_engine
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.pool.activations import activation_bytes, graph_bytes, with_images


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


def test_images_against_logs() -> None:
    """What two logs leave of the budget after weights, KV, graphs and 0.13 GiB of non-torch memory."""
    tower = load_model("qwen3.5-35b-a3b").vision  # of Qwen3.5-9B and Qwen3.6-27B too
    assert tower is not None
    small = with_images(0.8 * GIB, tower, 4096, tokens=2048)
    assert small / GIB == pytest.approx(35.54 - 17.66 - 15.85 - 0.13, rel=0.03)
    halved = with_images(0.8 * GIB, tower, 5120, tokens=2048, tensor_parallel_size=2)
    assert halved / GIB == pytest.approx(2.32 - 0.96, rel=0.03)


def test_images_keep_room_in_models_that_see() -> None:
    model = load_model("qwen3.5-35b-a3b")
    blind = replace(model, vision=None)
    seeing, text = (activation_bytes(each, VLLM, sampled_rows=256, tokens=2048) for each in (model, blind))
    assert model.vision is not None
    outputs = model.vision.largest_image_tokens * model.hidden_size * 2
    assert seeing >= text + outputs
    patches = model.vision.largest_image_tokens * model.vision.patches_per_token
    pixels = patches * model.vision.patch_inputs * 2
    assert with_images(1e12, model.vision, model.hidden_size, tokens=2048) == 1e12 + outputs + pixels
    doubled = with_images(0.0, model.vision, model.hidden_size, tokens=2 * model.vision.largest_image_tokens)
    assert doubled == 2 * with_images(0.0, model.vision, model.hidden_size, tokens=1)
    sglang = find_engine("sglang")
    assert activation_bytes(model, sglang, sampled_rows=256, tokens=2048) == activation_bytes(
        blind, sglang, sampled_rows=256, tokens=2048
    )


def test_graphs_grow_with_layers_where_the_engines_figure_is_of_so_many() -> None:
    engine = find_engine("vllm@0.31")
    assert engine.graph_reference_layers is not None
    sizes = {layers: graph_bytes(engine, "ampere", 256, num_layers=layers) / GIB for layers in (28, 64)}
    assert sizes[28] == pytest.approx(0.35, rel=0.4)  # SQL-agent's log of 0.31
    assert sizes[64] == pytest.approx(0.96, rel=0.2)  # DiscoverPhysics' of 0.27.1
    assert sizes[64] / sizes[28] == pytest.approx(64 / 28)
    assert graph_bytes(engine, "ampere", 256, num_layers=64, enforce_eager=True) == 0
    older = find_engine("vllm@0.15")
    assert graph_bytes(older, "ampere", 256, num_layers=64) == graph_bytes(older, "ampere", 256)


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
    """No sorted copies of the logits: 0.45 GiB for 256 rows of Llama's vocabulary, 1.17 before."""
    model = load_model("llama-3.1-8b")
    new, old = (
        activation_bytes(model, find_engine(f"vllm@{version}"), sampled_rows=256, tokens=2048)
        for version in ("0.17", "0.16")
    )
    assert (new / GIB, old / GIB) == pytest.approx((0.471, 1.189), abs=0.005)
