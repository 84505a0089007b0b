"""A run as a Chrome trace: every step, every request's life, and what bounds each step."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import capacity
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.timeline import Timeline
from capacity.step import AffineStepTimes
from capacity.workload import random_requests


def test_timeline_covers_the_run() -> None:
    workload = random_requests(num_requests=12, input_len=40, output_len=9, request_rate_per_s=20.0)
    timeline = Timeline()
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30), observer=timeline
    )
    trace = json.loads(json.dumps(timeline.chrome_trace(result.records)))
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert len(steps) == result.steps
    assert sum(e["args"]["prefill_tokens"] for e in steps) >= int(workload.prompt_tokens.sum())
    lives = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 2]
    total_s = sum(e["dur"] for e in lives) / 1e6
    assert total_s == pytest.approx(sum(r.e2e_s for r in result.records if r.e2e_s is not None))


LLAMA = "llama-3.1-8b"


def test_a_timeline_says_it_of_each_step() -> None:
    timeline = Timeline()
    load: dict[str, Any] = {"gpu": "h100", "input_len": 3000, "output_len": 5, "num_prompts": 3}
    answer = capacity.simulate(LLAMA, **load, observer=timeline)
    trace = json.loads(json.dumps(timeline.chrome_trace(answer.run.records)))
    steps = [event for event in trace["traceEvents"] if event["pid"] == 1 and event["ph"] == "X"]
    assert {event["args"]["bound"] for event in steps if event["name"] == "prefill"} == {"compute"}
    assert {event["args"]["bound"] for event in steps if event["name"] == "decode"} == {"memory"}
    assert all(sum(event["args"]["bounds"].values()) == pytest.approx(1) for event in steps)


def test_a_preempted_request_pauses_where_the_records_say() -> None:
    workload = random_requests(num_requests=12, input_len=40, output_len=60, request_rate_per_s=200.0)
    timeline = Timeline()
    setup = EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30)
    result = simulate(workload, setup, observer=timeline)
    events = timeline.chrome_trace(result.records)["traceEvents"]
    lives = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    paused = [event for event in lives if event["name"] == "preempted"]
    assert {event["tid"] for event in paused} == {r.index for r in result.records if r.preemptions}
    assert paused
    # the records count from decision to decision, and a step may begin after it was decided: while another runs
    longest_us = max(event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 1)
    preempted_ps = result.records.preempted_ps
    assert preempted_ps is not None
    for record in result.records:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in lives if event["tid"] == record.index
        )
        assert own[0][0] == pytest.approx(record.arrival_s * 1e6)
        assert own[-1][1] == pytest.approx((record.finish_s or 0.0) * 1e6)
        assert all(end == pytest.approx(begin) for (_, end), (begin, _) in pairwise(own))
        after = [
            event
            for event in paused
            if event["tid"] == record.index and event["ts"] >= (record.first_token_s or 0) * 1e6
        ]
        known_us = preempted_ps[record.index] / 1e6
        assert sum(event["dur"] for event in after) == pytest.approx(
            known_us, abs=longest_us * record.preemptions
        )
