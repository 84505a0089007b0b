"""Charts of views: bars and lines are the answer's numbers, whiskers its intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.answers.records import Quantity
from capacity.report.display import Units, number_text
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart
from capacity.report.figures.drawing import draw_chart, draw_charts
from capacity.report.tables import render
from capacity.report.views.beam_search import METHODS, beam_search_view
from capacity.report.views.disaggregation import splits_view
from capacity.report.views.kv import kv_view
from capacity.report.views.layout import table_records
from capacity.report.views.quantize import quantize_view
from capacity.report.views.speculate import acceptance_chart, methods_chart
from capacity.report.views.view import Bars, Curves, Table, VerticalStack
from capacity.workload import FixedLengths, SteadyArrivals, conversations, write_timed_trace
from capacity.workload.synthetic import ThinkTime

LLAMA: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100"}
LENGTHS = {"input_len": 1024, "output_len": 256}
CONTEXT = 32768


def only_chart(answer: Any) -> Chart:
    (chart,) = answer_charts(answer)
    assert "<svg" in chart.svg()
    return chart


def test_formats_that_the_engine_loads_are_drawn_unless_every_one_is_asked_for() -> None:
    answer = capacity.quantize(**LLAMA, **LENGTHS)
    loaded = [row.method for row in answer.rows if row.engine_loads and row.tpot_small_s is not None]
    runs = [row for row in answer.rows if row.tpot_small_s is not None]
    assert list(only_chart(answer).figure.data[0].y) == loaded
    (chart,) = draw_charts(quantize_view(answer, every=True), answer)
    alone, batch = chart.figure.data
    assert len(runs) > len(loaded)
    assert list(alone.x) == pytest.approx([1e3 * (row.tpot_small_s or 0) for row in runs])
    assert list(batch.x) == pytest.approx([1e3 * (row.tpot_large_s or 0) for row in runs])
    bars = zip(runs, alone.x, alone.error_x.array, alone.error_x.arrayminus, strict=True)
    for row, value, more, less in bars:
        low, high = row.intervals_s["tpot_small_s"]
        assert (value - less, value + more) == (pytest.approx(1e3 * low), pytest.approx(1e3 * high))
        assert low < (row.tpot_small_s or 0.0) < high
    plain = next(row for row in answer.rows if row.method == "bf16")
    estimated = capacity.estimate(**LLAMA, **LENGTHS, batch_size=1).tpot_s
    assert estimated is not None
    assert plain.intervals_s["tpot_small_s"] == (estimated.low, estimated.high)


def test_layouts_that_run_are_drawn_with_the_digits_of_their_intervals() -> None:
    answer = capacity.scale("llama-3.1-70b", gpu="h100", most_gpus=8)
    tpot, _ = only_chart(answer).figure.data
    runs = [row for row in answer.rows if row.tpot_s is not None]
    assert list(tpot.x) == ["4", "8"]
    assert list(tpot.y) == pytest.approx([1e3 * (row.tpot_s or 0) for row in runs])
    for row, text in zip(runs, tpot.text, strict=True):
        low, high = row.intervals_s["tpot_s"]
        known = Quantity(value=1e3 * (row.tpot_s or 0.0), low=1e3 * low, high=1e3 * high)
        assert text == number_text(known.value, known)


def test_hits_are_drawn_by_size_with_the_limit_beside_them(tmp_path: Path) -> None:
    workload = conversations(
        num_sessions=12,
        arrivals=SteadyArrivals(1.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(160),
        output=FixedLengths(32),
        think_time=ThinkTime(1.0),
        system_prompt_tokens=320,
    )
    write_timed_trace(workload, tmp_path / "trace.jsonl")
    answer = capacity.cache_curve(str(tmp_path / "trace.jsonl"))
    chart = only_chart(answer)
    tokens, _ = chart.figure.data
    *sized, whole = answer.rows
    assert list(tokens.x) == [row.capacity_tokens for row in sized]
    assert list(tokens.y) == pytest.approx([100 * row.token_hit_fraction for row in sized])
    assert chart.figure.layout.shapes[0].y0 == pytest.approx(100 * whole.token_hit_fraction)
    assert whole.token_hit_fraction > 0.5


def test_splits_are_drawn_and_listed_by_their_runs() -> None:
    runs = {
        name: capacity.simulate(**LLAMA, **LENGTHS, request_rate=6.0, num_prompts=40, replicas=2, **apart)
        for name, apart in {"2 do both": {}, "1 prefill, 1 decode": {"prefill_replicas": 1}}.items()
    }
    chart, table = splits_view(runs).blocks
    assert isinstance(table, Table)
    assert not isinstance(chart, (str, Table))
    ttft, tpot = draw_chart(chart).figure.data
    assert list(ttft.x) == list(runs)
    assert list(ttft.y) == pytest.approx([run.to_dict()["p95_ttft_ms"] for run in runs.values()])
    assert list(tpot.y) == pytest.approx([run.to_dict()["p95_tpot_ms"] for run in runs.values()])
    for row, run in zip(table_records(table), runs.values(), strict=True):
        known = run.predicted_ms["p95_e2el_ms"]
        assert row["p95 E2E, ms"] == float(number_text(known.value, known).replace(",", ""))
        assert row["p95 E2E, ms"] != known.value
        assert row["output tokens/s"] == round(run.to_dict()["output_throughput"], 2)


def test_bytes_and_ratios_of_kv_are_the_answers() -> None:
    answer = capacity.kv("llama-3.1-8b", gpus="h100", eviction="all")
    contexts, chart = draw_charts(kv_view(answer, CONTEXT), answer)
    (line,) = contexts.figure.data
    assert [2**30 * y for y in line.y] == pytest.approx(list(answer.rows[0].request_bytes.values()))
    whole, *methods = [row for row in answer.evictions if row.context_tokens == CONTEXT]
    step, held, rate = chart.figure.data
    assert [1 + x for x in step.x] == pytest.approx([row.speedup for row in methods])
    assert [1 + x for x in held.x] == pytest.approx([(row.held or 0) / (whole.held or 1) for row in methods])
    tokens_per_s = [row.tokens_per_s or 0 for row in methods]
    assert [1 + x for x in rate.x] == pytest.approx(
        [each / (whole.tokens_per_s or 1) for each in tokens_per_s]
    )
    assert (
        len(answer_charts(answer))
        == len({each.name for each in answer_charts(answer)})
        == 1 + len(answer.contexts)
    )


def test_a_method_that_does_not_fit_has_no_bar() -> None:
    answer = capacity.kv("llama-3.1-8b", gpus="h100", eviction="snapkv")
    chart = draw_charts(kv_view(answer, 1 << 20), answer)[-1]
    _, held, rate = chart.figure.data
    assert (held.x, rate.x) == ((None,), (None,))
    assert "does not fit" in chart.alt


def test_several_models_have_no_chart_of_keeping_less() -> None:
    answer = capacity.kv(("llama-3.1-8b", "qwen3-8b"), eviction="snapkv")
    assert [each.name for each in answer_charts(answer)] == ["kv_contexts"]


def test_beams_are_drawn_in_the_readers_unit_with_whiskers() -> None:
    answer = capacity.beam_search("llama-3.1-8b", gpu="h100", beam_widths=(1, 4), engine="tensorrt-llm")
    drawing = next(iter(beam_search_view(answer).blocks))
    assert isinstance(drawing, Curves)
    figure = draw_chart(drawing, answer, Units(time="s")).figure
    lines = {line.name.removesuffix(" *"): line for line in figure.data}
    for way, title in METHODS.items():
        rows = [row for row in answer.rows if row.way == way]
        assert list(lines[title].x) == [1, 4]
        assert list(lines[title].y) == pytest.approx([row.tpot_s.value for row in rows])
        assert lines[title].y[-1] + lines[title].error_y.array[-1] == pytest.approx(rows[-1].tpot_s.high)
    assert figure.layout.yaxis.title.text == "TPOT, s"
    assert [line.name for line in figure.data if line.name.endswith(" *")] == [f"{METHODS['engine']} *"]


def test_every_way_of_batching_has_a_bar_in_each_panel() -> None:
    answer = capacity.compare_batching(
        **LLAMA, max_model_len=4096, input_len=100, output_len=20, num_prompts=12, max_batch=4, spread=False
    )
    chart = only_chart(answer)
    assert [row["batching"] for row in chart.rows] == [row.name for row in answer.rows]
    rates = [row.output_tokens_per_s_per_gpu for row in answer.rows]
    assert list(chart.figure.data[0].y) == rates
    assert len(chart.figure.data) == 4
    assert f"{answer.rows[rates.index(max(rates))].name} has the most output tokens/s per GPU" in chart.alt


@pytest.mark.parametrize("price", [None, "2"])
def test_a_tornado_is_of_cost_or_without_a_price_of_latency(price: str | None) -> None:
    asked = {"input_len": 64, "output_len": 8, "request_rate": 4.0, "num_prompts": 20}
    answer = capacity.tornado(**LLAMA, **asked, **({} if price is None else {"price": price}))
    changes = {
        each.input: each.e2e_p95_change if price is None else each.cost_change for each in answer.swings
    }
    chart = only_chart(answer)
    less, more = chart.figure.data
    assert set(less.y) == set(changes)
    for bars, side in ((less, 0), (more, 1)):
        for name, x, text in zip(bars.y, bars.x, bars.text, strict=True):
            change = changes[name][side]
            assert x == (None if change is None else pytest.approx(100 * change))
            assert change is None or (text[0] == "-") == (change < 0)
    reach = [max((abs(x) for x in changes[name] if x is not None), default=0.0) for name in less.y]
    assert reach == sorted(reach, reverse=True)
    assert less.y[0] in chart.alt
    table = render(answer, "table")
    assert ("- / -" in table) == (price is None)
    assert "not varied: " in table


def speculated(method: str = "eagle3", **options: str) -> capacity.Speculating:
    return capacity.speculate(**LLAMA, method=method, batches=(1, 512), **options)


def test_speed_ups_are_drawn_by_batch_size() -> None:
    answer = speculated()
    chart = only_chart(answer)
    asked, best, _ = chart.figure.data
    assert list(asked.y) == [row.speedup for row in answer.rows]
    assert list(best.y) == [row.best_speedup for row in answer.rows]
    stops = answer.break_even_batch
    assert ("at every batch" if stops is None else f"from batch {stops:,}") in chart.alt


def test_acceptance_pays_from_the_first_rate_above_one() -> None:
    rows = [(rate, speculated(acceptance=str(rate)).rows[0]) for rate in (0.0, 0.8)]
    assert rows[0][1].speedup < 1 < rows[1][1].speedup
    chart = draw_chart(acceptance_chart({3: rows}))
    assert chart.alt == "k = 3 breaks even at 80%."
    assert chart.figure.layout.xaxis.tickformat == ".0%"
    assert acceptance_chart({3: rows[:1]}).alt == "k = 3 never breaks even."


def test_the_fastest_way_to_draft_stands_first() -> None:
    chart = draw_chart(methods_chart({method: speculated(method) for method in ("ngram", "eagle3")}))
    speedups = [row["times as fast"] for row in chart.rows]
    assert speedups == sorted(speedups, reverse=True) == list(chart.figure.data[0].x)
    assert chart.alt.startswith(str(chart.rows[0]["method"]))


def test_a_chart_without_data_has_no_rows() -> None:
    for kind in (Bars, Curves):
        assert draw_chart(kind(name="none", title="None", alt="None", data={"a": {}})).rows == ()


def test_upright_bars_stand_upon_each_other_with_whole_steps() -> None:
    counts = {"short": {0: 1, 1: 20}, "long": {0: 2, 1: None}}
    drawing = VerticalStack(name="n", title="t", alt="a", data=counts, labels="hour", axis="replicas")
    figure = draw_chart(drawing).figure
    assert [list(bar.y) for bar in figure.data] == [[1, 20], [2, None]]
    assert (figure.layout.barmode, figure.layout.yaxis.dtick) == ("stack", 4)
