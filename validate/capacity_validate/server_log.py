"""What an engine printed when it started: launch settings, KV cache, weights, graphs, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.outside import read_bytes
from capacity_validate.launch_log import LaunchSettings, launch_settings

_GIB = 2**30

_PATTERNS = {  # vLLM 0.6 to 0.33, SGLang
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens"
    r"|KV Cache is allocated\.[^\n]*#tokens: ([\d,]+)|max_total_num_tokens=([\d,]+)",
    "kv_blocks": r"# (?:GPU|cuda) blocks: ([\d,]+)",
    "kv_cache_gib": r"Available KV cache memory: (\d+\.?\d*) ?GiB|reserved for KV Cache is (\d+\.?\d*) ?GiB",
    "weights_gib": r"Model loading took (\d+\.?\d*) ?GiB|model weights take (\d+\.?\d*) ?GiB"
    r"|Loading model weights took (\d+\.?\d*) ?G[iB]",
    "graphs_gib": r"Graph capturing finished in [\d.]+ secs?, took (\d+\.?\d*) ?GiB",
    "activations_gib": r"PyTorch activation peak memory takes (\d+\.?\d*) ?GiB",
    "max_num_batched_tokens": r"max_num_batched_tokens ?[=:] ?'?(\d+)|chunked_prefill_size=(\d+)",
    "max_num_seqs": r"max_num_seqs['\"]? ?[=:] ?(\d+)|max_running_requests=(\d+)",
    "max_model_len": r"max_seq_len ?= ?(\d+)|Using max model len (\d+)|context_len=(\d+)"
    r"|Maximum concurrency for ([\d,]+) tokens per request",
    "block_size": r"['\"]?block_size['\"]? ?[=:] ?(\d+)",
    "tensor_parallel_size": r"tensor_parallel_size ?[=:] ?(\d+)|tp_size=(\d+)",
    "concurrency_limit": r"Maximum concurrency for [\d,]+ tokens per request: (\d+\.?\d*)x",
}
_LIMITS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "tensor_parallel_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """Values as printed; None: not printed. Memory in bytes, of one GPU."""

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
    launch: LaunchSettings = field(default_factory=LaunchSettings)

    @property
    def settings(self) -> dict[str, Any]:
        """The pool fields that the server was started with, `engine` included, without the KV cache's size."""
        printed = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        engine = {} if self.launch.engine is None else {"engine": self.launch.engine}
        return {**engine, **self.launch.fields, **printed}

    def kv_fields(self, block_tokens: int) -> dict[str, int]:
        """The KV blocks that the log prints, of `block_tokens` tokens each, as a pool's field."""
        blocks = self.kv_blocks
        if blocks is None and self.kv_tokens is not None:
            blocks = self.kv_tokens // block_tokens
        return {} if blocks is None else {"num_gpu_blocks_override": blocks}

    def rows(self) -> list[tuple[str, str]]:
        """For a table."""
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
    """The start-up lines of a vLLM or SGLang log. Raises MalformedFile where it holds none of them."""
    text = read_bytes(path, "a server log", cut=True).decode("utf-8", errors="replace")
    log = server_log_of(path, text)
    if log is None:
        raise MalformedFile(
            path, "holds none of the lines that vLLM or SGLang print at start-up (KV cache size, ...)"
        )
    return log


def server_log_of(path: str | Path, text: str) -> ServerLog | None:
    """The start-up lines in a text; None where it holds none of them."""
    texts = {name: _first(pattern, text) for name, pattern in _PATTERNS.items()}
    launch = launch_settings(text)
    if launch is None and not any(texts.values()):
        return None
    return ServerLog(path=str(path), **_values(texts), launch=launch or LaunchSettings())


def _first(pattern: str, text: str) -> str | None:
    """The first match's first group that matched: ranks repeat the line, and say the same."""
    match = re.search(pattern, text)
    return next((group for group in match.groups() if group), None) if match else None


def _values(texts: Mapping[str, str | None]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if text is None:
            continue
        number = float(text.replace(",", ""))
        if name.endswith("_gib"):
            values[name.removesuffix("_gib") + "_bytes"] = int(number * _GIB)
        else:
            values[name] = number if name == "concurrency_limit" else int(number)
    return values
