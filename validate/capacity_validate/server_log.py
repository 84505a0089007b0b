"""Read an engine's start-up log: launch settings as fields of a pool, KV cache, weights, graphs, limits.

vLLM 0.6 to 0.33 prints its release (api_server.py, api_utils.py), the arguments that differ from their defaults, and
the engine's configuration (v1/engine/core.py). SGLang prints all of its arguments (engine.py).
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capacity.base.data_files import read_data
from capacity.base.errors import MalformedFile
from capacity.base.external_files import read_bytes
from capacity.deployment.launch_command import read_words

MAX_LINE = 50_000  # maximum length of a parsed log line, in characters
_RELEASE = re.compile(
    r"vLLM API server version (\d+\.\d+\.\d+)|LLM engine \(v(\d+\.\d+\.\d+)|[█▀▄] +version (\d+\.\d+\.\d+)"
)
_V0 = re.compile(r"Initializing a V0 LLM engine \(v0\.(?:[89]|10)\.")
_VLLM_ARGUMENTS = re.compile(r"non-default args: (\{[^\n]*\})")
_VLLM_ENGINE = re.compile(r"LLM engine (?:\(v[^)\n]*\) )?with config: ([^\n]*)")
_SGLANG_ARGUMENTS = re.compile(r"server_args=ServerArgs\(([^\n]*)")
_VALUE = r"('[^'\n]*'|\"[^\"\n]*\"|[\w.+/-]+)"
_PAIR = re.compile(rf"(?:^|[\s,(])(\w+)={_VALUE}(?=[,)\s]|$)")
_QUOTED_PAIR = re.compile(rf"'(\w+)': {_VALUE}(?=[,}}])")
TABLES = read_data(Path(__file__).with_name("server_log.toml"))
_CLUSTER_FIELDS = ("kv_transfer_config", "role")  # only a single server is replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSettings:
    """The settings that a server was started with. `models` has the model's path or id first, then its served names.

    `fields` are pool fields; the value None for `quantization` means that the log states unquantized weights.
    """

    engine: str | None = None
    models: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)


def launch_settings(text: str) -> LoggedSettings | None:
    """Return the launch settings that a log prints; None if it prints none."""
    sglang = _SGLANG_ARGUMENTS.search(text)
    if sglang is not None:
        return sglang_settings(dict(_parse_pairs(_PAIR, sglang[1])))
    release, engine_line = _RELEASE.search(text), _VLLM_ENGINE.search(text)
    arguments = _VLLM_ARGUMENTS.search(text)
    if release is None and engine_line is None and arguments is None:
        return None
    found = _vllm_arguments(arguments[1]) if arguments is not None else LoggedSettings()
    models, fields = list(found.models), dict(found.fields)
    if engine_line is not None:
        # reversed, because the first value of a name is the engine's
        config = dict(reversed(list(_parse_pairs(_PAIR, engine_line[1]))))
        models = [str(config[name]) for name in ("model", "served_model_name") if config.get(name)] + models
        printed = {own: config[name] for name, own in TABLES["engine_fields"].items() if name in config}
        fields |= {
            name: value for name, value in printed.items() if name == "quantization" or value is not None
        }
        if "dtype" in fields:
            fields["dtype"] = str(fields["dtype"]).removeprefix("torch.")
    engine = None
    if release is not None:
        version = next(group for group in release.groups() if group).removesuffix(".0")
        engine = f"vllm@{'0.8-v0' if _V0.search(text) else version}"
    return LoggedSettings(
        engine=engine or "vllm", models=tuple(dict.fromkeys(models)), fields=_drop_cluster_fields(fields)
    )


def sglang_settings(arguments: Mapping[str, object], version: object = None) -> LoggedSettings:
    """Return the launch settings in SGLang's arguments, which its log and /get_server_info contain."""
    names = [arguments.get(name) for name in ("model_path", "served_model_name")]
    models = tuple(dict.fromkeys(str(name) for name in names if name))
    words = _to_flags({name: value for name, value in arguments.items() if value is not False})
    release = re.match(r"\d+\.\d+\.\d+", str(version or ""))
    words.append(f"--model-path={models[0] if models else '-'}")
    fields = dict(read_words("sglang", words).fields)
    fields.pop("engine", None)
    if "quantization" in arguments:
        fields.setdefault("quantization", None)
    return LoggedSettings(
        engine=f"sglang@{release[0]}" if release else "sglang",
        models=models,
        fields=_drop_cluster_fields(fields),
    )


def _vllm_arguments(text: str) -> LoggedSettings:
    """Return the settings in vLLM's arguments, printed as a Python dict whose values may not be literals."""
    try:
        arguments = ast.literal_eval(text[:MAX_LINE])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        arguments = dict(_parse_pairs(_QUOTED_PAIR, text))
    if not isinstance(arguments, dict):
        return LoggedSettings()
    served = arguments.get("served_model_name")
    names = [
        arguments.get("model") or arguments.get("model_tag"),
        *(served if isinstance(served, list) else [served]),
    ]
    models = tuple(dict.fromkeys(str(name) for name in names if name))
    flags = _to_flags(
        {name: value for name, value in arguments.items() if name not in ("model", "model_tag")}
    )
    read = read_words("vllm", [models[0] if models else "-", *flags])
    return LoggedSettings(models=models, fields=read.fields)


def _to_flags(arguments: Mapping[object, object]) -> list[str]:
    """Return arguments as the equivalent command-line flags; lists are omitted."""
    flags = []
    for name, value in arguments.items():
        if value is True:
            flags.append(f"--{name}")
        elif value is False:
            flags.append(f"--no-{name}")
        elif isinstance(value, dict) and value:
            flags.append(f"--{name}={json.dumps(value, default=str)}")
        elif isinstance(value, str | int | float):
            flags.append(f"--{name}={value}")
    return flags


def _parse_pairs(pattern: re.Pattern[str], text: str) -> list[tuple[str, object]]:
    """Return (name, value) pairs that are printed in Python's notation."""
    words = {"True": True, "False": False, "None": None}
    return [
        (name, words[value] if value in words else value.strip("'\""))
        for name, value in pattern.findall(text[:MAX_LINE])
    ]


def _drop_cluster_fields(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in _CLUSTER_FIELDS}


_GIB = 2**30

_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "tensor_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """Values that a server printed at start-up; None if it did not. Memory is in bytes per GPU."""

    path: str
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    weights_bytes: int | None = None
    graphs_bytes: int | None = None
    activations_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int | None = None
    concurrency_limit: float | None = None
    launch: LoggedSettings = field(default_factory=LoggedSettings)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the launch settings as pool fields, including `engine` but not the KV cache size."""
        printed = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        engine = {} if self.launch.engine is None else {"engine": self.launch.engine}
        return {**engine, **self.launch.fields, **printed}

    def kv_fields(self, block_tokens: int) -> dict[str, int]:
        """Return the logged KV cache size as a pool field, in blocks of `block_tokens` tokens; empty if not logged."""
        blocks = self.kv_blocks
        if blocks is None and self.kv_tokens is not None:
            blocks = self.kv_tokens // block_tokens
        return {} if blocks is None else {"num_gpu_blocks_override": blocks}

    def rows(self) -> list[tuple[str, str]]:
        shown = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is None or name in ("path", "launch"):
                continue
            text = f"{value / _GIB:.2f} GiB" if name.endswith("_bytes") else f"{value:,}"
            shown.append((name.removesuffix("_bytes").replace("_", " "), text))
        settings = {name: value for name, value in self.settings.items() if name not in _LIMITS}
        return [*((name.replace("_", " "), str(value)) for name, value in settings.items()), *shown]


def read_server_log(path: str | Path) -> ServerLog:
    """Read the start-up lines of a vLLM or SGLang log. Raises MalformedFile if it has none."""
    text = read_bytes(path, "a server log", cut=True).decode("utf-8", errors="replace")
    log = parse_server_log(path, text)
    if log is None:
        raise MalformedFile(
            path, "contains none of the lines that vLLM or SGLang print at start-up (KV cache size, ...)"
        )
    return log


def parse_server_log(path: str | Path, text: str) -> ServerLog | None:
    """Return the values of the start-up lines in a text; None if it has none."""
    values = {
        name: found for name, forms in TABLES["patterns"].items() if (found := _first_match(forms, text))
    }
    launch = launch_settings(text)
    if launch is None and not values:
        return None
    fields: dict[str, Any] = {}
    for name, value in values.items():
        number = float(value.replace(",", ""))
        if name.endswith("_gib"):
            fields[name.removesuffix("_gib") + "_bytes"] = int(number * _GIB)
        else:
            fields[name] = number if name == "concurrency_limit" else int(number)
    return ServerLog(path=str(path), **fields, launch=launch or LoggedSettings())


def _first_match(forms: Sequence[str], text: str) -> str | None:
    """Return the value in the first line that matches a pattern in `forms`; all ranks print the same line."""
    match = re.search("|".join(forms), text)
    return next((group for group in match.groups() if group), None) if match else None
