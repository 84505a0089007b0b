"""The peak of activations grows with the limits of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from filled_pools import A100, GIB, H100, MODELS, VLLM, VLLM_011, pool_of
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.engines import EngineSpec, find_engine
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import scheme_for
from capacity.pool.activations import activation_bytes, graph_bytes, image_activation_bytes
from capacity.pool.resolve import ResolvedPool


def stepping(
    model: ModelSpec, engine: EngineSpec, *, rows: int, tokens: int, **fields: object
) -> ResolvedPool:
    """An engine whose steps sample `rows` rows of `tokens` tokens at most."""
    return replace(
        pool_of(model, H100, engine, **fields),  # type: ignore[arg-type]
        max_num_seqs=rows,
        max_num_batched_tokens=tokens,
    )


@given(
    name=st.sampled_from(MODELS),
    seqs=st.integers(1, 2048),
    tokens=st.integers(1, 65_536),
    more=st.integers(0, 4096),
)
def test_activations_grow_with_the_limits(name: str, seqs: int, tokens: int, more: int) -> None:
    model = load_model(name)
    base = activation_bytes(stepping(model, VLLM, rows=seqs, tokens=tokens))
    assert activation_bytes(stepping(model, VLLM, rows=seqs + more, tokens=tokens)) >= base
    assert activation_bytes(stepping(model, VLLM, rows=seqs, tokens=tokens + more)) >= base


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
    pool = stepping(load_model(name), find_engine(label), rows=rows, tokens=tokens, tensor_parallel_size=tp)
    peak = activation_bytes(pool)
    assert peak / GIB == pytest.approx(printed, rel=0.05)


def test_images_against_logs() -> None:
    """What two logs leave of the budget after weights, KV, graphs and 0.13 GiB of non-torch memory."""
    model = load_model("qwen3.5-35b-a3b")
    assert model.vision is not None  # of Qwen3.5-9B and Qwen3.6-27B too
    pool = stepping(replace(model, hidden_size=4096), VLLM, rows=256, tokens=2048)
    small = image_activation_bytes(0.8 * GIB, model.vision, pool)
    assert small / GIB == pytest.approx(35.54 - 17.66 - 15.85 - 0.13, rel=0.03)
    wide = stepping(replace(model, hidden_size=5120), VLLM, rows=256, tokens=2048, tensor_parallel_size=2)
    halved = image_activation_bytes(0.8 * GIB, model.vision, wide)
    assert halved / GIB == pytest.approx(2.32 - 0.96, rel=0.03)


def test_images_keep_room_in_models_that_see() -> None:
    model = load_model("qwen3.5-35b-a3b")
    blind = replace(model, vision=None)
    pools = [stepping(each, VLLM, rows=256, tokens=2048) for each in (model, blind)]
    seeing, text = map(activation_bytes, pools)
    assert model.vision is not None
    outputs = model.vision.largest_image_tokens * model.hidden_size * 2
    assert seeing >= text + outputs
    patches = model.vision.largest_image_tokens * model.vision.patches_per_token
    pixels = patches * model.vision.patch_inputs * 2
    assert image_activation_bytes(1e12, model.vision, pools[0]) == 1e12 + outputs + pixels
    one, two = (
        replace(pools[0], max_num_batched_tokens=tokens)
        for tokens in (1, 2 * model.vision.largest_image_tokens)
    )
    assert image_activation_bytes(0.0, model.vision, two) == 2 * image_activation_bytes(
        0.0, model.vision, one
    )
    sglang = [stepping(each, find_engine("sglang"), rows=256, tokens=2048) for each in (model, blind)]
    assert activation_bytes(sglang[0]) == activation_bytes(sglang[1])


def test_graphs_grow_with_layers_where_the_engines_figure_is_of_so_many() -> None:
    engine = find_engine("vllm@0.31")
    assert engine.graph_reference_layers is not None

    def gib(layers: int, engine: EngineSpec = engine, **fields: object) -> float:
        model = load_model({28: "qwen3-1.7b", 64: "qwen3-32b"}[layers])
        assert model.num_layers == layers
        pool = pool_of(model, A100, engine, max_num_seqs=256, **fields)  # type: ignore[arg-type]
        return graph_bytes(pool) / GIB

    assert gib(28) == pytest.approx(0.35, rel=0.4)  # SQL-agent's log of 0.31
    assert gib(64) == pytest.approx(0.96, rel=0.2)  # DiscoverPhysics' of 0.27.1
    assert gib(64) / gib(28) == pytest.approx(64 / 28)
    assert gib(64, enforce_eager=True) == 0
    older = find_engine("vllm@0.15")
    assert gib(64, older) == gib(28, older)


def test_quantized_activations_are_narrower_than_16_bit() -> None:
    """Weights alone quantized leave the layer as it is; FP8 and NVFP4 narrow all but gate, up and the residual."""
    model = load_model("llama-3.1-70b")
    peaks = [
        activation_bytes(stepping(model, VLLM_011, rows=1, tokens=8192, scheme=scheme_for(model, name)))
        for name in ("bf16", "awq", "fp8", "nvfp4")
    ]
    assert peaks[0] == peaks[1] == 8192 * 2 * (3 * 28_672 + 5 * 8192)
    assert peaks[2] == 8192 * 2 * (2.5 * 28_672 + 3 * 8192)
    assert peaks[2] > peaks[3] > 8192 * 2 * (2 * 28_672 + 8192)


def test_sampling_needs_less_since_017() -> None:
    """No sorted copies of the logits: 0.45 GiB for 256 rows of Llama's vocabulary, 1.17 before."""
    model = load_model("llama-3.1-8b")
    new, old = (
        activation_bytes(stepping(model, find_engine(f"vllm@{version}"), rows=256, tokens=2048))
        for version in ("0.17", "0.16")
    )
    assert (new / GIB, old / GIB) == pytest.approx((0.471, 1.189), abs=0.005)
