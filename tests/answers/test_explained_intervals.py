"""`explain --interval`: parts whose shares add up, that make the interval, and that vanish when they are said."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import capacity
from capacity.answers.interval_parts import ExplainedInterval
from capacity.report.layout import render_text
from capacity.report.views.layout import view_parts as parts_of
from capacity.report.views.one_load import interval_view

LOAD: dict[str, Any] = {"gpu": "h100", "input_len": 800, "output_len": 100}
BY_METRIC = ("TTFT", "TPOT", "E2E")


def explained(**load: Any) -> dict[str, ExplainedInterval]:
    answer = capacity.explain("llama-3.1-8b", **LOAD, **load)
    return {interval.metric: interval for interval in answer.intervals}


def test_parts_share_the_variance_and_name_what_narrows_them() -> None:
    found = explained(request_rate=8.0)
    assert tuple(found) == BY_METRIC
    for interval in found.values():
        assert sum(part.variance_share for part in interval.parts) == pytest.approx(1.0)
        shares = [part.variance_share for part in interval.parts]
        assert shares == sorted(shares, reverse=True)
        assert all(part.low <= 0 <= part.high for part in interval.parts)
        assert "client" not in {part.name for part in interval.parts}
    client = next(part for part in found["TTFT"].as_found_parts if part.name == "client")
    assert client.narrowed_by == "set --client-latency"
    assert "client" not in {part.name for part in found["TPOT"].as_found_parts}


def test_the_interval_is_what_its_parts_make() -> None:
    """TPOT of arrivals by the clock holds nothing but its parts, and the run's own mean."""
    tpot = explained(request_rate=8.0)["TPOT"]
    assert tpot.predicted_s.low is not None
    assert tpot.predicted_s.high is not None
    high = math.sqrt(sum(math.log1p(part.high) ** 2 for part in tpot.parts))
    assert math.log(tpot.predicted_s.high / tpot.predicted_s.value) == pytest.approx(high, rel=0.02)
    estimate = capacity.estimate("llama-3.1-8b", **LOAD, request_rate=8.0)
    assert estimate.tpot_s == tpot.predicted_s


def test_what_is_said_is_no_part_any_more() -> None:
    said = explained(
        request_rate=8.0, client_latency_s=0.002, engine="vllm@0.15", max_num_batched_tokens=2048
    )
    names = {part.name for part in said["TTFT"].as_found_parts}
    assert not names & {"client", "engine version", "--max-num-batched-tokens"}
    assert "--max-num-seqs" in {part.name for part in explained(request_rate=8.0)["TTFT"].as_found_parts}
    assert "--max-num-seqs" not in {part.name for part in explained(request_rate=8.0)["TTFT"].parts}


def test_a_batch_has_the_band_of_its_steps() -> None:
    found = explained(batch_size=4)
    assert [part.name for part in found["TPOT"].parts] == ["decode steps"]
    assert {part.name for part in found["E2E"].parts} == {"decode steps", "prefill steps"}
    assert {part.name for part in found["E2E"].as_found_parts} == {"decode steps", "prefill steps", "client"}


def test_tables_and_json_have_every_part() -> None:
    answer = capacity.explain("llama-3.1-8b", **LOAD, request_rate=8.0)
    text = render_text(parts_of(interval_view(answer), answer))
    for interval in answer.intervals:
        assert f"{interval.metric} " in text
    assert "set --client-latency" in " ".join(text.split())
    parts = json.loads(json.dumps(answer.to_dict()))["intervals"][0]["parts"]
    assert {"name", "what", "low", "high", "variance_share", "narrowed_by"} == set(parts[0])
