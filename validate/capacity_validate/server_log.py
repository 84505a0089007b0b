"""Read an engine's start-up log: launch settings as fields of `Pool`, KV cache, weights, graphs, limits.

vLLM 0.6 to 0.33 prints its release (api_server.py, api_utils.py), the arguments that differ from their defaults, and
the engine's configuration (v1/engine/core.py). SGLang prints all of its arguments (engine.py). TensorRT-LLM 1.0 and
later prints its release, its PyTorch settings (pyexecutor/config.py), and its memory, first for a trial run and then
the final values.

Decode step times from an engine's log, from periods (windows) in which the engine only decoded.

vLLM logs means over ten seconds, SGLang over a number of decode steps. A window counts if no prompt ran in it, its
number of running sequences is the same at start and end, and no request waits; a step then took `sequences / tokens
per second`. Logs of speculative decoding are skipped because they lack the number of tokens per step. Sources of the
log lines: vLLM 0.8 to 0.33, v1/metrics/loggers.py; SGLang 0.4 to 0.5, managers/scheduler_metrics_mixin.py.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from capacity.base.data_files import read_data
from capacity.base.errors import MalformedFile
from capacity.base.external_files import read_bytes
from capacity.deployment.launch_command import read_words

MAX_LINE = 50_000  # maximum length of a parsed log line, in characters
MAX_DIGITS = 18  # of a logged number
TABLES = read_data(Path(__file__).with_name("server_log.toml"))
_LINES = {name: re.compile(pattern) for name, pattern in TABLES["lines"].items()}
_CLUSTER_FIELDS = ("kv_transfer_config", "role")  # only a single server is replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSettings:
    """The settings that a server was started with. `models` has the model's path or id first, then its served names.

    `fields` are fields of `Pool`; the value None for `quantization` means that the log states unquantized weights.
    """

    engine: str | None = None
    models: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)


def launch_settings(text: str) -> LoggedSettings | None:
    """Return the launch settings that a log prints; None if it prints none."""
    sglang = _LINES["sglang_arguments"].search(text)
    if sglang is not None:
        return sglang_settings(dict(_parse_pairs(_LINES["pair"], sglang[1])))
    if (tensorrt_llm := _LINES["tensorrt_llm"].search(text)) is not None:
        return _tensorrt_llm_settings(tensorrt_llm[1], text)
    release, engine_line = _LINES["release"].search(text), _LINES["vllm_engine"].search(text)
    arguments = _LINES["vllm_arguments"].search(text)
    if release is None and engine_line is None and arguments is None:
        return None
    found = _vllm_arguments(arguments[1]) if arguments is not None else LoggedSettings()
    models, fields = list(found.models), dict(found.fields)
    if engine_line is not None:
        # reversed, because the first value of a name is the engine's
        config = dict(reversed(list(_parse_pairs(_LINES["pair"], engine_line[1]))))
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
        engine = f"vllm@{'0.8-v0' if _LINES['v0'].search(text) else version}"
    return LoggedSettings(
        engine=engine or "vllm", models=_add_hub_names(models), fields=_drop_cluster_fields(fields)
    )


def _add_hub_names(models: Sequence[str]) -> tuple[str, ...]:
    """Return a model's names; the Hugging Face name comes first if a name is a folder of the Hugging Face cache."""
    hub = [
        f"{found[1]}/{found[2]}" for name in models if (found := _LINES["snapshot"].search(name)) is not None
    ]
    return tuple(dict.fromkeys([*hub, *models]))


def _tensorrt_llm_settings(release: str, text: str) -> LoggedSettings:
    """Return the launch settings in TensorRT-LLM's log, which names the model only by its folder."""
    settings: dict[str, object] = {}
    for part in _LINES["tensorrt_llm_settings"].finditer(text):
        settings |= dict(_parse_pairs(_LINES["pair"], part[1]))
    fields = {own: settings[name] for name, own in TABLES["tensorrt_llm_fields"].items() if name in settings}
    if fields.get("kv_cache_dtype") == "auto":
        del fields["kv_cache_dtype"]
    if "use_cuda_graph" in settings:
        fields["enforce_eager"] = settings["use_cuda_graph"] is False
    snapshot = _LINES["snapshot"].search(text)
    named = [snapshot[0]] if snapshot is not None else []
    if isinstance(settings.get("model"), str):
        named.append(str(settings["model"]))
    models = tuple(name for name in _add_hub_names(named) if snapshot is None or name != snapshot[0])
    return LoggedSettings(
        engine=f"tensorrt-llm@{release}", models=models, fields=_drop_cluster_fields(fields)
    )


def sglang_settings(arguments: Mapping[str, object], version: object = None) -> LoggedSettings:
    """Return the launch settings in SGLang's arguments, which its log and /get_server_info contain."""
    names = [arguments.get(name) for name in ("model_path", "served_model_name")]
    models = _add_hub_names([str(name) for name in names if name])
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
        arguments = dict(_parse_pairs(_LINES["quoted_pair"], text))
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
    """Values that a server printed at start-up. A value is None if it was not printed. Memory is in bytes per GPU."""

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
    attention_backend: str | None = None
    moe_backend: str | None = None
    prefix_hit_rate: float | None = None  # share of prompt tokens found in the prefix cache
    launch: LoggedSettings = field(default_factory=LoggedSettings)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the launch settings as fields of `Pool`, including `engine` but not the KV cache size."""
        printed = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        if (backend := TABLES["moe_backends"].get(self.moe_backend)) is not None:
            printed["moe_backend"] = backend
        engine = {} if self.launch.engine is None else {"engine": self.launch.engine}
        return {**engine, **self.launch.fields, **printed}

    def completed_by(self, other: "ServerLog") -> "ServerLog":
        """Return a copy with the values of `other` where this one has none."""
        missing = {
            name: value
            for name in self.__dataclass_fields__
            if getattr(self, name) is None and (value := getattr(other, name)) is not None
        }
        if self.kv_tokens or self.kv_blocks:
            missing = {name: value for name, value in missing.items() if not name.startswith("kv_")}
        launch = LoggedSettings(
            engine=max(  # with a release if one of them has it
                filter(None, (self.launch.engine, other.launch.engine)),
                key=lambda each: "@" in each,
                default=None,
            ),
            models=self.launch.models,
            fields={**other.launch.fields, **self.launch.fields},
        )
        return replace(self, **missing, launch=launch)

    def kv_fields(self, block_tokens: int) -> dict[str, int]:
        """Return the logged KV cache size as a `Pool` field, in blocks of `block_tokens`; empty if not logged."""
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
            if name.endswith("_bytes"):
                text = f"{value / _GIB:.2f} GiB"
            elif name.endswith("_rate"):
                text = f"{value:.1%}"
            else:
                text = value if isinstance(value, str) else f"{value:,}"
            shown.append((name.removesuffix("_bytes").replace("_", " "), text))
        settings = {
            name: value
            for name, value in self.settings.items()
            if name != "moe_backend" and (name not in _LIMITS or getattr(self, name) is None)
        }
        return [*((name.replace("_", " "), str(value)) for name, value in settings.items()), *shown]


def read_server_log(path: str | Path) -> ServerLog:
    """Read the start-up lines of a vLLM, SGLang or TensorRT-LLM log. Raises MalformedFile if it has none."""
    text = read_bytes(path, "a server log", cut=True).decode("utf-8", errors="replace")
    log = parse_server_log(path, text)
    if log is None:
        raise MalformedFile(
            path,
            "contains none of the lines that vLLM, SGLang or TensorRT-LLM print at start-up (KV cache size, ...)",
        )
    return log


def parse_server_log(path: str | Path, text: str) -> ServerLog | None:
    """Return the values of the start-up lines in a text; None if it has none."""
    launch = launch_settings(text)
    last = launch is not None and str(launch.engine).startswith("tensorrt-llm")
    values = {
        name: found
        for name, forms in TABLES["patterns"].items()
        if (found := _find_value(forms, text, last=last))
    }
    if launch is None and not values:
        return None
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name.endswith("_backend"):
            fields[name] = value
            continue
        digits = value.replace(",", "")
        if not 0 < len(digits) <= MAX_DIGITS:
            continue
        number = float(digits)
        if name.endswith("_gib"):
            fields[name.removesuffix("_gib") + "_bytes"] = int(number * _GIB)
        else:
            fields[name] = number if name == "concurrency_limit" else int(number)
    return ServerLog(
        path=str(path), **fields, prefix_hit_rate=_prefix_hit_rate(text), launch=launch or LoggedSettings()
    )


def _prefix_hit_rate(text: str) -> float | None:
    """Return the last hit rate that vLLM logs, or the share of cached tokens in all prefills that SGLang logs."""
    logged = re.findall(r"Prefix cache hit rate: (?:GPU: )?(\d+\.?\d*)%", text)
    if logged:
        return float(logged[-1]) / 100
    prefills = [(int(new), int(cached)) for new, cached in _LINES["sglang_prefill"].findall(text)]
    new, cached = (sum(each[i] for each in prefills) for i in range(2))
    return cached / (new + cached) if new + cached else None


def _find_value(forms: Sequence[str], text: str, *, last: bool) -> str | None:
    """Return the value in the first (or last) line that matches a pattern in `forms`; all ranks print the same line."""
    matches = re.finditer("|".join(forms), text)
    match = next(iter([*matches][-1:] if last else matches), None)
    return next((group for group in match.groups() if group), None) if match else None


MAX_FIGURES = 8
MIN_WINDOWS = 2  # per number of sequences, because a single window may contain a stall

_DECODE_LINES = {name: re.compile(pattern) for name, pattern in TABLES["decode_lines"].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSteps:
    """Median seconds of a decode step for one batch size. The log gives either the mean context (SGLang) or the used
    fraction of the KV cache (vLLM)."""

    sequences: int
    seconds: float
    windows: int
    context_tokens: float | None = None
    kv_fraction: float | None = None


def decode_steps(text: str) -> list[DecodeSteps]:
    """Return the median step time for each batch size, starting with the batch size that has the most log windows."""
    if _DECODE_LINES["drafts"].search(text):
        return []
    by_sequences: dict[int, list[DecodeSteps]] = {}
    for window in (*_vllm_windows(text), *_sglang_windows(text)):
        by_sequences.setdefault(window.sequences, []).append(window)
    merged = [_merge_windows(group) for group in by_sequences.values() if len(group) >= MIN_WINDOWS]
    return sorted(merged, key=lambda steps: -steps.windows)[:MAX_FIGURES]


def _merge_windows(group: list[DecodeSteps]) -> DecodeSteps:
    contexts = [window.context_tokens for window in group if window.context_tokens is not None]
    fractions = [window.kv_fraction for window in group if window.kv_fraction is not None]
    return DecodeSteps(
        sequences=group[0].sequences,
        seconds=median(window.seconds for window in group),
        windows=len(group),
        context_tokens=median(contexts) if contexts else None,
        kv_fraction=median(fractions) if fractions else None,
    )


def _vllm_windows(text: str) -> Iterator[DecodeSteps]:
    before: dict[str | None, tuple[int, float]] = {}
    for line in _DECODE_LINES["vllm"].finditer(text):
        engine, running = line["engine"], int(line["running"])
        generated, usage = float(line["generated"]), float(line["usage"]) / 100
        last = before.get(engine)
        before[engine] = (running, usage)
        alone = float(line["prompt"]) == 0 and int(line["waiting"]) == 0
        if alone and running and generated > 0 and usage > 0 and last is not None and last[0] == running:
            yield DecodeSteps(
                sequences=running, seconds=running / generated, windows=1, kv_fraction=(usage + last[1]) / 2
            )


def _sglang_windows(text: str) -> Iterator[DecodeSteps]:
    lines = [*_DECODE_LINES["sglang"].finditer(text), *_DECODE_LINES["sglang_prefill"].finditer(text)]
    before: dict[str | None, tuple[int, int]] = {}
    for line in sorted(lines, key=lambda found: found.start()):
        rank = line["rank"]
        if line.re is _DECODE_LINES["sglang_prefill"]:
            before.pop(rank, None)
            continue
        running, tokens, generated = int(line["running"]), int(line["tokens"]), float(line["generated"])
        last = before.get(rank)
        before[rank] = (running, tokens)
        alone = int(line["waiting"]) == 0 and "cuda graph: False" not in line["rest"]
        if alone and running and generated > 0 and last is not None and last[0] == running:
            yield DecodeSteps(
                sequences=running,
                seconds=running / generated,
                windows=1,
                context_tokens=(tokens + last[1]) / 2 / running,
            )
