"""The Estimate page's views in a real browser: a click opens a deployment, a link restores what is pinned."""

from __future__ import annotations

from typing import Any

from capacity_app.screenshots import open_page, settle

FRONTIER = "/estimate?model=llama-3.1-70b&tp=4&view=frontier&front_gpus=h100-sxm-80gb&front_weights=fp8"


def test_a_click_on_the_frontier_opens_the_deployment(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(server + FRONTIER)
    page.get_by_text("The most of each GPU").first.wait_for()
    settle(page)
    point = page.locator(".scatterlayer .trace .points path").nth(2)
    point.scroll_into_view_if_needed()
    page.wait_for_timeout(800)  # the chart glides to its place
    place = point.bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.wait_for_timeout(300)
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    link = page.locator("a:has-text('Open ')")
    link.wait_for()
    said = link.inner_text()
    link.click()
    page.get_by_text("a closed loop of").first.wait_for()
    settle(page)
    assert "weights=fp8" in page.url
    assert f"{page.url.partition('concurrency=')[2].partition('&')[0]} in flight" in said
    shown = page.get_by_test_id("stMetric").filter(has_text="per GPU").inner_text()
    assert said.partition(": ")[2].partition(" ")[0] in shown
    page.context.close()


def test_what_is_pinned_is_in_the_link(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(f"{server}/estimate?batch=8")
    page.get_by_role("button", name="Pin this as A").click()
    page.get_by_text("Beside A: B is in sight").wait_for()
    settle(page)
    assert "side=" in page.url
    again = open_page(chromium, "light", 1440, 1000)
    again.goto(page.url.replace("batch=8", "batch=64"))
    again.get_by_text("Beside A: B is in sight").wait_for()
    settle(again)
    figures = again.get_by_test_id("stMetric").filter(has_text="TPOT").inner_text()
    assert "against A" in figures
    assert "+0 % against A" not in figures
    page.context.close()
    again.context.close()
