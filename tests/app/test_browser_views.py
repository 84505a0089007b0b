"""The Estimate page's views in a real browser: a click opens a deployment, a link restores what is pinned."""

from __future__ import annotations

from typing import Any

import pytest
from screenshots import leave_page, open_page, wait_until_drawn

import capacity
from capacity.report.display import time_and_interval

pytestmark = pytest.mark.ci  # many seconds

FRONTIER = "/estimate?model=llama-3.1-70b&tp=4&view=frontier&front_gpus=h100-sxm-80gb&front_weights=fp8"


def test_a_click_on_the_frontier_opens_the_deployment(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(server + FRONTIER)
    page.get_by_text("Most tokens/s per GPU").first.wait_for()
    wait_until_drawn(page)
    point = page.locator(".scatterlayer .trace .points path").nth(2)
    point.scroll_into_view_if_needed()
    page.wait_for_timeout(800)  # the chart glides to its place
    place = point.bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.wait_for_timeout(300)
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.get_by_text("Click a point to open its deployment").wait_for(state="hidden")
    wait_until_drawn(page)
    link = page.locator("a:has-text('Open ')").first  # the links of the best deployments are below the table
    said = link.inner_text()
    link.click()
    page.get_by_text("a closed loop of").first.wait_for()
    wait_until_drawn(page)
    assert "weights=fp8" in page.url
    assert f"{page.url.partition('concurrency=')[2].partition('&')[0]} in flight" in said
    shown = page.get_by_test_id("stMetric").filter(has_text="per GPU").inner_text()
    assert said.partition(": ")[2].partition(" ")[0] in shown
    leave_page(page)


@pytest.mark.slow
def test_the_question_of_a_meeting_takes_two_actions_and_its_link_restores_it(
    chromium: Any, server: str
) -> None:
    """From 4 x H100 to 2 x B200 in FP8 under the same traffic."""
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(f"{server}/estimate?model=llama-3.1-70b&tp=4&load=arrivals+at+a+rate&rate=4")
    wait_until_drawn(page)
    page.get_by_test_id("stMetric").first.wait_for()  # what is in sight is what is pinned
    page.get_by_role("button", name="Pin this as A").click()
    page.get_by_role("button", name="Unpin A").wait_for()
    box = page.get_by_role("textbox", name="What if")
    box.fill("2xB200 fp8")
    box.press("Enter")
    page.get_by_text("Comparison with A (B: current inputs)").wait_for()
    asked = {"input_len": 1024, "output_len": 256, "price_tier": "on-demand"}
    first = capacity.estimate(
        "llama-3.1-70b", gpu="h100-sxm-80gb", tensor_parallel_size=4, request_rate=4.0, **asked
    )
    second = capacity.estimate(
        "llama-3.1-70b",
        gpu="b200-sxm-180gb",
        tensor_parallel_size=2,
        quantization="fp8",
        request_rate=4.0,
        **asked,
    )

    def metric(label: str) -> Any:
        return page.get_by_test_id("stMetric").filter(has_text=label).first

    for label, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        before, after = getattr(first, field), getattr(second, field)
        for said in (*time_and_interval(after), f"{100 * (after.value / before.value - 1):+.0f} % vs. A"):
            metric(label).filter(has_text=said).wait_for()  # until then those of A may still stand there
    cheaper = second.usd_per_million_output_tokens.value / first.usd_per_million_output_tokens.value - 1
    metric("$ per 1M output").filter(has_text=f"{100 * cheaper:+.0f} % vs. A").wait_for()
    wait_until_drawn(page)
    figures = {label: metric(label).inner_text() for label in ("TTFT", "TPOT", "$ per 1M output")}
    again = open_page(chromium, "light", 1440, 1000)
    again.goto(page.url)
    again.get_by_text("Comparison with A (B: current inputs)").wait_for()
    wait_until_drawn(again)
    for label, text in figures.items():
        assert again.get_by_test_id("stMetric").filter(has_text=label).first.inner_text() == text
    leave_page(page)
    leave_page(again)


@pytest.mark.slow
def test_what_is_pinned_is_in_the_link(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(f"{server}/estimate?batch=8&weights=fp8")
    page.get_by_role("button", name="Pin this as A").click()
    page.get_by_text("Comparison with A (B: current inputs)").wait_for()
    wait_until_drawn(page)
    assert "side=" in page.url
    assert "weights=fp8" in page.url
    again = open_page(chromium, "light", 1440, 1000)
    again.goto(page.url.replace("weights=fp8", "weights=int4"))
    again.get_by_text("Comparison with A (B: current inputs)").wait_for()
    wait_until_drawn(again)
    figures = again.get_by_test_id("stMetric").filter(has_text="TPOT").inner_text()
    assert "vs. A" in figures
    assert "+0 % vs. A" not in figures
    leave_page(page)
    leave_page(again)
