"""Techniques as pictures: bars are the answer's numbers, what does not run is in the table with its reason."""

from __future__ import annotations

import pytest

import capacity
from capacity.answers.records import Quantity
from capacity.report.display import number_text
from capacity.report.figures.techniques import (
    DRAWN,
    advice_chart,
    advice_rows,
    hit_rate_chart,
    quantization_chart,
    quantization_rows,
    scaling_chart,
    scaling_rows,
    split_chart,
    split_rows,
)
from capacity.workload import FixedLengths, SteadyArrivals, conversations, write_timed_trace
from capacity.workload.synthetic import ThinkTime

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_advice_draws_the_changes_that_help() -> None:
    answer = capacity.advise("llama-3.1-8b", gpu="h100", **LENGTHS, request_rate=4.0, num_prompts=30)
    chart = advice_chart(answer)
    assert len(chart.rows) == len([line for line in answer.advice if line.effects is not None])
    changes = chart.figure.data[0].y
    assert 1 <= len(changes) <= len(chart.rows) <= 8
    by_change = {line.change: line.effects for line in answer.advice}
    for bars, (_, field) in zip(chart.figure.data, DRAWN, strict=True):
        drawn = dict(zip(bars.y, bars.x, strict=True))
        for change in changes:
            share = getattr(by_change[change], field)
            assert drawn[change] == (None if share is None else pytest.approx(100 * share))
    assert all(set(row) >= {"change", "flags", "$/h"} for row in advice_rows(answer))


def test_formats_that_the_engine_loads_are_drawn_unless_every_one_is_asked_for() -> None:
    answer = capacity.quantize("llama-3.1-8b", gpu="h100", **LENGTHS)
    loaded = [row.method for row in answer.rows if row.engine_loads and row.tpot_small_s is not None]
    runs = [row for row in answer.rows if row.tpot_small_s is not None]
    assert list(quantization_chart(answer).figure.data[0].y) == loaded
    alone, batch = quantization_chart(answer, every=True).figure.data
    assert list(alone.x) == [pytest.approx(1e3 * (row.tpot_small_s or 0)) for row in runs]
    assert list(batch.x) == [pytest.approx(1e3 * (row.tpot_large_s or 0)) for row in runs]
    assert len(quantization_rows(answer)) == len(answer.rows) > len(loaded)
    for row, value, more, less in zip(
        runs, alone.x, alone.error_x.array, alone.error_x.arrayminus, strict=True
    ):
        low, high = row.intervals_s["tpot_small_s"]
        assert (value - less, value + more) == (pytest.approx(1e3 * low), pytest.approx(1e3 * high))
        assert low < (row.tpot_small_s or 0.0) < high
    plain = next(row for row in answer.rows if row.method == "bf16")
    said = capacity.estimate("llama-3.1-8b", gpu="h100", **LENGTHS, batch_size=1).tpot_s
    assert said is not None
    assert plain.intervals_s["tpot_small_s"] == (said.low, said.high)


def test_layouts_that_run_are_drawn_and_the_others_say_why() -> None:
    answer = capacity.scale("llama-3.1-70b", gpu="h100", most_gpus=8)
    chart = scaling_chart(answer)
    tpot, _ = chart.figure.data
    assert list(tpot.x) == ["4", "8"]
    assert list(tpot.y) == [pytest.approx(1e3 * row.tpot_s) for row in answer.rows if row.tpot_s is not None]
    for row, text in zip((row for row in answer.rows if row.tpot_s is not None), tpot.text, strict=True):
        low, high = row.intervals_s["tpot_s"]
        known = Quantity(value=1e3 * (row.tpot_s or 0.0), low=1e3 * low, high=1e3 * high)
        assert text == number_text(known.value, known)
        listed = scaling_rows(answer)[answer.rows.index(row)]
        assert f"{listed['TPOT, ms']:g}" == f"{float(text.replace(',', '')):g}"
    one = scaling_rows(answer)[0]
    assert one["GPUs"] == 1
    assert "weights" in str(one["why not"])


def test_hits_are_drawn_by_size_with_the_limit_beside_them(tmp_path: object) -> None:
    path = f"{tmp_path}/trace.jsonl"
    workload = conversations(
        num_sessions=12,
        arrivals=SteadyArrivals(1.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(160),
        output=FixedLengths(32),
        think_time=ThinkTime(1.0),
        system_prompt_tokens=320,
    )
    write_timed_trace(workload, path)
    answer = capacity.cache_curve(path, served_by=("llama-3.1-8b", {"gpu": "h100"}))
    assert answer.savings is not None
    tokens, _ = hit_rate_chart(answer).figure.data
    assert list(tokens.x) == [row.capacity_tokens for row in answer.rows[:-1]]
    assert list(tokens.y) == [pytest.approx(100 * row.token_hit_fraction) for row in answer.rows[:-1]]
    assert answer.rows[-1].token_hit_fraction > 0.5


def test_splits_are_drawn_by_their_runs() -> None:
    runs = {
        name: capacity.simulate(
            "llama-3.1-8b", gpu="h100", **LENGTHS, request_rate=6.0, num_prompts=40, replicas=2, **apart
        )
        for name, apart in {"2 do both": {}, "1 prefill, 1 decode": {"prefill_replicas": 1}}.items()
    }
    ttft, tpot = split_chart(runs).figure.data
    assert list(ttft.x) == list(runs)
    assert list(ttft.y) == [run.to_dict()["p95_ttft_ms"] for run in runs.values()]
    assert list(tpot.y) == [run.to_dict()["p95_tpot_ms"] for run in runs.values()]
    for row, run in zip(split_rows(runs), runs.values(), strict=True):
        for heading, name in (("p95 TTFT, ms", "p95_ttft_ms"), ("p95 E2E, ms", "p95_e2el_ms")):
            known = run.predicted_ms[name]
            assert row[heading] == float(number_text(known.value, known).replace(",", ""))
            assert row[heading] != known.value
        assert row["output tokens/s"] == float(f"{run.to_dict()['output_throughput']:.3g}")
