"""The pages of techniques, fleets and cascades beyond their figures: pictures, A beside B, what a link may say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from capacity_app.side import Side, read_side
from copied_commands import printed

import capacity
from capacity.base.errors import InvalidInput
from capacity.report.display import STANDARD, time_and_interval

Open = Callable[..., Any]
LENGTHS = {"input_len": 1024, "output_len": 256}
H100 = {"gpu": "h100-sxm-80gb"}
SIDES = {
    "stack": {**H100, **LENGTHS, "concurrency": 32, "num_prompts": 100, "order": ["bf16", "kv-cache"]},
    "cascade": {
        **H100,
        **LENGTHS,
        "request_rate": 4.0,
        "small": "llama-3.2-1b",
        "small_gpu": "l4-24gb",
        "escalation_rate": 0.3,
        "escalate_by": "prompt",
        "cache_hit_rate": 0.2,
    },
    "fleet": {
        "gpus": ["h100-sxm-80gb"],
        "slo": ["ttft:p95:1000ms"],
        **LENGTHS,
        "length_distribution": "gamma",
        "input_len_cv": 2.0,
        "request_rate": 4.0,
        "num_prompts": 200,
        "split_by": "request",
        "spare_replicas": 1,
        "peak_to_mean": 1.5,
        "max_gpus": 64,
        "time_limit_s": 60.0,
    },
    "kv": {**H100, "kv_cache_dtype": "fp8", "batch_size": 32, "eviction": "all", "budget_tokens": 512},
    "beam_search": {**H100, **LENGTHS, "batch_size": 4, "beam_widths": [1, 2, 8]},
}


@pytest.mark.parametrize("page", SIDES)
def test_a_link_holds_what_the_page_asks(page: str) -> None:
    side = Side(page=page, model="llama-3.1-8b", options=dict(SIDES[page]), cost={"price_tier": "spot"})
    assert read_side(side.link_text) == side


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("stack", {"order": ["bf16", "rm -rf"]}),
        ("stack", {"order": "bf16"}),
        ("cascade", {"small": "../etc/passwd"}),
        ("cascade", {"escalate_by": "__class__"}),
        ("fleet", {"split_by": "price"}),
        ("kv", {"eviction": "![x](https://example.com)"}),
        ("beam_search", {"beam_widths": [1, "2"]}),
        ("beam_search", {"beam_widths": [-1]}),
    ],
)
def test_a_link_that_says_what_no_page_has_is_refused(page: str, wrong: dict[str, Any]) -> None:
    side = Side(page=page, model="llama-3.1-8b", options={**SIDES[page], **wrong}, cost={})
    with pytest.raises(InvalidInput, match="pin them again"):
        read_side(side.link_text)


@pytest.mark.ci
def test_beams_of_two_engines_stand_beside_each_other(dashboard: Open) -> None:
    opened = dashboard("beam_search").settled()
    opened.at.button(key="pin").click().run()
    opened.settled()
    opened.inputs()["engine"].set_value("tensorrt-llm").run()
    opened.settled()
    assert opened.refusals == []
    table = next(frame.value for frame in opened.at.dataframe if "A" in frame.value)
    rows = {row[""]: row for row in table.to_dict("records")}
    for letter, engine in (("A", "vllm"), ("B", "tensorrt-llm")):
        found = capacity.beam_search("llama-3.1-8b", **H100, **LENGTHS, engine=engine)
        last = next(r for r in found.rows if (r.beam_width, r.way) == (8, found.engine_way))
        assert rows["TPOT"][letter].startswith(f"{time_and_interval(last.tpot_s)[0]} (")
    assert "vs. A" in next(metric.delta for metric in opened.at.metric if metric.label == "TPOT")


@pytest.mark.slow
def test_what_is_pinned_elsewhere_is_asked_as_this_page_asks(dashboard: Open) -> None:
    other = Side(
        page="estimate",
        model="llama-3.1-8b",
        options={"gpu": "a100-sxm-80gb", **LENGTHS, "batch_size": 32},
        cost={"price_tier": "on-demand"},
    )
    opened = dashboard("kv", side=other.link_text).settled().settled()  # the page, then what is pinned
    assert opened.refusals == []
    table = next(frame.value for frame in opened.at.dataframe if "A" in frame.value)
    rows = {row[""]: row for row in table.to_dict("records")}
    whole = capacity.kv("llama-3.1-8b", gpus="a100-sxm-80gb", eviction="all", contexts=(32768,)).evictions[0]
    assert whole.step_s is not None
    assert rows["Step time"]["A"] == STANDARD.time_text(whole.step_s)
    assert "Same arrivals, request by request" not in [button.label for button in opened.at.button]


def test_a_stack_says_why_factors_do_not_multiply(dashboard: Open) -> None:
    opened = dashboard(
        "stack", stack_n="20", isl="128", osl="32", stack_order=("bf16", "kv-cache", "static-batching")
    )
    assert not opened.at.metric
    opened.at.button(key="run_stack").click().run()
    opened.settled()
    assert [line for line in opened.at.caption if "bottleneck before adding it" in str(line.value)]
    opened.at.segmented_control(key="stack_of").set_value("TPOT").run()
    drawn = [chart.proto.alt for chart in opened.at.get("plotly_chart")]
    assert drawn[0].startswith("TPOT, ms: ")
    opened.inputs()["concurrency"].set_value(8).run()
    assert any("Stale" in str(badge.value) for badge in opened.at.markdown)


@pytest.mark.ci
def test_a_cascade_draws_its_places_and_without_a_small_model_no_rates(dashboard: Open) -> None:
    both = dashboard("cascade", casc_cache="true").settled()
    assert "casc_hits" in {widget.key for widget in both.at.number_input}
    assert [str(row) for row in both.at.dataframe[0].value["tier"]] == [
        "semantic cache: embedding and store",
        "small: llama-3.2-1b",
        "large: llama-3.1-8b",
    ]
    assert len(both.at.get("plotly_chart")) == 3
    both.at.toggle(key="casc_small").set_value(False).run()
    both.settled()
    assert len(both.at.get("plotly_chart")) == 2
    assert "Pays up to" not in both.kpis
    both.at.toggle(key="casc_cache").set_value(False).run()
    assert len(both.settled().refusals) == 1
    assert "no tier before the large model" in both.refusals[0]


@pytest.mark.ci
def test_every_engine_is_the_copied_commands_comparison(
    dashboard: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = dashboard(
        "estimate", view="every engine", load="a closed loop", engine_which=("vllm", "llama.cpp")
    ).settled()
    assert opened.refusals == []
    command = [str(code.value) for code in opened.at.code if code.language == "shell"][-1]
    record = json.loads(printed(f"{command} --format json", monkeypatch, capsys))
    drawn = json.loads(opened.at.get("plotly_chart")[-1].proto.spec)["data"][0]
    points = [row["point"] for row in record["rows"]]
    assert drawn["y"] == [row["engine"] for row in record["rows"]]
    assert drawn["x"] == [point["output_tokens_per_s"]["value"] for point in points]
    assert list(opened.at.dataframe[-1].value["engine"]) == drawn["y"]
    opened.at.segmented_control(key="engine_of").set_value("TPOT").run()
    drawn = json.loads(opened.settled().at.get("plotly_chart")[-1].proto.spec)["data"][0]
    assert drawn["x"] == [pytest.approx(1e3 * point["tpot_s"]["value"]) for point in points]


def test_a_side_of_a_fleet_keeps_its_gpus() -> None:
    fleet = Side(page="fleet", model="llama-3.1-8b", options=dict(SIDES["fleet"]), cost={})
    here = replace(fleet, options={**fleet.options, "gpus": ["l4-24gb"], "request_rate": 8.0})
    assert fleet.convert_to_page(here) is fleet
    assert not fleet.has_one_deployment
