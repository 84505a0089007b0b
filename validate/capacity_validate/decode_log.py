"""Decode step times from an engine's log, from periods (windows) in which the engine only decoded.

vLLM logs means over ten seconds, SGLang over a number of decode steps. A window counts if no prompt ran in it, its
number of running sequences is the same at start and end, and no request waits; a step then took `sequences / tokens
per second`. Logs of speculative decoding are skipped because they lack the number of tokens per step. Sources of the
log lines: vLLM 0.8 to 0.33, v1/metrics/loggers.py; SGLang 0.4 to 0.5, managers/scheduler_metrics_mixin.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from capacity_validate.server_log import TABLES

MAX_FIGURES = 8
MIN_WINDOWS = 2  # per number of sequences, because a single window may contain a stall

_LINES = {name: re.compile(pattern) for name, pattern in TABLES["decode_lines"].items()}


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
    if _LINES["drafts"].search(text):
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
    for line in _LINES["vllm"].finditer(text):
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
    lines = [*_LINES["sglang"].finditer(text), *_LINES["sglang_prefill"].finditer(text)]
    before: dict[str | None, tuple[int, int]] = {}
    for line in sorted(lines, key=lambda found: found.start()):
        rank = line["rank"]
        if line.re is _LINES["sglang_prefill"]:
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
