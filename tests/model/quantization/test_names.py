"""Names of `--quantization`: what each stands for, for every kind of model."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.model import load_model
from capacity.model.quantization import (
    find_format,
    known_quantizations,
    quantization_spellings,
    scheme_for,
    weight_bytes,
    weight_formats,
)


def test_a_spelling_stands_for_one_format() -> None:
    spellings = [
        spelling
        for stored in map(find_format, weight_formats())
        for name in stored.names
        for spelling in name.spellings
    ]
    assert len(spellings) == len(set(spellings))
    for name in known_quantizations():
        assert scheme_for(load_model("llama-3.2-1b"), name.upper().replace("-", "_")).name == name


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
    order = ["fp32", "bf16", "int8", "fp8", "nf4", "gptq-int4", "nf4-dq"]
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
        ("bitsandbytes", "nf4"),
        ("NF4_DQ", "nf4-dq"),
        ("int8_sq", "int8"),
        ("int4_awq", "int4-g128"),
        ("EETQ", "int8-channel-w8a16"),
        ("fp8_e5m2", "fp8"),
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
    assert scheme_for(load_model("llama-3.1-8b"), spelling).dense_ffn.name == linear


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


def test_formats_of_the_kv_cache_are_told_apart() -> None:
    with pytest.raises(InvalidInput, match="kv-fp8 is a KV cache format: use --kv-cache-dtype fp8"):
        scheme_for(load_model("llama-3.1-8b"), "kv-fp8")


def test_every_spelling_is_listed() -> None:
    listed = quantization_spellings()
    assert tuple(listed) == known_quantizations()
    for name, others in listed.items():
        for spelling in others:
            assert scheme_for(load_model("llama-3.1-8b"), spelling).name == name
