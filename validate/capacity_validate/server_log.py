"""What an engine printed when it started: KV cache, weights, graphs, limits. Facts that beat any estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.outside import read_bytes

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
    "max_model_len": r"max_seq_len ?= ?(\d+)|Using max model len (\d+)"
    r"|Maximum concurrency for ([\d,]+) tokens per request",
    "block_size": r"['\"]?block_size['\"]? ?[=:] ?(\d+)",
    "tensor_parallel_size": r"tensor_parallel_size ?[=:] ?(\d+)|tp_size=(\d+)",
    "concurrency_limit": r"Maximum concurrency for [\d,]+ tokens per request: (\d+\.?\d*)x",
}


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

    def overrides(self, block_tokens: int) -> dict[str, Any]:
        """Pool fields that the log settles; KV blocks of `block_tokens` tokens unless it says otherwise."""
        fields = {
            name: getattr(self, name)
            for name in (
                "max_num_batched_tokens",
                "max_num_seqs",
                "max_model_len",
                "block_size",
                "tensor_parallel_size",
            )
            if getattr(self, name) is not None
        }
        blocks = self.kv_blocks
        if blocks is None and self.kv_tokens is not None:
            blocks = self.kv_tokens // (self.block_size or block_tokens)
        if blocks is not None:
            fields["num_gpu_blocks_override"] = blocks
        return fields

    def rows(self) -> list[tuple[str, str]]:
        """For a table."""
        shown = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is None or name == "path":
                continue
            text = f"{value / _GIB:.2f} GiB" if name.endswith("_bytes") else f"{value:,}"
            shown.append((name.removesuffix("_bytes").replace("_", " "), text))
        return shown


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
    return ServerLog(path=str(path), **_values(texts)) if any(texts.values()) else None


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
