"""Ids of copies: the model and the weight format that their names say, never without saying so."""

from __future__ import annotations

import pytest

import capacity
from capacity.base.errors import InvalidInput, UnknownName
from capacity.model import load_model, model_names
from capacity.model.presets import read_variant
from capacity.model.quantization import scheme_for, weight_bytes

# id on the hub, preset, format; formats are those of the checkpoints' own quantization_config (their model cards,
# 2026-11): NVIDIA's ModelOpt FP8 per tensor, Qwen's FP8 in 128 x 128 blocks, *-FP8-dynamic per channel, w4a16 in
# groups of 128
IDS = [
    ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.3-70b", "fp8"),
    ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1", "nvfp4"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8-channel"),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "int4-g128-sym"),
    ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b", "int8"),
    ("unsloth/Qwen3-32B-unsloth-bnb-4bit", "qwen3-32b", "nf4"),
    ("unsloth/DeepSeek-V3-bf16", "deepseek-v3", "bf16"),
    ("unsloth/Qwen3-32B-GGUF", "qwen3-32b", "gguf-q4_k_m"),
    ("unsloth/Qwen3-32B-GGUF:Q8_0", "qwen3-32b", "gguf-q8_0"),
    ("google/gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b", "gguf-q4_0"),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "awq-int4"),
    ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "gptq-int4"),
    ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "qwen2.5-72b", "gptq-int8"),
    ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
    ("zai-org/GLM-4.7-FP8", "glm-4.7", "fp8-channel"),
    ("amd/Llama-3.1-70B-Instruct-MXFP4", "llama-3.1-70b", "mxfp4"),
    ("llama-3.1-70b-awq", "llama-3.1-70b", "awq-int4"),
]


@pytest.mark.parametrize(("hf_id", "preset", "weight_format"), IDS)
def test_the_name_says_model_and_format_and_a_note_says_so(
    hf_id: str, preset: str, weight_format: str
) -> None:
    model, original = load_model(hf_id), load_model(preset)
    assert (model.name, model.checkpoint.name) == (preset, weight_format)
    assert model.hf_id == (hf_id if "/" in hf_id else None)
    assert weight_bytes(model) == weight_bytes(original, scheme_for(original, weight_format))
    (note,) = model.notes
    assert all(part in note for part in (repr(hf_id), preset, weight_format))


def test_a_copy_under_another_owner_is_said_to_be_one() -> None:
    model = load_model("unsloth/Llama-3.3-70B-Instruct")
    assert model.checkpoint == load_model("llama-3.3-70b").checkpoint
    assert "meta-llama/Llama-3.3-70B-Instruct" in model.notes[0]


def test_an_fp8_cache_in_the_name_is_the_checkpoints_wish() -> None:
    answer = capacity.fit("amd/Llama-3.1-70B-Instruct-FP8-KV", gpu="h200")
    assert (answer.weight_format, answer.kv_cache_dtype) == ("fp8", "fp8")
    assert any("from its name" in warning for warning in answer.warnings)


def test_vllms_names_of_a_copys_own_format_are_the_copy_itself() -> None:
    """`vllm serve ID --quantization modelopt` serves NVFP4 where the checkpoint is NVFP4."""
    for hf_id, name in [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "modelopt"),
        ("nvidia/Qwen3-32B-NVFP4", "modelopt"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "compressed-tensors"),
        ("unsloth/Qwen3-32B-GGUF:Q8_0", "gguf"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "awq"),
    ]:
        model = load_model(hf_id)
        assert scheme_for(model, name) == model.checkpoint


def test_what_is_no_copy_of_a_preset_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--download"):
        load_model("nvidia/Some-Model-FP8")
    for name in ("llama-3.1-8b-foo", "-fp8", "fp8", "../no-model-fp8", "a/b/no-model"):
        with pytest.raises(UnknownName):
            load_model(name)


def test_presets_and_their_ids_are_read_as_they_are() -> None:
    for name in model_names():
        model = load_model(name)
        assert not any("is read as preset" in note for note in model.notes)
        assert load_model(str(model.hf_id)) == model
        said = read_variant(str(model.hf_id)).weight_format
        assert said is None or said.split("-")[0] in model.checkpoint.name, (
            f"{model.hf_id} is not read as {said}"
        )
