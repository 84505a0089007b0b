"""The Estimate page's further views: the library's sweep and comparison, as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from copied_commands import printed
from long_forms import mostly_slow

import capacity

Open = Callable[..., Any]
LENGTHS = {"input_len": 1024, "output_len": 256, "price_tier": "on-demand"}
LOADS = [
    ("a batch together", "batch_size", {"batch": "64"}, 64),
    ("a closed loop", "concurrency", {"concurrency": "16"}, 16),
    ("arrivals at a rate", "request_rate", {"rate": "3"}, 3.0),
]


def figures(opened: Any) -> dict[str, Any]:
    """Charts by the title of their upright axis."""
    found = [json.loads(chart.proto.spec) for chart in opened.at.get("plotly_chart")]
    return {figure["layout"]["yaxis"]["title"]["text"]: figure for figure in found}


@pytest.mark.ci
@pytest.mark.parametrize(("load", "over", "query", "chosen"), mostly_slow(LOADS, LOADS[1:2]))
def test_over_the_load_stands_the_librarys_sweep(
    dashboard: Open, load: str, over: str, query: dict[str, str], chosen: float
) -> None:
    opened = dashboard("estimate", view="over the load", load=load, **query).settled()
    assert opened.refusals == []
    sweep = capacity.load_sweep("llama-3.1-8b", over=over, gpu="h100-sxm-80gb", **LENGTHS)
    drawn = figures(opened)
    assert set(drawn) == {"TTFT, ms", "TPOT, ms", "Output tokens/s", "$ per 1M output tokens"}
    line = drawn["Output tokens/s"]["data"][-1]
    assert line["y"] == [p.output_tokens_per_s.value for p in sweep.points if p.output_tokens_per_s]
    assert chosen in [shape["x0"] for shape in drawn["TTFT, ms"]["layout"]["shapes"]]
    found: dict[str, Any] = {}
    exec([str(code.value) for code in opened.at.code if code.language == "python"][-1], found)
    assert found["answer"] == sweep


def test_without_a_price_no_price_is_drawn(dashboard: Open) -> None:
    opened = dashboard("estimate", view="over the load", tier="none").settled()
    assert "$ per 1M output tokens" not in figures(opened)


@pytest.mark.slow
def test_every_gpu_is_the_copied_commands_comparison(
    dashboard: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = dashboard(
        "estimate",
        view="every GPU",
        load="arrivals at a rate",
        model="llama-3.1-70b",
        tp="4",
        gpu_sort="TTFT",
    ).settled()
    assert opened.refusals == []
    commands = [str(code.value) for code in opened.at.code if code.language == "shell"]
    record = json.loads(printed(f"{commands[-1]} --format json", monkeypatch, capsys))
    shown, refused = (frame.value for frame in list(opened.at.dataframe)[:2])
    served = [row for row in record["rows"] if row["reason"] is None]
    assert list(shown["GPUs"]) == [f"{row['num_gpus']} x {row['gpu']}" for row in served]
    bills = [row["usd_per_month"] for row in served if row["usd_per_month"] is not None]
    assert list(shown["$/month"].dropna()) == pytest.approx(bills, rel=5e-3)
    times = [row["ttft_s"]["value"] for row in record["rows"] if row["ttft_s"]]
    assert times == sorted(times)
    assert record["rows"][-1]["reason"] == refused["why not"].iloc[-1]
    assert record["slos"] == ["ttft:p95:1000ms", "tpot:p95:50ms"]
    opened.at.selectbox(key="gpu_sort").set_value("GPUs").run()
    counts = [int(text.split()[0]) for text in opened.settled().at.dataframe[0].value["GPUs"][:5]]
    assert counts == sorted(counts)


def test_where_the_model_does_not_fit_every_gpu_says_where_it_does(dashboard: Open) -> None:
    opened = dashboard("estimate", model="llama-3.1-70b", view="every GPU").settled()
    assert len(opened.refusals) == 1
    assert "2 x h200-sxm-141gb" in list(opened.at.dataframe[0].value["GPUs"])
