"""From the start page to a plan in a real browser, and a sweep's file on its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from screenshots import leave_page, open_page, wait_until_drawn

import capacity

pytestmark = pytest.mark.ci  # many seconds

SWEEP = """
schema = "capacity/sweep/v1"
question = "estimate"
[fixed]
model = "llama-3.1-8b"
input_len = 512
output_len = 128
[vary]
gpu = ["h100", "h200"]
batch_size = [1, 8, 64]
"""


def test_a_use_case_and_people_become_a_plan_in_two_clicks(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(f"{server}/?tier=spot")
    page.get_by_role("radio", name="chat", exact=True).click()
    page.get_by_text("100 users / (think time 30 s").wait_for()
    page.get_by_text("Computing replicas").wait_for(state="detached")
    page.locator(".st-key-question_links").get_by_role("link", name="Plan").click()
    page.wait_for_url("**/plan?**")
    wait_until_drawn(page)
    assert page.get_by_role("spinbutton", name="Requests/s").input_value() == "3.33"  # 100 users, 30 s apart
    assert page.get_by_role("spinbutton", name="TTFT limit, ms").input_value() == "450"
    assert page.get_by_role("spinbutton", name="Input tokens").input_value() == "1155"
    assert page.get_by_test_id("stAlert").count() == 0
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("Starts").first.wait_for()
    assert "vllm serve" in page.get_by_test_id("stCode").first.inner_text()
    leave_page(page)


def test_a_pasted_command_becomes_figures_in_two_actions(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(server)
    box = page.get_by_role("textbox", name="Describe or paste your deployment")
    box.fill("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-num-seqs 256 --what 3")
    box.press("Control+Enter")
    page.get_by_text("Not understood: --what").wait_for()
    page.get_by_text("Computing replicas").wait_for(state="detached")
    wait_until_drawn(page)
    page.locator(".st-key-question_links").get_by_role("link", name="Estimate").click()
    page.get_by_role("heading", level=1, name="Estimate", exact=True).wait_for()
    page.get_by_test_id("stMetricValue").first.wait_for()
    wait_until_drawn(page)
    assert page.get_by_role("textbox", name="More settings").input_value() == "--max-num-seqs 256"
    assert page.get_by_role("spinbutton", name="Tensor parallel").input_value() == "4"
    assert page.get_by_test_id("stMetricValue").first.inner_text().endswith("ms")
    assert "more=--max-num-seqs+256" in page.url
    leave_page(page)


def test_a_sweeps_store_is_drawn(chromium: Any, server: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    spec, store = tmp_path / "s.toml", tmp_path / "points.sqlite"
    spec.write_text(SWEEP, encoding="utf-8")
    capacity.sweep(spec, store)
    page = open_page(chromium, "dark", 390, 844)
    page.goto(f"{server}/sweeps")
    page.locator("input[type=file]").first.set_input_files(str(store))
    page.get_by_text("TTFT, s over batch size").wait_for()
    wait_until_drawn(page)
    expect(page.locator(".scatterlayer .trace")).to_have_count(2)  # not those of the example
    leave_page(page)
