"""Models that a user adds: each `config.json` is stored in the user's folder under a name."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from capacity.base.data_files import user_folder
from capacity.base.errors import InvalidInput
from capacity.base.fields import read_json_object
from capacity.base.output_files import write_file
from capacity.model.hf_config import from_hf_config
from capacity.model.spec import ModelSpec

MODELS_VARIABLE = "CAPACITY_MODELS"
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,120}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedModel:
    """Result of `models add`: the model's name, the stored file, and the model."""

    name: str
    path: Path
    model: ModelSpec


def user_model_folder() -> Path:
    """Return the folder of added models: `CAPACITY_MODELS`, or a folder in the user's configuration."""
    named = os.environ.get(MODELS_VARIABLE)
    return Path(named).expanduser() if named else user_folder("models")


def user_model_names() -> tuple[str, ...]:
    """Return the sorted names of the models in the user's folder."""
    folder = user_model_folder()
    return tuple(sorted(path.stem for path in folder.glob("*.json"))) if folder.is_dir() else ()


def find_user_model(name: str) -> ModelSpec | None:
    """Return the added model with this name, or with this Hugging Face id if it was downloaded, or None."""
    bare = name.strip().lower().replace("_", "-").split("/")[-1]
    if not _NAME.fullmatch(bare):
        return None
    path = user_model_folder() / f"{bare}.json"
    if not path.is_file():
        return None
    kept = read_json_object(path)
    hf_id = kept.get("hf_id")
    if "/" in name and str(hf_id).lower() != name.strip().lower():
        return None
    return _read(kept, bare, path)


def store_model(
    name: str,
    config: Mapping[str, Any],
    *,
    hf_id: str | None,
    hf_quant_config: Mapping[str, Any] | None,
    source: str,
    notes: tuple[str, ...] = (),
) -> AddedModel:
    """Store a model's configuration in the user's folder. `notes`: notes from reading the source.

    Raises InvalidInput for a name that is not a valid file name or a folder that cannot be written, and MalformedFile
    for an invalid configuration.
    """
    bare = name.strip().lower().replace("_", "-")
    if not _NAME.fullmatch(bare):
        raise InvalidInput(
            f"{name!r} is not a valid model name: use letters, digits, dots and dashes (--name)"
        )
    kept = {
        "hf_id": hf_id,
        "source": source,
        "date": date.today().isoformat(),
        "notes": list(notes),
        "config": dict(config),
        "hf_quant_config": None if hf_quant_config is None else dict(hf_quant_config),
    }
    path = user_model_folder() / f"{bare}.json"
    model, advice = _read(kept, bare, path), f"; set {MODELS_VARIABLE} to another folder"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}{advice}") from None
    write_file(path, json.dumps(kept, indent=2) + "\n", advice)
    return AddedModel(name=bare, path=path, model=model)


def _read(kept: Mapping[str, Any], name: str, path: Path) -> ModelSpec:
    quantization = kept.get("hf_quant_config")
    model = from_hf_config(
        kept.get("config"),  # type: ignore[arg-type]
        name=name,
        hf_id=kept.get("hf_id"),
        hf_quant_config=quantization,
        source=f"{kept.get('source')}, {kept.get('date')}",
        origin=str(path),
    )
    said = tuple(str(note) for note in kept.get("notes") or () if note not in model.notes)
    return replace(model, notes=(*model.notes, *said))
