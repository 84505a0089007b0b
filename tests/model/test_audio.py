"""Audio encoders and Whisper: published parameter counts, and the tokens that a clip becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capacity.base.errors import MalformedFile
from capacity.model import from_hf_config, load_model
from capacity.model.audio import tokens_of_audio

# totals of the safetensors metadata that the models' pages on the Hugging Face hub state, text and encoder
PUBLISHED = [
    ("whisper-large-v3", 1_543_490_560),
    ("whisper-large-v3-turbo", 808_878_080),
    ("qwen2-audio-7b", 8_397_094_912),
    ("voxtral-mini-3b", 4_676_271_104),
]
WHISPER_ENCODER = 636_968_960  # of large v3, without a decoder


@pytest.mark.parametrize(("name", "published"), PUBLISHED)
def test_counts_are_the_published_ones(name: str, published: int) -> None:
    model = load_model(name)
    assert model.total_params + model.tower_params == published
    assert model.uncounted == ()


def test_whisper_tiny_is_counted_by_its_own_sizes() -> None:
    """37,760,640, of its page; 80 mel bins."""
    config = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _TINY.items()}
    model = from_hf_config(
        config
        | {"model_type": "whisper", "d_model": 384, "vocab_size": 51_865, "num_mel_bins": 80}
        | {"max_source_positions": 1_500, "max_target_positions": 448},
        name="whisper-tiny",
    )
    assert model.total_params == 37_760_640
    assert model.prompt_audio_s == 30


_TINY = {"layers": 4, "attention_heads": 6, "ffn_dim": 1_536}


@pytest.mark.parametrize(
    ("name", "seconds", "tokens"),
    [
        ("qwen2-audio-7b", 10, 250),  # 25 a second
        ("qwen2-audio-7b", 30, 750),
        ("voxtral-mini-3b", 1, 375),  # padded to 30 s, and the padding becomes tokens: 12.5 a second
        ("voxtral-mini-3b", 30, 375),
        ("voxtral-mini-3b", 31, 750),
        ("ultravox", 16, 100),  # 6.25 a second
        ("qwen2.5-omni-7b", 10, 250),  # 25 a second
        ("phi-4-multimodal", 10, 125),  # 12.5 a second
        ("gemma-3n-e4b", 10, 188),  # whatever its length
    ],
)
def test_tokens_of_a_clip(name: str, seconds: float, tokens: int) -> None:
    encoder = load_model(name).audio
    assert encoder is not None
    assert tokens_of_audio(encoder, seconds) == tokens
    assert tokens_of_audio(encoder, encoder.longest_s) == encoder.largest_image_tokens


def test_parts_that_a_config_names_by_their_ids_are_put_in(tmp_path: Path) -> None:
    config = {
        "model_type": "ultravox",
        "hidden_size": 4096,
        "stack_factor": 8,
        "torch_dtype": "bfloat16",
        "text_model_id": "meta-llama/Llama-3.1-70B-Instruct",
        "audio_model_id": "openai/whisper-large-v3-turbo",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    model = load_model(file)
    assert model.total_params == load_model("llama-3.1-70b").total_params
    # stacked frames to 4,096, a gated unit of half as many, the text's 8,192; a norm before each product
    assert model.audio_params == WHISPER_ENCODER + 8 * 1280 * 4096 + 2048 * 8192 + 8 * 1280 + 8192
    file.write_text(json.dumps(config | {"text_model_id": "some/thing"}), encoding="utf-8")
    with pytest.raises(MalformedFile, match="'some/thing' is not a preset"):
        load_model(file)


def test_what_turns_tokens_into_speech_and_the_thinkers_towers_are_named() -> None:
    """They stand in an object of their own; not a word was said of them."""
    text = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64}
    thinker = {"text_config": text, "audio_config": {"d_model": 8}, "vision_config": {"hidden_size": 8}}
    model = from_hf_config(
        {"model_type": "omni", "thinker_config": thinker, "talker_config": {"a": 1}}, name="omni"
    )
    assert model.uncounted == ("audio_config", "vision_config", "talker_config")
    assert "audio_config and vision_config and talker_config" in model.notes[0]
