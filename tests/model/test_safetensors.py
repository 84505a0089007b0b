"""A checkpoint's own size against the config's: agreement, mismatch, and files that are no such thing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hf_configs import LLAMA, read

from capacity.base.errors import MalformedFile
from capacity.model import ModelSpec, load_model
from capacity.model.safetensors import stored_bytes

SIZE = 2 * read().total_params  # at 16 bit


def folder_of(tmp_path: Path, *, index: Any = None, single: bytes | None = None, **changes: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    if single is not None:
        (tmp_path / "model.safetensors").write_bytes(single)
    return tmp_path


def loaded(tmp_path: Path, size: int, **changes: Any) -> ModelSpec:
    return load_model(
        folder_of(tmp_path, index={"metadata": {"total_size": size}, "weight_map": {}}, **changes)
    )


def header(**tensors: tuple[int, int]) -> bytes:
    entries = {
        name: {"dtype": "BF16", "shape": [1], "data_offsets": list(ends)} for name, ends in tensors.items()
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}} | entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def test_an_index_that_agrees_is_not_worth_a_word(tmp_path: Path) -> None:
    assert loaded(tmp_path, SIZE).notes == ()
    assert loaded(tmp_path, int(SIZE * 1.015)).notes == ()


def test_an_index_that_does_not_is_said_with_both_sizes(tmp_path: Path) -> None:
    (note,) = loaded(tmp_path, int(SIZE * 1.05)).notes
    assert "(-4.8%)" in note
    assert f"{SIZE / 1e9:,.4g} GB" in note
    assert f"{SIZE * 1.05 / 1e9:,.4g} GB of weights" in note


def test_agreement_of_an_assumed_reading_is_said(tmp_path: Path) -> None:
    notes = loaded(tmp_path, SIZE, model_type="brand_new").notes
    assert len(notes) == 2
    assert "agrees with these layers" in notes[1]


def test_a_32_bit_checkpoint_is_served_at_half_its_size(tmp_path: Path) -> None:
    assert loaded(tmp_path, 2 * SIZE, torch_dtype="float32").notes == ()
    assert loaded(tmp_path, 2 * SIZE).notes != ()


def test_a_tied_head_may_be_stored_twice(tmp_path: Path) -> None:
    tied = 2 * read(tie_word_embeddings=True).total_params
    head = 2 * LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert loaded(tmp_path, tied, tie_word_embeddings=True).notes == ()
    assert loaded(tmp_path, tied + head, tie_word_embeddings=True).notes == ()


def test_one_file_says_it_in_its_header(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, single=header(a=(0, 10), b=(10, SIZE)))
    assert stored_bytes(folder) == SIZE
    assert load_model(folder).notes == ()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00" * 8, b"\xff" * 64, struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2) + b"[]", header()],
    ids=["empty", "zero", "endless", "short", "list", "no tensors"],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(MalformedFile, match=r"model\.safetensors"):
        load_model(folder_of(tmp_path, single=raw))


@pytest.mark.parametrize("size", [None, 0, -4, "12", True, [1]])
def test_an_index_without_a_size_is_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(MalformedFile, match="total_size"):
        load_model(folder_of(tmp_path, index={"metadata": {"total_size": size}}))


def test_nothing_beside_the_config_says_nothing(tmp_path: Path) -> None:
    assert stored_bytes(folder_of(tmp_path)) is None


@pytest.mark.parametrize("gated", [True, False])
def test_the_bytes_say_whether_a_feed_forward_of_an_unknown_type_is_gated(
    tmp_path: Path, gated: bool
) -> None:
    """The activation says the contrary: the index is right, and the reading is its own."""
    fields = {"model_type": "brand_new", "hidden_act": "silu" if not gated else "gelu"}
    part = read(**fields, gated_mlp=gated)
    notes = loaded(tmp_path, 2 * part.total_params, **fields).notes
    assert f"{'a gated' if gated else 'an ungated'} feed-forward" in notes[0]
    assert "agrees with these layers" in notes[1]
