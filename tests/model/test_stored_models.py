"""Models that a user keeps: written once, found by name, and clean words where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_configs import LLAMA, read

import capacity.model.presets as presets_module
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.model import add_model, load_model, user_model_names
from capacity.model.stored_models import MODELS_VARIABLE


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv(MODELS_VARIABLE, str(folder))
    return folder


def config_in(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return folder


def test_a_folder_is_found_by_its_name_afterwards(tmp_path: Path, own_folder: Path) -> None:
    kept = add_model(config_in(tmp_path / "My-Model"))
    assert (kept.name, kept.path, user_model_names()) == (
        "my-model",
        own_folder / "my-model.json",
        ("my-model",),
    )
    for spelling in ("my-model", "My_Model", " MY-MODEL "):
        found = load_model(spelling)
        assert (found.name, found.total_params) == ("my-model", read().total_params)
    assert str(tmp_path / "My-Model") in found.source


def test_another_name_may_be_given(tmp_path: Path) -> None:
    add_model(config_in(tmp_path / "a") / "config.json", name="mine")
    assert load_model("mine").num_layers == 4
    with pytest.raises((UnknownName, InvalidInput)):
        load_model("a-model-that-is-nowhere")


def test_what_was_assumed_is_said_every_time(tmp_path: Path) -> None:
    folder = config_in(tmp_path / "new-one", model_type="brand_new")
    index = {"metadata": {"total_size": 2 * read().total_params}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    add_model(folder)
    first, second = load_model("new-one").notes
    assert "'brand_new' is unknown" in first
    assert "agrees with these layers" in second


def test_its_quantization_is_kept_too(tmp_path: Path) -> None:
    folder = config_in(tmp_path / "quantized")
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    add_model(folder)
    assert load_model("quantized").checkpoint == load_model(folder).checkpoint
    assert load_model("quantized").checkpoint.quantized


def test_the_hub_is_asked_for_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = config_in(tmp_path / "snapshot") / "config.json"
    monkeypatch.setattr(presets_module, "_download_config", lambda _id: file)
    assert add_model("some-org/Some-Model-7B").name == "some-model-7b"
    assert load_model("some-org/Some-Model-7B").hf_id == "some-org/Some-Model-7B"
    assert load_model("some-model-7b").num_layers == 4
    with pytest.raises(InvalidInput, match="--download"):
        load_model("another-org/Some-Model-7B")


def test_without_a_network_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_args: object, **_kwargs: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    with pytest.raises(InvalidInput, match="cannot download 'some-org/some-model': no route") as caught:
        add_model("some-org/some-model")
    assert "\n" not in str(caught.value)
    assert user_model_names() == ()


def test_a_presets_name_is_taken(tmp_path: Path) -> None:
    folder = config_in(tmp_path / "llama-3.1-8b")
    with pytest.raises(InvalidInput, match=r"name of a preset: choose another with --name"):
        add_model(folder)
    assert user_model_names() == ()


@pytest.mark.parametrize("given", ["nowhere", "/no/such/folder", "a/b/c", "", "org/"])
def test_what_is_neither_here_nor_an_id_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        add_model(given)


@pytest.mark.parametrize("name", ["../up", "a b", "", "x" * 200, ".hidden", "a/b"])
def test_a_name_is_a_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        add_model(config_in(tmp_path / "fine"), name=name or " ")
    assert user_model_names() == ()


def test_a_config_that_is_none_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="hidden_size"):
        add_model(config_in(tmp_path / "broken", hidden_size="wide"))
    assert user_model_names() == ()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "file" / "models"))
    with pytest.raises(InvalidInput, match=f"cannot write .*{MODELS_VARIABLE}"):
        add_model(config_in(tmp_path / "fine"))


def test_a_kept_file_that_was_broken_by_hand_is_named(tmp_path: Path, own_folder: Path) -> None:
    add_model(config_in(tmp_path / "mine"))
    (own_folder / "mine.json").write_text("{", encoding="utf-8")
    with pytest.raises(MalformedFile, match=r"mine\.json"):
        load_model("mine")
