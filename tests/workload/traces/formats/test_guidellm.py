"""A GuideLLM report as a workload: the requests of its largest benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_texts import read

from capacity.base.errors import MalformedFile


def report(*sizes: int) -> dict[str, object]:
    def request(at: int) -> dict[str, object]:
        if at % 2:  # as of version 2
            timings = {"request_start": 1e9 + at / 4}
            return {
                "info": {"timings": timings},
                "input_metrics": {"text_tokens": 64 + at},
                "output_metrics": {"text_tokens": 9},
            }
        return {"start_time": 1e9 + at / 4, "prompt_tokens": 64 + at, "output_tokens": 9}

    return {
        "benchmarks": [{"requests": {"successful": [request(at) for at in range(size)]}} for size in sizes]
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_the_benchmark_with_most_requests_is_taken(tmp_path: Path, indent: int | None) -> None:
    workload = read(tmp_path, json.dumps(report(2, 5, 3), indent=indent))
    assert workload.arrival_s.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert workload.prompt_tokens.tolist() == [64, 65, 66, 67, 68]
    assert workload.notices == ("benchmark 2 of 3 is used, because it has the most requests",)


@pytest.mark.parametrize(
    "content", [{"benchmarks": []}, {"benchmarks": 3}, {"benchmarks": [{"requests": {"successful": [{}]}}]}]
)
def test_a_report_without_requests_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(MalformedFile):
        read(tmp_path, json.dumps(content))
