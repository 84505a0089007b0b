"""Formats, schemes and checkpoints' bytes: closed forms, published checkpoint sizes, every quantization_config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.hardware.coefficients import Lookup
from capacity.model import ModelSpec, from_hf_config, load_model
from capacity.model.quantization import (
    QuantizationScheme,
    find_format,
    find_kv_cache_format,
    grouped_int_format,
    known_formats,
    known_quantizations,
    kv_cache_format_names,
    scheme_for,
    weight_bytes,
)

GIB = 2**30
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


# formats


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp32", 32),
        ("bf16", 16),
        ("fp16", 16),
        ("fp8", 8 + 32 / 4096**2),
        ("fp8-channel", 8 + 16 / 4096),
        ("fp8-block", 8 + 32 / 128**2),
        ("mxfp8", 8 + 8 / 32),
        ("int8", 8 + 16 / 4096),
        ("gptq-int8", 8 + (16 + 8) / 128),
        ("gptq-int4", 4 + (16 + 4) / 128),
        ("awq-int4", 4 + (16 + 4) / 128),
        ("int4-g32-sym", 4 + 16 / 32),
        ("gptq-int3", 3 + (16 + 3) / 128),
        ("nf4", 4 + 32 / 64),
        ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256) + 32 / 4096**2),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5 + 32 / 4096**2),
        # bytes of ggml's blocks of 32 or 256 weights
        ("gguf-q4_0", 18 * 8 / 32),
        ("gguf-q4_1", 20 * 8 / 32),
        ("gguf-q5_0", 22 * 8 / 32),
        ("gguf-q5_1", 24 * 8 / 32),
        ("gguf-q8_0", 34 * 8 / 32),
        ("gguf-q2_k", 84 * 8 / 256),
        ("gguf-q3_k", 110 * 8 / 256),
        ("gguf-q4_k", 144 * 8 / 256),
        ("gguf-q5_k", 176 * 8 / 256),
        ("gguf-q6_k", 210 * 8 / 256),
    ],
)
def test_true_bits_per_weight(name: str, bits: float) -> None:
    assert find_format(name).bits_per_weight == pytest.approx(bits, rel=1e-12)
    assert find_format(name).bytes_per_weight == pytest.approx(bits / 8, rel=1e-12)


def test_partial_blocks_have_whole_scales() -> None:
    # DeepSeek-V3's kv_a_proj_with_mqa: 576 = 4.5 blocks of 128 rows
    assert find_format("fp8-block").matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4


@given(
    name=st.sampled_from(known_formats()),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    more=st.integers(1, 99),
)
def test_bytes_grow_with_the_matrix_and_cover_its_values(
    name: str, rows: int, columns: int, more: int
) -> None:
    stored = find_format(name)
    size = stored.matrix_bytes(rows, columns)
    assert size >= rows * columns * stored.value_bits / 8
    assert stored.matrix_bytes(rows + more, columns) > size
    assert stored.matrix_bytes(rows, columns + more) > size


def test_every_format_has_a_source_and_says_what_multiplies_it() -> None:
    for name in known_formats():
        stored = find_format(name)
        assert stored.source
        assert (stored.fallback_kernel is None) == (stored.compute_dtype not in ("fp8", "int8", "fp4"))


def test_a_spelling_stands_for_one_format() -> None:
    spellings = [
        spelling
        for stored in map(find_format, known_formats())
        for name in stored.names
        for spelling in name.spellings
    ]
    assert len(spellings) == len(set(spellings))
    for name in known_quantizations():
        assert scheme_for(load_model("llama-3.2-1b"), name.upper().replace("-", "_")).name == name


def test_every_format_has_constants_for_its_kernels() -> None:
    for stored in map(find_format, known_formats()):
        for kernel in {stored.kernel, stored.fallback_kernel} - {None}:
            assert Lookup((), "vllm").kernel("gemm", kernel).fit.basis == "assumed"
            assert Lookup((), "vllm").kernel("moe", kernel).fit.basis == "assumed"


def test_hardware_without_the_tensor_cores_runs_weight_only() -> None:
    a100, h100, b200 = (
        {"bf16", "fp16", "int8"},
        {"bf16", "fp16", "int8", "fp8"},
        {"bf16", "int8", "fp8", "fp4"},
    )
    fp8, nvfp4, awq = find_format("fp8"), find_format("nvfp4"), find_format("awq-int4")
    assert (fp8.execution(a100).kernel, fp8.execution(a100).compute_dtype) == ("w8a16", "bf16")
    assert "no fp8 tensor cores" in str(fp8.execution(a100).note)
    assert (fp8.execution(h100).kernel, fp8.execution(h100).note) == ("fp8", None)
    assert nvfp4.execution(h100).kernel == "w4a16"
    assert nvfp4.execution(b200).kernel == "nvfp4"
    assert all(awq.execution(gpu).kernel == "w4a16" for gpu in (a100, h100, b200))


def test_unknown_formats_suggest() -> None:
    with pytest.raises(UnknownName, match="nvfp4"):
        find_format("nvfp5")
    with pytest.raises(UnknownName, match="fp8"):
        find_kv_cache_format("fp88")


def test_kv_cache_formats() -> None:
    assert find_kv_cache_format("auto", model_dtype="fp16").name == "fp16"
    assert find_kv_cache_format("fp8_e4m3") is find_kv_cache_format("FP8")
    vectors = {name: find_kv_cache_format(name).vector_bytes(128) for name in kv_cache_format_names()}
    assert vectors == {
        "fp32": 512,
        "bf16": 256,
        "fp16": 256,
        "fp8": 128,
        "int8": 132,
        "int4": 68,
        "nvfp4": 72,
    }


# checkpoints that others measured


def test_gpt_oss_checkpoint_to_the_byte() -> None:
    # the published checkpoint's tensor bytes, openai/gpt-oss-120b model.safetensors.index.json
    assert weight_bytes(load_model("gpt-oss-120b")) == 65_248_815_744


def test_deepseek_checkpoint_to_the_value() -> None:
    """The hub's page: 680,571,043,840 FP8 values and 41,555,600 FP32, the MTP layer included.

    FP32 are the scales and the score correction biases of 59 routed layers.
    """
    model = load_model("deepseek-v3")
    scheme = model.checkpoint
    parts = [
        p for p in (*model.parameter_parts(), *model.mtp_parts()) if p.quantizable and p.kind != "router"
    ]
    eight_bit = [p for p in parts if p.name != "eh_proj" and scheme.format_of(p.kind).value_bits == 8]
    values = sum(part.params for part in eight_bit)
    scales = sum(scheme.part_bytes(part) - part.params for part in eight_bit) / 4
    assert (values, scales + 59 * 256) == (680_571_043_840, 41_555_600)


@pytest.mark.parametrize(
    ("name", "quantization", "gib", "tolerance"),
    [
        # vLLM 0.11 logs, llm-d-planner docs/empirical-vllm-memory-results.md: weights in GiB at TP 1; ours is
        # tensors only, the logs also hold buffers
        ("llama-3.1-8b", None, 14.99, 0.003),
        ("qwen3-32b", None, 61.03, 0.003),
        ("llama-3.3-70b", "fp8", 67.72, 0.003),
        ("qwen3-0.6b", None, 1.12, 0.01),
        # vLLM 0.15 log, InferenceX: nvidia/Llama-3.3-70B-Instruct-FP4
        ("llama-3.3-70b", "nvfp4", 39.89, 0.004),
    ],
)
def test_weights_in_engine_logs(name: str, quantization: str | None, gib: float, tolerance: float) -> None:
    model = load_model(name)
    assert weight_bytes(model, scheme_for(model, quantization)) / GIB == pytest.approx(gib, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "quantization", "gigabytes", "tolerance"),
    [
        ("kimi-k2.5", None, 595.1, 0.002),  # the published files; what is left is the vision tower
        ("minimax-m2", None, 230.12, 0.001),  # hf-mem; its router is FP32, 0.1 GB more than ours
        # file sizes on the hub: bartowski/Meta-Llama-3.1-8B-Instruct-GGUF (2024-07); tokenizer and metadata inside
        ("llama-3.1-8b", "gguf-q4_k_m", 4.92, 0.004),
        ("llama-3.1-8b", "gguf-q6_k", 6.60, 0.004),
        ("llama-3.1-8b", "gguf-q8_0", 8.54, 0.004),
        ("llama-3.1-8b", "gguf-q5_k_m", 5.73, 0.004),
        ("llama-3.1-8b", "gguf-q2_k", 3.18, 0.004),
    ],
)
def test_published_file_sizes(
    name: str, quantization: str | None, gigabytes: float, tolerance: float
) -> None:
    model = load_model(name)
    assert weight_bytes(model, scheme_for(model, quantization)) / 1e9 == pytest.approx(
        gigabytes, rel=tolerance
    )


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


# schemes by name


@pytest.mark.parametrize("name", known_quantizations())
@pytest.mark.parametrize(
    "model_name", ["llama-3.2-1b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-next-80b-a3b"]
)
def test_every_name_gives_a_scheme_that_fits_every_model(name: str, model_name: str) -> None:
    model = load_model(model_name)
    scheme = scheme_for(model, name)
    stored = weight_bytes(model, scheme)
    assert 0.25 * model.total_params < stored <= 4 * model.total_params
    assert stored == sum(scheme.part_bytes(part) for part in model.parameter_parts())


def test_fewer_bits_are_fewer_bytes() -> None:
    model = load_model("llama-3.1-70b")
    order = ["fp32", "bf16", "int8", "fp8", "gptq-int4", "nf4"]
    sizes = [weight_bytes(model, scheme_for(model, name)) for name in order]
    assert sizes == sorted(sizes, reverse=True)


def test_16_bit_is_two_bytes_for_each_parameter() -> None:
    model = load_model("qwen3-8b")
    assert weight_bytes(model) == 2 * model.total_params
    assert weight_bytes(model, scheme_for(model, "fp32")) == 4 * model.total_params


@pytest.mark.parametrize(
    ("spelling", "linear"),
    [
        ("FP8", "fp8"),
        ("awq", "int4-g128"),
        ("awq_marlin", "int4-g128"),
        ("gptq", "int4-g128"),
        ("bitsandbytes", "nf4-dq"),
        ("modelopt", "fp8"),
        ("modelopt_fp4", "nvfp4"),
        ("w8a8", "int8"),
        ("int8", "int8"),
        ("gguf", "gguf-q4_k"),
        ("Q4_K_M", "gguf-q4_k"),
        ("q8_0", "gguf-q8_0"),
        ("mxfp4", "mxfp4"),
        ("half", "fp16"),
    ],
)
def test_vllm_names_are_accepted(spelling: str, linear: str) -> None:
    assert scheme_for(load_model("llama-3.1-8b"), spelling).linear.name == linear


def test_a_name_that_the_checkpoint_answers_to_is_the_checkpoint() -> None:
    gpt_oss, deepseek = load_model("gpt-oss-20b"), load_model("deepseek-v3")
    assert scheme_for(gpt_oss, "mxfp4") is scheme_for(gpt_oss) is gpt_oss.checkpoint
    assert scheme_for(deepseek, "fp8") is deepseek.checkpoint
    assert scheme_for(deepseek, "bf16").experts.name == "bf16"
    assert scheme_for(deepseek, "nvfp4").experts.name == "nvfp4"


def test_unknown_names_and_misplaced_methods_are_refused() -> None:
    model = load_model("llama-3.1-8b")
    with pytest.raises(UnknownName, match="Did you mean"):
        scheme_for(model, "gguf-q4-k-x")
    with pytest.raises(InvalidInput, match="compressed-tensors"):
        scheme_for(model, "compressed-tensors")


def test_embeddings_and_norms_stay_at_16_bit() -> None:
    model = load_model("llama-3.1-8b")
    scheme = scheme_for(model, "awq")
    kept = [part for part in model.parameter_parts() if part.kind in ("embedding", "lm_head", "norm")]
    assert all(scheme.part_bytes(part) == 2 * part.params for part in kept)


def test_q4_k_m_promotes_half_of_the_sensitive_layers() -> None:
    scheme = scheme_for(load_model("llama-3.1-8b"), "gguf-q4_k_m")
    promoted = {e.part_name: e.layers for e in scheme.exceptions}
    first_and_last, between = {0, 1, 2, 3, 28, 29, 30, 31}, set(range(6, 28, 3))
    assert promoted == {
        "self_attn.v_proj": first_and_last | between,
        "mlp.down_proj": first_and_last | between,
    }
    assert scheme.lm_head.name == "gguf-q6_k"
    tied = scheme_for(load_model("llama-3.2-1b"), "gguf-q4_k_m")
    assert tied.embedding.name == "gguf-q6_k"


# quantization_config


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
