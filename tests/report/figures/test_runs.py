"""Pictures of simulated runs: the numbers are the summary's."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.runs import latency_chart, timeline_chart

SIMULATED = {
    "gpu": "h100-sxm-80gb",
    "input_len": 1024,
    "output_len": 256,
    "num_prompts": 120,
    "length_distribution": "lognormal",
    "request_rate": 4.0,
}


def test_the_latency_chart_ends_at_the_summarys_percentiles() -> None:
    answer = capacity.simulate("llama-3.1-8b", **SIMULATED)
    shown = latency_chart({"run": answer}, "e2el").rows[0]
    assert shown["p95, ms"] == pytest.approx(answer.to_dict()["p95_e2el_ms"])


def test_every_step_is_as_wide_as_it_lasted() -> None:
    steps = [
        {"ts": 0.0, "dur": 2e3, "name": "prefill", "args": {"rows": 1, "tokens": 8, "prefill_tokens": 8}},
        {"ts": 2e3, "dur": 1e3, "name": "decode", "args": {"rows": 1, "tokens": 1, "prefill_tokens": 0}},
    ]
    chart = timeline_chart(steps)
    assert [(list(bar.x), list(bar.width)) for bar in chart.figure.data] == [
        ([1], [2]),
        ([], []),
        ([2.5], [1]),
    ]
    assert chart.alt == "2 steps: 1 prefill, 0 mixed and 1 decode."
