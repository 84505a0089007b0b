"""config.json in, ModelSpec out: every architecture by its own rules, and every malformed file in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hf_configs import LATENT, LLAMA, MOE, attention, read
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import CapacityError, MalformedFile
from capacity.model import (
    Attention,
    ModelSpec,
    from_hf_config,
    load_model,
    supported_model_types,
)

# heads and sizes


def test_a_plain_llama() -> None:
    model = read()
    assert attention(model) == Attention(num_heads=8, num_kv_heads=2, head_dim=8)
    assert (model.num_layers, model.vocab_size, model.dtype, model.tie_word_embeddings) == (
        4,
        1000,
        "bf16",
        False,
    )
    layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 128 + 2 * 64
    assert model.total_params == 2 * 1000 * 64 + 64 + 4 * layer


@pytest.mark.parametrize(
    "key", ["num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"]
)
def test_kv_heads_by_any_name(key: str) -> None:
    assert attention(read(num_key_value_heads=..., **{key: 4})).num_kv_heads == 4


def test_without_kv_heads_it_is_multi_head() -> None:
    assert attention(read(num_key_value_heads=...)).kind == "mha"


@pytest.mark.parametrize("key", ["head_dim", "hidden_size_per_head", "kv_channels"])
def test_a_stated_head_dim_wins(key: str) -> None:
    assert attention(read(**{key: 32})).head_dim == 32


def test_a_null_head_dim_is_derived() -> None:
    assert attention(read(head_dim=None)).head_dim == 8


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"head_dim": 0}, "head_dim"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 0}}, "group_size"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0}}, "group_size"),
        ({"vision_config": {"hidden_size": -1}}, "vision_config.hidden_size"),
    ],
)
def test_dimensions_of_nothing_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(MalformedFile, match=key):
        read(**changes)


@pytest.mark.parametrize(
    ("key", "value"), [("torch_dtype", "float16"), ("dtype", "float16"), ("dtype", "half")]
)
def test_dtype_by_either_key(key: str, value: str) -> None:
    assert read(**{key: value}).dtype == "fp16"


def test_32_bit_checkpoints_are_served_at_16() -> None:
    assert read(torch_dtype="float32").dtype == read(torch_dtype="auto").dtype == "bf16"


def test_text_config_is_unwrapped_and_the_outer_tie_counts() -> None:
    outer = {
        "model_type": "llava",
        "tie_word_embeddings": True,
        "text_config": LLAMA,
        "torch_dtype": "float16",
    }
    model = from_hf_config(outer, name="x")
    assert (model.model_type, model.tie_word_embeddings, model.dtype) == ("llama", True, "fp16")


def test_the_shortest_length_counts_and_yarn_stretches_the_original() -> None:
    assert read(model_max_length=512).max_position_embeddings == 512
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert read(rope_scaling=yarn).max_position_embeddings == 131_072
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert read(rope_scaling=llama3).max_position_embeddings == 2048


def test_an_unknown_tower_is_named_not_guessed() -> None:
    outer = {
        "model_type": "llava",
        "text_config": LLAMA,
        "vision_config": {"hidden_size": 8},
        "audio_config": {},
    }
    model = from_hf_config(outer, name="x")
    assert (model.vision_params, model.uncounted) == (0, ("audio_config", "vision_config"))


def test_remote_code_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit(3)")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"auto_map": {"AutoConfig": "evil.Config"}}))
    monkeypatch.chdir(tmp_path)
    assert load_model(tmp_path).num_layers == 4


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings"],
)
@pytest.mark.parametrize(
    "value", [..., 0, -1, "32", 32.0, 1e30, True, [32], {}, 10**30, float("nan")], ids=lambda v: repr(v)[:10]
)
def test_a_bad_count_names_field_and_value(key: str, value: Any) -> None:
    with pytest.raises(MalformedFile, match=key) as caught:
        read(**{key: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [3, 16, 0, -8, "8", 8.0, True])
def test_kv_heads_must_divide_heads(value: Any) -> None:
    with pytest.raises(MalformedFile, match="num_key_value_heads"):
        read(num_key_value_heads=value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"torch_dtype": 7}, "torch_dtype"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"text_config": []}, "text_config"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 1e308}}, "factor: 1e.308 is outside of 1..1e.06"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor: -1 is outside of 1..1e.06"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e6}}, "factor: 1e.06 extends the context to"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window"),
        ({"model_type": "qwen3_moe", **MOE, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"model_type": "qwen3_moe", **MOE, "num_experts": [4, 4]}, "num_experts"),
        ({"model_type": "qwen3_moe", **MOE, "mlp_only_layers": 3}, "mlp_only_layers"),
        ({"model_type": "mixtral"}, "num_experts"),
        ({"vision_config": 3}, "vision_config"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedFile, match=field) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


FILES = {
    "empty": (b"", "empty"),
    "blank": (b" \n ", "empty"),
    "not json": (b"{model_type: llama}", "line 1"),
    "cut": (b'{"model_type": "llama",\n', "line 2"),
    "list": (b"[1, 2]", "list"),
    "number": (b"3", "int"),
    "nan": (b'{"a": NaN}', "NaN"),
    "infinity": (b'{"a": -Infinity}', "Infinity"),
    "too large": (b'{"a": "' + b"x" * 1_100_000 + b'"}', "bytes"),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "twice": (b'{"model_type": "llama", "model_type": "qwen2"}', "model_type.*twice"),
    "long number": (b'{"hidden_size": ' + b"9" * 5000 + b"}", "too long"),
    "binary": (b"\x80\x81\xff", "UTF-8"),
    "nul": (b"\x00" * 10, "line 1"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_malformed_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    raw, expected = FILES[kind]
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(MalformedFile, match=expected) as caught:
        load_model(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 400


def test_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(path).num_layers == 4


def test_an_unreadable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="cannot be read"):
        load_model(tmp_path / "none.json")
    if os.name == "posix":
        fifo_like = tmp_path / "folder.json"
        fifo_like.mkdir()
        with pytest.raises(MalformedFile, match=r"config\.json"):
            load_model(fifo_like)


def test_a_list_is_not_a_config() -> None:
    with pytest.raises(MalformedFile, match="list"):
        from_hf_config([], name="x")  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


KEYS = sorted(
    {*LLAMA, *MOE, *LATENT, "layer_types", "rope_scaling", "quantization_config", "text_config", "dtype"}
)


@given(
    model_type=st.sampled_from(supported_model_types()), changes=st.dictionaries(st.sampled_from(KEYS), JSON)
)
def test_any_config_is_a_model_or_one_line(model_type: str, changes: dict[str, Any]) -> None:
    config = LLAMA | MOE | LATENT | {"model_type": model_type} | changes
    outcome = _outcome(config)
    if isinstance(outcome, CapacityError):
        assert "\n" not in str(outcome)
    else:
        assert 0 < outcome.active_params <= outcome.total_params
        assert outcome.kv_bytes_per_token() >= 0


def _outcome(config: dict[str, Any]) -> ModelSpec | CapacityError:
    try:
        return from_hf_config(config, name="any")
    except CapacityError as error:
        return error


# files made by others


SAME_AS = {
    "codellama-34b-instruct-hf.json": "codellama-34b",
    "deepseek-v2-lite.json": "deepseek-v2-lite",
    "glm-5.2-fp8.json": "glm-5.2",
    "infersim_deepseek_v3.json": "deepseek-v3",  # renames n_routed_experts
    "infersim_deepseek_v3.2.json": "deepseek-v3.2",
    "infersim_qwen3-235B-A22B.json": "qwen3-235b-a22b",
    "infersim_qwen3.5-122B-A10B.json": "qwen3.5-122b-a10b",
    "llama-4-scout-17b-16e-instruct-fp8-dynamic.json": "llama-4-scout",
    "simai_deepseek_R1_0528.json": "deepseek-r1",
    "simai_qwen3-235B-A22B_FP8.json": "qwen3-235b-a22b",
    "simai_qwen3-next-80B-A3B_Instruct_FP8.json": "qwen3-next-80b-a3b",
    "yi-34b.json": "yi-34b",
}


def test_every_reference_config_is_read(shared_dir: Path) -> None:
    files = sorted((shared_dir / "reference" / "configs").glob("*.json"))
    simulator = next(
        path for path in files if path.name == "lss_qwen3-32b.json"
    )  # of a simulator, not of a model
    with pytest.raises(MalformedFile, match="num_hidden_layers"):
        load_model(simulator)
    read_files = {path.name: load_model(path) for path in files if path != simulator}
    assert len(read_files) >= 30
    assert not [name for name, model in read_files.items() if model.assumed]
    for name, preset in SAME_AS.items():
        assert read_files[name].total_params == load_model(preset).total_params, name
    assert (
        attention(read_files["apex_mistral.json"]).num_kv_heads == 1
    )  # that copy was edited; read as it stands
