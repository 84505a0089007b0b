"""Check a `config.json` against the size of the safetensors files next to it; reads only headers, never weights."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.external_files import open_outside, read_bytes
from capacity.base.fields import parse_json_object
from capacity.model.quantization.scheme import weight_bytes
from capacity.model.spec import ModelSpec

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
TOLERANCE = 0.02  # relative difference of bytes without a note


def stored_bytes(folder: Path) -> int | None:
    """Return the bytes of all tensors, from the index or the header of a single file; None without such files.

    Raises MalformedFile for an invalid file.
    """
    if (folder / INDEX).is_file():
        return _total_size(folder / INDEX)
    if (folder / SINGLE).is_file():
        return _header_bytes(folder / SINGLE)
    return None


def check_stored_size(
    read: Callable[[bool | None], ModelSpec], folder: Path, *, at_32_bit: bool = False
) -> ModelSpec:
    """Return the model, with a note if the stored and the computed bytes of weights differ by more than 2 %.

    `read(gated)` returns the model with or without a gate in its feed-forward (None: as the config defines it). For an
    unknown `model_type`, the variant whose bytes match is returned, and a note also reports the match. `at_32_bit`:
    the checkpoint is stored at 32 bit, which engines convert to 16 bit.
    """
    model, stored = read(None), stored_bytes(folder)
    if stored is None:
        return model
    size = stored / 2 if at_32_bit else float(stored)
    counted, off = _nearest_byte_count(model, size)
    if model.assumed and abs(off) > TOLERANCE:
        for gated in (True, False):
            other = read(gated)
            other_counted, other_off = _nearest_byte_count(other, size)
            if abs(other_off) <= TOLERANCE:
                model, counted, off = other, other_counted, other_off
    if abs(off) > TOLERANCE:
        note = (
            f"the safetensors index has {size / 1e9:,.4g} GB of weights, but the config gives {counted / 1e9:,.4g} GB "
            f"({off:+.1%}): layers, a tower or a weight format may not have been read"
        )
    elif model.assumed:
        note = f"the safetensors index agrees with these layers: {size / 1e9:,.4g} GB of weights ({off:+.1%})"
    else:
        return model
    return replace(model, notes=(*model.notes, note))


def _nearest_byte_count(model: ModelSpec, size: float) -> tuple[float, float]:
    """Return the byte count of `_possible_byte_counts` nearest to `size`, and its relative error."""
    counted = min(_possible_byte_counts(model), key=lambda each: abs(each - size))
    return counted, counted / size - 1


def _possible_byte_counts(model: ModelSpec) -> Iterator[float]:
    """Yield possible weight bytes of the files: with or without towers, MTP layers, the MTP layers' copies of
    embedding and LM head, and a stored copy of a tied LM head."""
    text = weight_bytes(model)
    tower = 2.0 * model.tower_params
    mtp = sum(model.checkpoint.part_bytes(part) for part in model.mtp_parts())
    embedding = 2.0 * model.vocab_size * model.hidden_size
    for towers in {0.0, tower}:
        for drafts in {0.0, mtp, mtp + 2 * embedding if mtp else 0.0}:
            yield text + towers + drafts
            if model.tie_word_embeddings:
                yield text + towers + drafts + embedding


def _total_size(file: Path) -> int:
    document = parse_json_object(read_bytes(file, "a safetensors index"), file)
    metadata = document.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise MalformedFile(file, f"{size!r} is not a number of bytes", where="metadata.total_size")
    return size


def _header_bytes(file: Path) -> int:
    """Return the offset of the end of the last tensor, from the header, whose length is in the first 8 bytes."""
    with open_outside(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise MalformedFile(file, f"a header of {length:,} bytes; is this a safetensors file?")
        raw = opened.read(length)
    if len(raw) < length:
        raise MalformedFile(file, "the file ends inside its header")
    try:
        header: Any = json.loads(raw)
        ends = [
            entry["data_offsets"][1]
            for name, entry in header.items()
            if name != "__metadata__" and isinstance(entry["data_offsets"][1], int)
        ]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError, AttributeError):
        raise MalformedFile(file, "not a safetensors header") from None
    if not ends or max(ends) < 1:
        raise MalformedFile(file, "the header lists no tensors")
    return int(max(ends))
