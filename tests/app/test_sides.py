"""A | B on the Estimate page: what is pinned stays, figures say how far they are from A, the link restores it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from capacity_app import sides
from capacity_app.error_display import escape_markdown
from capacity_app.side import Side, pack_text, read_side
from capacity_app.sides import change_text, settings_text

import capacity
from capacity.answers.records import Quantity
from capacity.base.mappings import omit
from capacity.report.display import time_and_interval
from capacity.report.views.diff import mean_and_interval

Open = Callable[..., Any]
LOOP = {"load": "arrivals at a rate", "rate": "4"}
ASKED = {"input_len": 1024, "output_len": 256, "price_tier": "on-demand"}
FIRST = {"gpu": "h100-sxm-80gb", "tensor_parallel_size": 4, "request_rate": 4.0}
SECOND = {
    "gpu": "b200-sxm-180gb",
    "tensor_parallel_size": 2,
    "quantization": "fp8",
    "request_rate": 8.0,
}


def pinned(dashboard: Open) -> Any:
    opened = dashboard("estimate", model="llama-3.1-70b", tp="4", **LOOP).settled()
    opened.at.button(key="pin").click().run()
    return opened.settled()


def table(opened: Any) -> dict[str, Any]:
    """The sides' table by its figures."""
    shown = next(frame.value for frame in opened.at.dataframe if "A" in frame.value)
    return {row[""].strip(): row for row in shown.to_dict("records")}


@pytest.mark.ci
def test_sides_at_one_rate_are_compared_and_their_replicas_are_the_librarys(dashboard: Open) -> None:
    opened = pinned(dashboard)
    for key, value in (("gpu", "b200-sxm-180gb"), ("tp", 2), ("weights", "fp8")):
        opened.inputs()[key].set_value(value)
    opened.at.run()
    opened.settled().settled()
    assert opened.refusals == []
    second_asked = {**SECOND, "request_rate": 4.0}
    first = capacity.estimate("llama-3.1-70b", **FIRST, **ASKED)
    second = capacity.estimate("llama-3.1-70b", **second_asked, **ASKED)
    rows = table(opened)
    for figure, field in (("TPOT", "tpot_s"), ("TTFT", "ttft_s")):
        before, after = getattr(first, field), getattr(second, field)
        assert rows[figure]["A"].startswith(f"{time_and_interval(before)[0]} (")
        assert rows[figure]["B"].startswith(f"{time_and_interval(after)[0]} (")
        apart = after.high < before.low or before.high < after.low
        expected = f"{100 * (after.value / before.value - 1):+.0f} %, {'outside' if apart else 'within'}"
        assert rows[figure]["B vs. A"] == expected
        shown = next(metric for metric in opened.at.metric if metric.label == figure)
        assert shown.delta.endswith(f"; {expected.replace(' %', ' % vs. A')}")
    assert rows["$ a month"]["A"] == f"${first.cost.usd_per_month:,.0f}"
    said = verdict_of(FIRST, second_asked)
    assert escape_markdown(said) in [str(each.value) for each in (*opened.at.success, *opened.at.warning)]

    link = parse_qs(next(code.value for code in opened.at.sidebar.code).partition("?")[2])
    again = dashboard("estimate", **{key: values[0] for key, values in link.items()}).settled().settled()
    assert again.kpis == opened.kpis
    assert table(again) == rows
    again.at.button(key="unpin_A").click().run()
    assert not any("A" in frame.value for frame in again.settled().at.dataframe)


def verdict_of(*asked: dict[str, Any]) -> str:
    """The verdict of the library on these deployments under the load of the first, within the sidebar's SLO."""
    traffic = {"input_len": 1024, "output_len": 256, "request_rate": asked[0]["request_rate"]}
    shared = {"model": "llama-3.1-70b", "traffic": traffic, "cost": {"price_tier": "on-demand"}}
    deployments = [{**shared, "pools": [omit(each, "request_rate")]} for each in asked]
    return capacity.compare_deployments(deployments, slo=("ttft:p95:1000ms", "tpot:p95:50ms")).verdict


@pytest.mark.ci
def test_sides_under_different_loads_are_not_subtracted_until_they_have_one_load(dashboard: Open) -> None:
    opened = dashboard("estimate", model="llama-3.1-70b", tp="4").settled()
    opened.at.button(key="pin").click().run()
    opened.settled().at.text_input(key="what_if").set_value("4xh200 --request-rate 4").run()
    opened.settled().settled()
    rows = table(opened)
    assert {row["B vs. A"] for row in rows.values()} == {sides.DIFFERENT_LOADS}
    assert not [metric for metric in opened.at.metric if "vs. A" in (metric.delta or "")]
    opened.at.button(key="same_load").click().run()
    opened.settled().settled()
    assert sides.DIFFERENT_LOADS not in {row["B vs. A"] for row in table(opened).values()}
    assert [metric for metric in opened.at.metric if "vs. A" in (metric.delta or "")]


def test_an_overloaded_side_has_no_price_to_compare(dashboard: Open) -> None:
    """8 x H100 in FP8 and 4 x H200 in BF16 at 20 requests/s of a 70B: neither serves them."""
    asked = {"model": "llama-3.1-70b", "tp": "8", "weights": "fp8", "rate": "20", "range": "0"}
    opened = dashboard("cost", **asked).settled()
    assert opened.refusals[0].startswith("overloaded")
    opened.at.button(key="pin").click().run()
    opened.at.text_input(key="what_if").set_value("4xh200 bf16").run()
    opened.settled().settled()
    rows = table(opened)
    for label in ("Per month", "$ per 1M output", "Utilization", "Provisioned energy"):
        assert rows[label]["B vs. A"] == "-", label
    assert rows["$ per 1M output"]["A"].startswith("-")
    shown = [str(box.value) for box in (*opened.at.success, *opened.at.warning)]
    assert any(
        text.startswith("At 20 requests/s within the SLO, A needs") and " than A" in text for text in shown
    )


@pytest.mark.slow
def test_the_same_traffic_is_paired_request_by_request(dashboard: Open) -> None:
    opened = pinned(dashboard)
    opened.inputs()["kv"].set_value("fp8")
    opened.at.run()
    opened.settled()
    opened.at.button(key="run_diff").click().run()
    opened.settled()
    assert opened.refusals == []
    both = [
        Side(
            page="estimate",
            model="llama-3.1-70b",
            options={**FIRST, **more, "input_len": 1024, "output_len": 256},
            cost={"price_tier": "on-demand"},
        ).deployment
        for more in ({}, {"kv_cache_dtype": "fp8"})
    ]
    direct = capacity.diff(*both)
    shown = next(frame.value for frame in opened.at.dataframe if "B faster for, %" in frame.value)
    assert list(shown["interval"]) == [mean_and_interval(d)[1] for d in direct.differences]
    assert list(~shown["mean"].str.endswith("apart)")) == [d.significant for d in direct.differences]


@pytest.mark.ci
def test_three_can_be_pinned_beside_the_one_in_sight(dashboard: Open) -> None:
    opened = dashboard("estimate", batch="1")
    for batch in (2, 4, 8):
        opened.at.button(key="pin").click().run()
        opened.settled()
        opened.at.select_slider(key="batch").set_value(batch).run()
        opened.settled()
    row = table(opened)["TPOT"]
    assert {"A", "B", "C", "D", "D vs. A"} <= set(row)
    assert row["D vs. A"] == sides.DIFFERENT_LOADS  # other batches
    assert opened.at.button(key="pin").disabled


@pytest.mark.ci
def test_whatever_the_sidebar_says_can_be_pinned(dashboard: Open) -> None:
    said = {
        "gpu": "h200-sxm-141gb",
        "tp": "2",
        "pp": "2",
        "weights": "fp8",
        "kv": "fp8",
        "engine": "sglang",
        "context": "4096",
        "range": "0.5",
        "client": "20",
        "tier": "my own",
        "price": "2.25",
        "load": "a closed loop",
    }
    opened = dashboard("estimate", **said).settled()
    copied = opened.code("python")
    opened.at.button(key="pin").click().run()
    opened.settled()
    assert opened.refusals == []
    (text,) = opened.at.session_state["_sides"]
    for name, value in read_side(text).arguments.items():
        assert name == "model" or f"{name}={value!r}" in copied
    assert table(opened)["TPOT"]["B vs. A"] == "+0 %, within"


GOOD: dict[str, Any] = {
    "page": "estimate",
    "model": "llama-3.1-8b",
    "options": {"gpu": "h100-sxm-80gb", "input_len": 1, "output_len": 1, "batch_size": 1},
    "cost": {},
}


@pytest.mark.parametrize(
    "side",
    [
        "nonsense",
        pack_text("[]"),
        pack_text(json.dumps({**GOOD, "options": {}})),
        pack_text(json.dumps({**GOOD, "model": "/etc/passwd"})),
        pack_text(json.dumps({**GOOD, "options": {**GOOD["options"], "gpu": "/tmp/x.toml"}})),
        pack_text(json.dumps({**GOOD, "options": {**GOOD["options"], "trace": "/etc/passwd"}})),
        pack_text(json.dumps({**GOOD, "options": {**GOOD["options"], "concurrency": 1e12}})),
        pack_text(json.dumps({**GOOD, "options": {**GOOD["options"], "draft": "x"}})),
        pack_text(json.dumps({**GOOD, "cost": {"price_file": "/etc/passwd"}})),
        pack_text(json.dumps({**GOOD, "cost": {"price": "/etc/passwd"}})),
    ],
)
def test_a_side_of_a_hostile_link_is_refused(side: str) -> None:
    with pytest.raises(capacity.InvalidInput):
        read_side(side)


def test_a_hostile_link_is_one_line_and_let_go(dashboard: Open) -> None:
    opened = dashboard("fit", side=pack_text(json.dumps({**GOOD, "model": "/etc/passwd"})))
    assert not opened.at.exception
    assert len(opened.refusals) == 1
    assert "\n" not in opened.refusals[0]
    assert opened.kpis
    assert opened.at.run().error == [] or len(opened.refusals) == 0


def test_a_side_is_read_as_it_was_pinned() -> None:
    side = Side(page="estimate", model=GOOD["model"], options=GOOD["options"], cost={"price": "2.5"})
    assert read_side(side.link_text) == side


def test_what_differs_is_called_as_the_sidebar_calls_it() -> None:
    first, second = {"gpu": "h100", "tensor_parallel_size": 4}, {"gpu": "b200", "gpus": ["l4", "l40s"]}
    assert settings_text(first, second) == (
        "GPU h100 -> b200, Tensor parallel 4 -> the default, gpus the default -> l4 + l40s"
    )
    assert settings_text(first, first) == ""


def test_tenfold_and_more_is_told_as_times() -> None:
    def text(second: float, **words: str) -> str:
        values = [Quantity(value=each, low=each, high=each) for each in (1.0, second)]
        return change_text(*values, **words)

    assert text(1.25) == "+25 %, outside"
    assert text(0.5, of="A") == "-50 % vs. A, outside"
    assert text(2040.6, of="A") == "2,041 times A, outside"
    assert text(10.0) == "10 times, outside"


def test_outside_means_that_the_intervals_are_apart() -> None:
    first = Quantity(value=2.0, low=1.0, high=3.0)
    for second, said in (
        (Quantity(value=5.0, low=3.1, high=6.0), "+150 %, outside"),
        (Quantity(value=0.5, low=0.1, high=0.9), "-75 %, outside"),
        (Quantity(value=5.0, low=2.9, high=6.0), "+150 %, within"),
        (Quantity(value=5.0), "+150 %"),
        (None, ""),
    ):
        assert change_text(first, second) == said
    assert change_text(Quantity(value=0.0), first) == ""
