"""Readers of benchmark result files: detect the tool that wrote a file, and return its measurements and workload.

For each tool, `tools.toml` lists where simple fields are in the JSON; a reader function per format reads the other
fields. `_FORMATS` lists the formats in the order in which they are tried. A value that the file lacks is None.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.base.external_files import read_text
from capacity_validate.benchmark_results.client_results import AIPERF, GUIDELLM, INFERENCE_PERF
from capacity_validate.benchmark_results.in_process import LLAMA_BENCH, TRTLLM_BENCH, VLLM_OFFLINE
from capacity_validate.benchmark_results.measured_run import (
    MAX_NUMBER,
    STATISTICS,
    MeasuredRun,
    ResultFormat,
    parse_documents,
)
from capacity_validate.benchmark_results.metrics_scrape import is_metrics, read_metrics
from capacity_validate.benchmark_results.vllm import SGLANG, VLLM

__all__ = ["STATISTICS", "MeasuredRun", "read_results"]

MAX_TOKENS = 10**8  # upper limit for one request

# SGLang's lines also have vLLM's keys, so SGLang is tried first.
_FORMATS = (LLAMA_BENCH, *INFERENCE_PERF, GUIDELLM, TRTLLM_BENCH, *VLLM_OFFLINE, *AIPERF, SGLANG, VLLM)


def read_results(path: str | Path, text: str | None = None) -> list[MeasuredRun]:
    """Return every run in a result file. If its content was already read, pass it as `text`. Raises MalformedFile."""
    path = Path(path)
    text = (read_text(path, "a benchmark result") if text is None else text).strip()
    if is_metrics(text):
        return [read_metrics(path, text)]
    values = list(parse_documents(path, text))
    if values in ([], [[]]):
        raise MalformedFile(path, "is empty")
    layout = _detect_format(path, values)
    try:
        runs = layout.read(path, values)
        for run in runs:
            _check_lengths(path, run)
            run.workload()
    except MalformedFile:
        raise
    except (AttributeError, TypeError, KeyError, IndexError, ValueError, OverflowError) as error:
        reason = str(error)[:120] or type(error).__name__
        raise MalformedFile(
            path, f"looks like a result of {layout.tools[0]}, but has another structure: {reason}"
        ) from None
    if not runs:
        raise MalformedFile(path, f"contains no run of {layout.tools[0]}: run the benchmark again")
    return runs


def _detect_format(path: Path, values: Sequence[Any]) -> ResultFormat:
    """Return the result format that recognises these JSON values. Raises MalformedFile if none does."""
    if not isinstance(values[0], list) and any(not isinstance(value, dict) for value in values):
        raise MalformedFile(path, "mixes objects and lists, which no supported tool writes")
    for layout in _FORMATS:
        if layout.recognises(values):
            return layout
    tools = dict.fromkeys(tool for layout in reversed(_FORMATS) for tool in layout.tools)
    raise MalformedFile(path, f"is not a supported benchmark result ({', '.join(tools)})")


def _check_lengths(path: Path, run: MeasuredRun) -> None:
    columns = run.requests
    if columns is None:
        return
    for name, values in (("prompt", columns.prompt_tokens), ("output", columns.output_tokens)):
        worst = max(values, default=0)
        if worst > MAX_TOKENS or min(values, default=0) < 0:
            raise MalformedFile(path, f"contains a {name} of {worst:,} tokens: must be 0 to {MAX_TOKENS:,}")
    for times in (columns.start_s, columns.scheduled_s):
        if times is not None and not (np.abs(np.asarray(times, dtype=float)) < MAX_NUMBER).all():
            raise MalformedFile(path, "contains start times that are not numbers")
