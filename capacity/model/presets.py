"""Load models by name: bundled presets, a `config.json` or its folder, or a download from the Hugging Face hub."""

import json
import logging
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from capacity.base.checked import validate_arguments
from capacity.base.data_files import Table, read_data
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.external_files import outside_path
from capacity.base.fields import read_json_object
from capacity.base.plugins import plugin_file, plugin_names
from capacity.model.hf_config import from_hf_config
from capacity.model.quantization import scheme_for
from capacity.model.spec import ModelSpec
from capacity.model.stored_models import AddedModel, find_user_model, store_model

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_HUB_CACHE = re.compile(r"models--([^/]+?)--([^/]+)")  # huggingface_hub's folder of an id
_PRESETS = Path(__file__).parent / "presets"


def model_names() -> tuple[str, ...]:
    """Return the names of the bundled presets."""
    return tuple(_index())


def is_known(name: str) -> bool:
    """Return whether this is the name, an alias or the Hugging Face id of a preset."""
    return _normalize_name(name) in _aliases()


def load_model(name_or_path: str | Path, *, download: bool = False) -> ModelSpec:
    """Return the model of a preset, alias, Hugging Face id, added model, plug-in, `config.json` or its folder.

    An id that differs from a preset only in its owner or in a format suffix (`nvidia/Llama-3.3-70B-Instruct-FP8`)
    returns that preset in that format. So does a path that does not exist on this machine, such as one from a server's
    launch command (`/models/Llama-3.3-70B-Instruct-FP8`). In both cases a note in `notes` states the preset. With
    `download`, an unknown `org/name` is fetched with huggingface_hub: only its `config.json`, which is parsed as JSON;
    no code is executed. Raises UnknownName, MalformedFile or UnsupportedModel.
    """
    name = str(name_or_path)
    preset = _aliases().get(_normalize_name(name))
    if preset is not None:
        return _with_requested_id(_load_preset(preset), name)
    if not name.strip():
        raise UnknownName("model", name, model_names())
    if (kept := find_user_model(name)) is not None:
        return kept
    path = outside_path(name)
    if path.is_dir() or path.suffix == ".json" or path.is_file():
        return _load_path(path)
    if not download and (variant := _load_variant(name)):
        return variant
    if elsewhere := _load_by_remote_path(name):
        return elsewhere
    if (plugin := plugin_file("models", _normalize_name(name))) is not None:
        return replace(_load_path(plugin), name=_normalize_name(name))
    if not _is_hub_id(name):
        raise UnknownName("model", name, (*model_names(), *plugin_names("models")), aliases=_aliases())
    if not download:
        message = f"no model preset {name!r}, and no such file. To fetch its config.json from the Hugging Face hub, "
        near = UnknownName("model", name, model_names(), aliases=_aliases()).suggestions
        suggestion = f" Or did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InvalidInput(f"{message}use --download (download=True).{suggestion}")
    return _load_path(_download_config(name), hf_id=name)


@validate_arguments
def add_model(name_or_path: str | Path, *, name: str | None = None) -> AddedModel:
    """Store a model in the user's folder, from a `config.json`, its folder, or the Hugging Face hub (ORG/NAME).

    `name`: name by which the model is then found; default: the name of the folder, or the id without its owner. Raises
    InvalidInput for a preset's name or an unreachable hub, and the errors of `load_model`.
    """
    given = str(name_or_path)
    path = outside_path(given)
    hf_id = None
    if not path.exists():
        if not _is_hub_id(given):
            raise InvalidInput(
                f"{given!r} is neither a file or folder on this machine nor an ORG/NAME of the Hugging Face hub"
            )
        hf_id, path = given.strip(), _download_config(given.strip())
    found = _load_path(path, hf_id=hf_id)
    chosen = name or found.name
    if _normalize_name(chosen) in _aliases():
        raise InvalidInput(f"{chosen!r} is the name of a preset: choose another with --name")
    file, config, quantization = _read_configs(path)
    return store_model(
        chosen,
        config,
        hf_id=hf_id,
        hf_quant_config=quantization,
        source=hf_id or str(file.resolve()),
        notes=found.notes,
    )


@cache
def _load_preset(name: str) -> ModelSpec:
    path = _PRESETS / f"{name}.json"
    preset = read_json_object(path)
    model = from_hf_config(
        preset["config"],
        name=name,
        hf_id=preset["hf_id"],
        source=f"{preset['source']}, {preset['date']}",
        origin=str(path),
    )
    if "task" in preset:
        model = replace(model, task=preset["task"])
    if preset.get("basis") != "assumed":
        return model
    note = (
        f"the shapes of {name} are assumed and not verified ({preset['date']}), because no public copy of its "
        "config was available; if you have its config.json, use its folder instead"
    )
    return replace(model, notes=(*model.notes, note))


def _with_requested_id(model: ModelSpec, name: str) -> ModelSpec:
    """Return the preset with the requested id as `hf_id`, and a note if the id has a version that the preset lacks."""
    asked = name.strip()
    ids = (each for each in _index()[model.name] if "/" in each)
    spelled = next((each for each in ids if _normalize_name(each) == _normalize_name(asked)), None)
    own = {*version_numbers(model.name), *version_numbers(model.hf_id or "")}
    notes = model.notes
    if not own.issuperset(version_numbers(asked)):
        notes += (f"{asked!r} is read as preset {model.name} ({model.hf_id}), which has the same shapes",)
    if spelled in (None, model.hf_id) and notes == model.notes:
        return model
    return replace(model, hf_id=spelled or model.hf_id, notes=notes)


def version_numbers(name: str) -> frozenset[str]:
    """Return the numbers in a model's name, as text: versions, sizes and dates ("DeepSeek-V3-0324": 3 and 0324)."""
    return frozenset(_NUMBER.findall(name.split("/")[-1].lower()))


def _load_variant(name: str) -> ModelSpec | None:
    """Return the preset that `name` is a variant of, in the weight format that the name contains, or None."""
    stated = read_variant(name)
    preset = _aliases().get(_normalize_name(stated.base))
    if preset is None or name.count("/") > 1 or name.startswith((".", "/", "~")):
        return None
    model = _load_preset(preset)
    hf_id = name.strip() if "/" in name else None  # that of the preset is stored otherwise
    way_out = "; use --download to read its own config.json" if hf_id and "gguf" not in name.lower() else ""
    if stated.weight_format is None:
        note = f"{name!r} is read as preset {preset} ({model.hf_id}, {model.checkpoint.name}), from its name{way_out}"
        return replace(model, hf_id=hf_id, notes=(note,))
    scheme = scheme_for(model, stated.weight_format)
    if scheme is not model.checkpoint and scheme.quantized:
        method = checkpoint_method(name, stated.weight_format)
        scheme = replace(scheme, method=method, kv_cache_dtype=stated.kv_cache_dtype)
    note = f"{name!r} is read as preset {preset} in {scheme.name}, from its name: which layers stay at 16 bit, and"
    note = f"{note} the KV cache format, are assumed{way_out}"
    return replace(model, hf_id=hf_id, checkpoint=scheme, notes=(note,))


def _load_by_remote_path(name: str) -> ModelSpec | None:
    """Return the preset named by the last part of a path that does not exist on this machine; None: no such preset."""
    folder = name.strip().rstrip("/")
    if folder.count("/") < 2 and not folder.startswith((".", "/", "~")):
        return None  # a name, or an id
    cached = _HUB_CACHE.search(folder)
    called = "/".join(cached.groups()) if cached else folder.rpartition("/")[2]
    preset = _aliases().get(_normalize_name(called))
    model = _load_preset(preset) if preset else _load_variant(called)
    if model is None:
        return None
    said = f"{name!r} is not on this machine: "
    if not preset:
        return replace(model, notes=(f"{said}{model.notes[0]}", *model.notes[1:]))
    note = f"{said}read as preset {model.name} ({model.hf_id}, {model.checkpoint.name}), from its name"
    return replace(model, notes=(*model.notes, note))


def _is_hub_id(name: str) -> bool:
    """Return whether the name has the form ORG/NAME of the Hugging Face hub."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))


def _read_configs(path: Path) -> tuple[Path, Table, Table | None]:
    """Return the path of `config.json`, its object, and the object of `hf_quant_config.json` next to it (or None)."""
    file = path / "config.json" if path.is_dir() else path
    quantization_file = file.parent / "hf_quant_config.json"
    quantization = read_json_object(quantization_file) if quantization_file.is_file() else None
    return file, _fill_in_named_parts(read_json_object(file), file), quantization


def _load_path(path: Path, *, hf_id: str | None = None) -> ModelSpec:
    file, config, quantization = _read_configs(path)
    stated = config.get("_name_or_path")
    own = stated.strip("/") if isinstance(stated, str) else ""
    own = own or (file.resolve().parent.name if file.name == "config.json" else file.stem)
    name = (hf_id or own).split("/")[-1].lower()

    def read(gated: bool | None = None) -> ModelSpec:
        return from_hf_config(
            config,
            name=name,
            hf_id=hf_id,
            hf_quant_config=quantization,
            source=str(file),
            origin=str(file),
            gated=gated,
        )

    if file.name != "config.json":
        return read()
    from capacity.model.safetensors import check_stored_size

    dtype = config.get("dtype", config.get("torch_dtype"))
    return check_stored_size(read, file.parent, at_32_bit=dtype == "float32")


def _fill_in_named_parts(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the config; a section that is only a model id (Ultravox) is replaced by the config of that preset.

    Raises MalformedFile if an id is not a preset.
    """
    named = {"text_config": config.get("text_model_id"), "audio_config": config.get("audio_model_id")}
    parts = {}
    for key, hf_id in named.items():
        if not isinstance(hf_id, str) or config.get(key):
            continue
        preset = _aliases().get(_normalize_name(hf_id))
        if preset is None:
            raise MalformedFile(
                file,
                f"{hf_id!r} is not a preset: add the object of its config.json as {key!r}",
                where=f"{key[:-6]}model_id",
            )
        parts[key] = read_json_object(_PRESETS / f"{preset}.json")["config"]
    return {**config, **parts}


def _download_config(hf_id: str) -> Path:
    """Download a model's `config.json` and `hf_quant_config.json` (if any); return the path of `config.json`."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise InvalidInput("downloads need huggingface_hub: pip install 'llm-capacity[hub]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # hide its messages about retries
    try:
        config = Path(hf_hub_download(hf_id, "config.json"))
    except Exception as error:  # the hub's client and its transport raise many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"cannot download {hf_id!r}: {reason}") from None
    try:
        hf_hub_download(hf_id, "hf_quant_config.json")
    except EntryNotFoundError:
        pass
    except Exception as error:
        raise InvalidInput(
            f"cannot download hf_quant_config.json of {hf_id!r}: {type(error).__name__}"
        ) from None
    return config


def _normalize_name(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@cache
def _index() -> dict[str, list[str]]:
    """Return the Hugging Face ids and other spellings of each preset, by preset name."""
    index: dict[str, list[str]] = json.loads((_PRESETS / "index.json").read_bytes())
    return index


@cache
def _aliases() -> dict[str, str]:
    """Return the preset name for every accepted spelling (normalized). An id is also listed without its owner."""
    spellings: dict[str, str] = {}
    for name, others in _index().items():
        for spelling in (name, *others):
            spellings.setdefault(_normalize_name(spelling), name)
            spellings.setdefault(_normalize_name(spelling.split("/")[-1]), name)
    return spellings


@cache
def _name_endings() -> Table:
    """Return three tables: weight format of each name ending (the first match applies), FP8 format of each owner of
    model ids, and `quant_method` of each weight format."""
    return read_data(Path(__file__).with_name("name_endings.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Parts of a model id: name of the original model, weight format, and KV cache dtype (None: not in the id).

    An id has less information than the checkpoint's own config.json (which layers stay at 16 bit, how the KV cache is
    scaled). Therefore a note always states what was derived from the id, and how to read the config instead.
    """

    base: str
    weight_format: str | None
    kv_cache_dtype: str | None = None


def read_variant(name: str) -> Variant:
    """Split a model id, with or without its owner, into its parts. Ignores case, and treats `_` as `-`."""
    owner, _, bare = name.strip().lower().replace("_", "-").rpartition("/")
    for pattern, weight_format in _name_endings()["endings"]:
        ending = re.search(pattern + "$", bare)
        if ending is None or ending.start() == 0:
            continue
        base = bare[: ending.start()]
        if weight_format == "gguf-*":
            return Variant(base=base, weight_format="gguf-" + ending.group(1).replace("-", "_"))
        if ending.group() == "-fp8":
            return Variant(
                base=base, weight_format=_name_endings()["fp8_of_owners"].get(owner, weight_format)
            )
        kv_cache_dtype = "fp8" if ending.group() == "-fp8-kv" else None
        return Variant(base=base, weight_format=weight_format, kv_cache_dtype=kv_cache_dtype)
    return Variant(base=bare, weight_format=None)


def checkpoint_method(name: str, weight_format: str) -> str:
    """Return the usual `quant_method` of checkpoints in this format that the owner in the id `name` publishes."""
    family = re.sub(r"-(channel|g128-sym|g128)$", "", weight_format)
    if name.lower().startswith("nvidia/") and family in ("fp8", "nvfp4"):
        return f"modelopt-{family}"
    if family.startswith("gguf"):
        return "gguf"
    return str(_name_endings()["methods"].get(family, f"compressed-tensors-{family}"))
