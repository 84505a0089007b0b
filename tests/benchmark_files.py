"""Result files of load generators, written for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def vllm_result(**changes: Any) -> dict[str, Any]:
    """Three requests, one of which failed; keys as `vllm bench serve` 0.33 writes them."""
    return {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 3,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 300,
        "total_output_tokens": 7,
        "request_throughput": 1.0,
        "request_goodput": None,
        "output_throughput": 3.5,
        "mean_ttft_ms": 75.0,
        "median_ttft_ms": 75.0,
        "p99_ttft_ms": 99.5,
        "input_lens": [100, 50, 200],
        "output_lens": [3, 0, 4],
        "ttfts": [0.1, 0.0, 0.05],
        "itls": [[0.01, 0.03], [], [0.02, 0.02, 0.02]],
        "start_times": [100.0, 100.4, 99.5],
        **changes,
    }


def changed(document: Any, bad: Any) -> Iterator[Any]:
    """The document with each of its values in turn, at any depth, replaced by `bad`."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield {**document, key: bad}
            for inner in changed(value, bad):
                yield {**document, key: inner}
    elif isinstance(document, list):
        for index, value in enumerate(document):
            for inner in (bad, *changed(value, bad)):
                yield [*document[:index], inner, *document[index + 1 :]]
