"""A range query's result: as many requests as the counters rose by, where they rose, as long as their buckets say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_texts import read

from capacity.base.errors import MalformedFile

STEP_S, BEGIN_S = 60, 1_763_000_000


def series(name: str, le: str, rises: list[float], *, start: float = 1000.0, **labels: str) -> dict[str, Any]:
    """A counter that rises so much in each interval."""
    values = np.concatenate(([start], start + np.cumsum(rises)))
    samples = [[BEGIN_S + STEP_S * at, str(value)] for at, value in enumerate(values)]
    return {"metric": {"__name__": name, "le": le, **labels}, "values": samples}


def result(*found: dict[str, Any]) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(found)}})


PROMPTS, OUTPUTS = "vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"
USUAL = (
    series(PROMPTS, "100", [60.0, 0.0, 20.0]),
    series(PROMPTS, "200", [120.0, 0.0, 40.0]),
    series(PROMPTS, "+Inf", [120.0, 0.0, 60.0]),
    series(OUTPUTS, "50", [120.0, 0.0, 60.0]),
    series(OUTPUTS, "+Inf", [120.0, 0.0, 60.0]),
)


def test_requests_come_where_the_counters_rose(tmp_path: Path) -> None:
    workload = read(tmp_path, result(*USUAL))
    minute = (workload.arrival_s // STEP_S).astype(int)
    assert np.bincount(minute, minlength=3).tolist() == [120, 0, 60]
    assert workload.output_tokens.min() >= 1
    assert workload.output_tokens.max() <= 50
    first, last = workload.prompt_tokens[minute == 0], workload.prompt_tokens[minute == 2]
    assert first.max() <= 200
    assert np.count_nonzero(first <= 100) == pytest.approx(60, abs=4 * np.sqrt(30))
    assert np.count_nonzero(last > 200) == pytest.approx(20, abs=4 * np.sqrt(60 / 4.5))


def test_servers_are_added_up_and_a_restart_is_no_fall(tmp_path: Path) -> None:
    again = series(PROMPTS, "+Inf", [0.0, 0.0, 0.0], instance="b")
    again["values"] = [[BEGIN_S, "500"], [BEGIN_S + STEP_S, "7"], [BEGIN_S + 2 * STEP_S, "9"]]
    workload = read(tmp_path, result(*USUAL, again))
    assert np.bincount((workload.arrival_s // STEP_S).astype(int), minlength=3).tolist() == [127, 2, 60]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"status": "error", "data": {}}),
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}),
        result(),
        result(*USUAL[:3]),
        result(USUAL[0], *USUAL[3:]),
        result(series(PROMPTS, "+Inf", [0.0]), series(OUTPUTS, "+Inf", [0.0])),
        result({"metric": {"__name__": PROMPTS, "le": "x"}, "values": []}),
        result({"metric": {"__name__": PROMPTS, "le": "+Inf"}, "values": [[1]]}),
        result({"metric": {"__name__": PROMPTS, "le": "+Inf"}, "values": [[BEGIN_S, "NaN"], [BEGIN_S, "1"]]}),
        result(
            {"metric": {"__name__": PROMPTS, "le": "+Inf"}, "values": [[BEGIN_S, "1"], [BEGIN_S + 9, "1e14"]]}
        ),
    ],
)
def test_what_is_no_such_result_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MalformedFile):
        read(tmp_path, text)
