"""Readers of benchmark result files: detect the tool that wrote a file, and return its measurements and workload.

For each tool, `tools.toml` lists where simple fields are in the JSON; a reader function per format reads the other
fields. `_FORMATS` lists the formats in the order in which they are tried. A value that the file lacks is None.
"""

from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.base.external_files import read_text
from capacity_validate.benchmark_results.client_results import (
    AIPERF,
    GUIDELLM,
    INFERENCE_PERF,
    INFERENCEX,
    LLMPERF,
    is_mlperf,
    read_mlperf,
)
from capacity_validate.benchmark_results.engine_tools import (
    LLAMA_BENCH,
    SGLANG,
    TRTLLM_BENCH,
    VLLM,
    VLLM_OFFLINE,
)
from capacity_validate.benchmark_results.measured_run import (
    MAX_NUMBER,
    STATISTICS,
    MeasuredRun,
    ResultFormat,
    explain_structure,
    parse_documents,
)
from capacity_validate.benchmark_results.metrics_scrape import (
    is_metrics,
    modified_s,
    read_scrape,
    run_of_metrics,
)

__all__ = ["STATISTICS", "MeasuredRun", "is_mlperf", "read_results"]

MAX_TOKENS = 10**8  # upper limit for one request

# Formats of a list that contains the requests or tests of one run.
_LIST_FORMATS = (LLAMA_BENCH, INFERENCE_PERF[0], LLMPERF[0])
# Formats of objects. SGLang's lines also have vLLM's keys, so SGLang is tried first.
_FORMATS = (
    LLAMA_BENCH, INFERENCE_PERF[1], GUIDELLM, TRTLLM_BENCH, *VLLM_OFFLINE, *AIPERF, LLMPERF[1], INFERENCEX, SGLANG,
    VLLM,
)  # fmt: skip


def read_results(path: str | Path, text: str | None = None) -> list[MeasuredRun]:
    """Return every run in a result file. If its content was already read, pass it as `text`. Raises MalformedFile."""
    path = Path(path)
    text = (read_text(path, "a benchmark result") if text is None else text).strip()
    if is_metrics(text):
        return [run_of_metrics(read_scrape(path, text, scraped_s=modified_s(path)))]
    if is_mlperf(text):
        return [read_mlperf(path, text)]
    values = list(parse_documents(path, text))
    if values in ([], [[]]):
        raise MalformedFile(path, "is empty")
    layout, values = _detect_format(path, values)
    with explain_structure(path, f"a result of {layout.tools[0]}"):
        runs = layout.read(path, values)
        for run in runs:
            _check_lengths(path, run)
            run.workload()
    if not runs:
        raise MalformedFile(path, f"contains no run of {layout.tools[0]}: run the benchmark again")
    return runs


def _detect_format(path: Path, values: list[Any]) -> tuple[ResultFormat, list[Any]]:
    """Return the format that recognises these JSON values, and the values; a list of runs is replaced by its entries.

    Raises MalformedFile if no format recognises them.
    """
    if not isinstance(values[0], list) and any(not isinstance(value, dict) for value in values):
        raise MalformedFile(path, "mixes objects and lists, which no supported tool writes")
    if isinstance(values[0], list):
        for layout in _LIST_FORMATS:
            if values[0] and layout.recognises(values):
                return layout, values
        values = [run for value in values if isinstance(value, list) for run in value]
    if values and all(isinstance(value, dict) for value in values):
        for layout in _FORMATS:
            if layout.recognises(values):
                return layout, values
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
