"""An estimate's pictures: operators under the roof, a waterfall that adds up."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import capacity
from capacity.hardware import load_profile
from capacity.report.display import time_and_interval
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.estimates import roofline_chart, step_chart


def test_the_roofline_holds_every_operator_below_the_roof(estimate: capacity.Estimate) -> None:
    chart = roofline_chart(estimate)
    profile = load_profile("h100")
    ridge = estimate.arithmetic_intensity.ridge_flops_per_byte
    for row in chart.rows:
        roof = profile.hbm_bytes_per_s * min(row["FLOP/byte"], ridge) / 1e12
        assert row["TFLOP/s"] <= roof * 1.05 or row["bound"] not in ("memory", "compute")
    steps = {row["phase"]: row["FLOP/byte"] for row in chart.rows if row["operator"] == "step"}
    assert steps["prefill"] > ridge > steps["decode"]


def test_the_waterfalls_parts_follow_each_other_and_add_up(estimate: capacity.Estimate) -> None:
    operators = estimate.breakdown.decode
    chart = step_chart(estimate, "decode")
    bars = [trace for trace in chart.figure.data if trace.type == "bar"]
    ends = sorted((b, b + x) for trace in bars for b, x in zip(trace.base, trace.x, strict=True))
    assert ends[0][0] == 0
    assert all(after[0] == pytest.approx(before[1]) for before, after in pairwise(ends))
    assert ends[-1][1] == pytest.approx(sum(op.seconds for op in operators) * 1e3)


def test_the_whole_step_is_no_surer_than_the_latency_that_it_makes(estimate: capacity.Estimate) -> None:
    tpot = estimate.tpot_s
    assert tpot is not None
    assert tpot.high is not None
    chart = step_chart(estimate, "decode")
    whole = next(trace for trace in chart.figure.data if trace.name == "90 % interval")
    seconds = sum(op.seconds for op in estimate.breakdown.decode)
    assert whole.x[0] == pytest.approx(1e3 * seconds)
    assert (whole.x[0] + whole.error_x.array[0]) / whole.x[0] == pytest.approx(tpot.high / tpot.value)
    assert whole.x[0] + whole.error_x.array[0] < chart.figure.layout.xaxis.range[1]
    assert chart.figure.layout.yaxis.categoryarray[0] == whole.y[0]
    assert " to " in chart.alt


def test_a_ttfts_parts_follow_each_other_and_add_up() -> None:
    answer = capacity.estimate(
        "llama-3.1-8b", gpu="h100", input_len=512, output_len=64, concurrency=16, client_latency_s=0.02
    )
    assert answer.ttft_parts_s is not None
    assert answer.ttft_s is not None
    (chart,) = (chart for chart in answer_charts(answer) if chart.name == "ttft")
    *bars, whole = chart.figure.data
    assert [trace.name.rpartition(" ")[0] for trace in bars] == ["client", "api server", "queue", "prefill"]
    assert bars[0].name == "client 20"
    assert sum(trace.x[0] for trace in bars) == pytest.approx(answer.ttft_s.value * 1e3)
    assert answer.ttft_s.high is not None
    assert whole.x[0] + whole.error_x.array[0] == pytest.approx(answer.ttft_s.high * 1e3)
    assert f"{time_and_interval(answer.ttft_s)[0]} in total" in chart.alt


def test_a_change_has_its_sign_and_no_more_digits_than_in_the_table() -> None:
    why = capacity.explain("llama-3.1-8b", gpu="h100", input_len=1000, output_len=200, batch_size=8)
    (helped,) = (chart for chart in answer_charts(why) if chart.name == "what_would_help")
    texts = [text for trace in helped.figure.data for text in trace.text]
    assert len(texts) == 3 * len(why.responses)
    assert all(re.fullmatch(r"[+-]\d+(\.\d)?%", text) for text in texts)
