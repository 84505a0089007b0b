"""Every `quantization_config`: formats, exclusions by module, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import MalformedFile
from capacity.model import ModelSpec, from_hf_config
from capacity.model.quantization import (
    QuantizationScheme,
    grouped_int_format,
    weight_bytes,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
MIXTURE = LLAMA | {
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}


def quantized(config: dict[str, Any], *, base: dict[str, Any] = LLAMA) -> ModelSpec:
    return from_hf_config(base | {"quantization_config": config}, name="small")


def scheme_of(config: dict[str, Any], *, base: dict[str, Any] = LLAMA) -> QuantizationScheme:
    return quantized(config, base=base).checkpoint


def compressed(
    weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


@pytest.mark.parametrize(
    ("config", "expected", "method"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4-g128", "awq"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4-g64", "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "int4-g32", "gptq"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8-channel", "gptq"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8-block", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, "fp8-block-1x128", "fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8-channel-fp32", "fbgemm_fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "modelopt-fp8"),
        ({"quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", "modelopt-nvfp4"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "nvfp4", "modelopt-nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4-w4a16", "modelopt-nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "llm-int8", "bitsandbytes-int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", "bitsandbytes-nf4"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            "nf4-dq",
            "bitsandbytes-nf4",
        ),
        ({"quant_method": "gguf", "file_type": "Q4_K_M"}, "gguf-q4_k", "gguf"),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            },
            "fp8",
            "quark-fp8",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            "mxfp4",
            "quark-mxfp4",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}, {}),
            "fp8",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8}),
            "fp8-channel",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}),
            "fp8-channel-w8a16",
            "compressed-tensors-fp8",
        ),
        (
            compressed(
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, {}
            ),
            "fp8-block",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}),
            "int8",
            "compressed-tensors-int8",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
            ),
            "int4-g128",
            "compressed-tensors-int4",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
            ),
            "int4-g32-sym",
            "compressed-tensors-int4",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                {"num_bits": 4},
            ),
            "nvfp4",
            "compressed-tensors-nvfp4",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_config_is_read(config: dict[str, Any], expected: str, method: str) -> None:
    scheme = scheme_of(config)
    assert (scheme.linear.name, scheme.attention.name, scheme.method) == (expected, expected, method)
    if method != "gguf":
        assert (scheme.lm_head.name, scheme.embedding.name) == ("bf16", "bf16")


def test_mxfp4_is_of_experts_only() -> None:
    scheme = scheme_of({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, base=MIXTURE)
    assert (scheme.experts.name, scheme.attention.name, scheme.shared_expert.name) == (
        "mxfp4",
        "bf16",
        "bf16",
    )


@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
def test_the_config_is_found_in_every_place(place: str) -> None:
    config = {"quant_method": "fp8"}
    flat = from_hf_config(LLAMA | {place: config}, name="x")
    outer = {"model_type": "llava", "text_config": LLAMA | {place: config}}
    assert flat.checkpoint.name == from_hf_config(outer, name="x").checkpoint.name == "fp8"


def test_an_empty_config_is_none() -> None:
    assert not scheme_of({}).quantized


def test_kv_cache_wishes() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    fp8_cache = {"num_bits": 8, "type": "float", "dynamic": False}
    assert scheme_of(compressed(weights, {}, kv_cache_scheme=fp8_cache)).kv_cache_dtype == "fp8"
    assert scheme_of(compressed(weights, {}, kv_cache_scheme=None)).kv_cache_dtype is None
    algorithm = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    assert scheme_of({"quantization": algorithm}).kv_cache_dtype == "fp8"
    with pytest.raises(MalformedFile, match=r"kv_cache_quant_algo.*FP6"):
        scheme_of({"quantization": algorithm | {"kv_cache_quant_algo": "FP6"}})


# exclusions


def test_llama_4_scout_fp8_leaves_attention_at_16_bit() -> None:
    ignored = [f"language_model.model.layers.{n}.self_attn.{p}_proj" for n in range(4) for p in "qkvo"]
    ignored += [f"language_model.model.layers.{n}.feed_forward.router" for n in range(4)]
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    activations = {"num_bits": 8, "type": "float", "dynamic": True}
    base = MIXTURE | {"model_type": "llama4_text", "attention_chunk_size": 64}
    scheme = scheme_of(compressed(weights, activations, ignore=ignored), base=base)
    names = (scheme.attention.name, scheme.experts.name, scheme.shared_expert.name, scheme.lm_head.name)
    assert names == ("bf16", "fp8-channel", "fp8-channel", "bf16")
    assert scheme.exceptions == ()


@pytest.mark.parametrize(
    ("patterns", "excluded"),
    [
        (["self_attn"], {"q", "k", "v", "o"}),
        (["model.layers.*.self_attn"], {"q", "k", "v", "o"}),
        ([f"model.layers.{n}.self_attn*" for n in range(4)], {"q", "k", "v", "o"}),
        (["re:.*self_attn.*"], {"q", "k", "v", "o"}),
        (["re:.*self_attn.o_proj$"], {"o"}),
        (["re:.*qkv_proj"], {"q", "k", "v"}),
        (["*.o_proj"], {"o"}),
        ([f"language_model.model.layers.{n}.self_attn.qkv_proj" for n in range(4)], {"q", "k", "v"}),
        (["lm_head", "model.embed_tokens", "visual", "mtp.layers.0.self_attn.o_proj"], set()),
        (["re:vision_tower.*", "re:multi_modal_projector.*"], set()),
    ],
)
def test_patterns_mean_the_modules_that_checkpoints_mean(patterns: list[str], excluded: set[str]) -> None:
    model = quantized({"quant_method": "fp8", "modules_to_not_convert": patterns})
    stored = {p.name: model.checkpoint.part_bytes(p) / p.params for p in model.parameter_parts()}
    kept = {name[10] for name, size in stored.items() if name.startswith("self_attn.") and size == 2}
    assert kept == excluded
    assert stored["mlp.gate_proj"] < 1.01


def test_single_layers_are_exceptions_to_the_byte() -> None:
    plain = quantized({"quant_method": "fp8"})
    patterns = ["model.layers.0.mlp.down_proj", "model.layers.3"]
    model = quantized({"quant_method": "fp8", "modules_to_not_convert": patterns})
    layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 512
    extra = (layer - 7 * 4) + (256 * 512 - 4)  # one more byte each, without their FP32 scales
    assert weight_bytes(model) - weight_bytes(plain) == extra
    assert {(e.part_name, e.layers) for e in model.checkpoint.exceptions} >= {
        ("mlp.down_proj", frozenset({0, 3})),
        ("self_attn.q_proj", frozenset({3})),
    }


def test_exceptions_count_in_the_layers_that_a_part_has() -> None:
    scheme = scheme_of({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self_attn.q_proj"]})
    part = next(p for p in quantized({}).parameter_parts() if p.name == "self_attn.q_proj")
    weights = 256 * 256
    sizes = [scheme.part_bytes(replace(part, layers=layers)) for layers in [(0, 1), (2, 3), (3,)]]
    assert sizes == [2 * (weights + 4), weights + 4 + 2 * weights, 2 * weights]


def test_shared_and_routed_experts_by_their_names() -> None:
    patterns = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    scheme = scheme_of(compressed(weights, ignore=patterns), base=MIXTURE)
    assert (scheme.experts.name, scheme.shared_expert.name, scheme.attention.name) == (
        "int4-g32-sym",
        "bf16",
        "bf16",
    )


def test_mixed_precision_names_every_module() -> None:
    layers = {f"model.layers.{n}.mlp.experts": {"quant_algo": "NVFP4"} for n in range(4)}
    layers |= {f"model.layers.{n}.self_attn.{p}_proj": {"quant_algo": "FP8"} for n in range(4) for p in "qkv"}
    layers |= {"lm_head": {"quant_algo": "W4A16_NVFP4"}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    scheme = scheme_of(config, base=MIXTURE)
    assert (scheme.experts.name, scheme.shared_expert.name, scheme.lm_head.name) == (
        "nvfp4",
        "bf16",
        "nvfp4-w4a16",
    )
    exceptions = {e.part_name: e.weight_format.name for e in scheme.exceptions}
    by_format = {"fp8": {"q", "k", "v"}, "bf16": {"o"}}
    for name, projections in by_format.items():
        for projection in projections:
            found = exceptions.get(f"self_attn.{projection}_proj", scheme.attention.name)
            assert found == name


def test_groups_by_target() -> None:
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {
        "experts": {"targets": ["re:.*mlp.experts.*"], "weights": int4},
        "rest": {"targets": ["Linear"], "weights": fp8, "input_activations": {"num_bits": 8}},
    }
    scheme = scheme_of({"quant_method": "compressed-tensors", "config_groups": groups}, base=MIXTURE)
    assert (scheme.experts.name, scheme.attention.name) == ("int4-g128-sym", "fp8-channel")


def test_gptq_overrides_by_module() -> None:
    dynamic = {"-:.*self_attn.*": {}, r"+:.*mlp\.down_proj.*": {"bits": 8}}
    scheme = scheme_of({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic})
    assert (scheme.attention.name, scheme.dense_ffn.name) == ("bf16", "int4-g128")
    assert {e.part_name: e.weight_format.name for e in scheme.exceptions} == {"mlp.down_proj": "int8-g128"}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "brandnew"}, "brandnew"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"bits": 4}, "quant_method"),
        ({"quant_method": "gptq", "bits": 5}, "5 is not one of"),
        ({"quant_method": "gptq"}, "bits"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed({"num_bits": 5, "type": "int"}), "num_bits.*5 bits"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 64}), "group_size.*64"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "spiral"}), "spiral"),
        (compressed({"num_bits": 8}, ignore=["re:("]), "regular expression"),
        (compressed({"num_bits": 8}, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
        ({"quant_method": "modelopt", "quant_algo": "FP5"}, "FP5"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        ({"quant_method": "quark"}, "global_quant_config"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "bfp9"}}}, "bfp9"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, "nf5"),
        ({"quant_method": "gguf"}, "--quantization"),
        ({"quant_method": 3}, "quant_method"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    with pytest.raises(MalformedFile, match=named) as caught:
        scheme_of(config)
    assert "quantization_config" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(bits=st.sampled_from([2, 3, 4, 8]), group=st.integers(-1, 512), zero_point=st.booleans())
def test_grouped_integers_of_any_shape(bits: int, group: int, zero_point: bool) -> None:
    stored = grouped_int_format(bits, group, zero_point=zero_point)
    columns, rows = 2048, 64
    groups = -(-columns // group) if group > 0 else 1
    expected = rows * (columns * bits + groups * (16 + (bits if zero_point else 0))) / 8
    assert stored.matrix_bytes(rows, columns) == expected
