"""The launch settings in an engine's start-up log, as fields of a pool.

vLLM 0.6 to 0.33 prints its release (api_server.py, api_utils.py), the arguments that differ from their defaults, and
the engine's configuration (v1/engine/core.py). SGLang prints all of its arguments (engine.py).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.deployment.launch_command import read_words

MAX_LINE = 50_000  # characters of one log line that are parsed
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
_ENGINE_FIELDS = {  # of the configuration line
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "enforce_eager": "enforce_eager",
    "enable_prefix_caching": "enable_prefix_caching",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "enable_chunked_prefill": "enable_chunked_prefill",
}
_NOT_OF_THE_SERVER = ("kv_transfer_config", "role")  # one server is replayed, not its part in several


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What a server was started with. `models`: its model's path or id, then the names that it is served under.

    `fields` are a pool's; `quantization` None there means that the log says that weights are not quantized.
    """

    engine: str | None = None
    models: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)


def launch_settings(text: str) -> LaunchSettings | None:
    """The settings in a log; None where it prints none."""
    sglang = _SGLANG_ARGUMENTS.search(text)
    if sglang is not None:
        return sglang_settings(dict(_pairs(_PAIR, sglang[1])))
    release, engine_line = _RELEASE.search(text), _VLLM_ENGINE.search(text)
    arguments = _VLLM_ARGUMENTS.search(text)
    if release is None and engine_line is None and arguments is None:
        return None
    found = _vllm_arguments(arguments[1]) if arguments is not None else LaunchSettings()
    models, fields = list(found.models), dict(found.fields)
    if engine_line is not None:
        config = dict(
            reversed(list(_pairs(_PAIR, engine_line[1])))
        )  # the first of a name is the engine's own
        models = [str(config[name]) for name in ("model", "served_model_name") if config.get(name)] + models
        printed = {own: config[name] for name, own in _ENGINE_FIELDS.items() if name in config}
        fields |= {
            name: value for name, value in printed.items() if name == "quantization" or value is not None
        }
        if "dtype" in fields:
            fields["dtype"] = str(fields["dtype"]).removeprefix("torch.")
    engine = None
    if release is not None:
        version = next(group for group in release.groups() if group).removesuffix(".0")
        engine = f"vllm@{'0.8-v0' if _V0.search(text) else version}"
    return LaunchSettings(
        engine=engine or "vllm", models=tuple(dict.fromkeys(models)), fields=_of_one_server(fields)
    )


def sglang_settings(arguments: Mapping[str, object], version: object = None) -> LaunchSettings:
    """The settings in SGLang's arguments, as its log and /get_server_info have them."""
    names = [arguments.get(name) for name in ("model_path", "served_model_name")]
    models = tuple(dict.fromkeys(str(name) for name in names if name))
    words = _flags({name: value for name, value in arguments.items() if value is not False})
    release = re.match(r"\d+\.\d+\.\d+", str(version or ""))
    words.append(f"--model-path={models[0] if models else '-'}")
    fields = dict(read_words("sglang", words).fields)
    fields.pop("engine", None)
    if "quantization" in arguments:
        fields.setdefault("quantization", None)
    return LaunchSettings(
        engine=f"sglang@{release[0]}" if release else "sglang",
        models=models,
        fields=_of_one_server(fields),
    )


def _vllm_arguments(text: str) -> LaunchSettings:
    """The arguments that vLLM prints as a Python mapping, whose values may be no literals."""
    try:
        arguments = ast.literal_eval(text[:MAX_LINE])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        arguments = dict(_pairs(_QUOTED_PAIR, text))
    if not isinstance(arguments, dict):
        return LaunchSettings()
    served = arguments.get("served_model_name")
    names = [
        arguments.get("model") or arguments.get("model_tag"),
        *(served if isinstance(served, list) else [served]),
    ]
    models = tuple(dict.fromkeys(str(name) for name in names if name))
    flags = _flags({name: value for name, value in arguments.items() if name not in ("model", "model_tag")})
    read = read_words("vllm", [models[0] if models else "-", *flags])
    return LaunchSettings(models=models, fields=read.fields)


def _flags(arguments: Mapping[object, object]) -> list[str]:
    """Arguments as the flags that say the same; lists have none here."""
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


def _pairs(pattern: re.Pattern[str], text: str) -> list[tuple[str, object]]:
    """Names and values as Python prints them."""
    words = {"True": True, "False": False, "None": None}
    return [
        (name, words[value] if value in words else value.strip("'\""))
        for name, value in pattern.findall(text[:MAX_LINE])
    ]


def _of_one_server(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in _NOT_OF_THE_SERVER}
