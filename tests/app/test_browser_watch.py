"""Runs that are watched, in a real browser: the playhead moves, text is typed at the predicted pace."""

from __future__ import annotations

import re
from typing import Any

import pytest
from screenshots import leave_page, open_page, wait_until_drawn

import capacity

pytestmark = pytest.mark.slow

SIMULATED = "/simulate?rate=20&isl=512&osl=32&sim_requests=60"
LOOP = "/estimate?view=typing&load=a+closed+loop&concurrency=16&osl=200&range=0.8"
STATE = re.compile(r"([\d.]+) s: \d+ run")


def playhead(page: Any) -> float:
    """Where the words of the playhead say that it stands, in s."""
    found = STATE.search(page.locator(".annotation-text").filter(has_text=STATE).first.text_content())
    assert found is not None
    return float(found[1])


def test_a_recorded_run_is_played_and_scrubbed(chromium: Any, server: str) -> None:
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(server + SIMULATED)
    page.get_by_role("button", name="Record the steps").click()
    page.get_by_text("Requests from arrival").wait_for()
    wait_until_drawn(page)
    page.locator(".updatemenu-button").first.scroll_into_view_if_needed()
    assert playhead(page) == 0.0
    page.locator(".updatemenu-button").filter(has_text="Play").click()
    page.wait_for_function(
        "() => !/^0\\.0 s/.test([...document.querySelectorAll('.annotation-text')].at(-1).textContent)"
    )
    page.locator(".updatemenu-button").filter(has_text="Pause").click()
    page.wait_for_timeout(300)
    stopped = playhead(page)
    page.wait_for_timeout(500)
    assert playhead(page) == stopped > 0
    page.locator(".slider-rail-touch-rect").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    rail = page.locator(".slider-rail-touch-rect").bounding_box()
    page.mouse.click(rail["x"] + 0.75 * rail["width"], rail["y"] + rail["height"] / 2)
    page.wait_for_function(
        "stopped => parseFloat([...document.querySelectorAll('.annotation-text')].at(-1).textContent) > stopped",
        arg=stopped,
    )
    assert playhead(page) > stopped
    leave_page(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_deployments_type_at_the_pace_that_is_predicted(chromium: Any, server: str, theme: Any) -> None:
    page = open_page(chromium, theme, 1440, 1000)
    page.goto(server + LOOP)
    page.get_by_role("button", name="Start").wait_for()
    wait_until_drawn(page)
    asked = {"input_len": 1024, "output_len": 200, "concurrency": 16, "random_range_ratio": 0.8}
    answers = [capacity.estimate("llama-3.1-8b", gpu=gpu, **asked) for gpu in ("h100-sxm-80gb", "l40s-48gb")]
    boxes = page.locator("section.side")
    boxes.nth(1).wait_for(timeout=60_000)  # in a shadow tree, which document.querySelectorAll does not see
    assert [text.split(": ")[0] for text in boxes.locator("h4").all_inner_texts()] == ["A", "B"]
    page.evaluate("window.began = performance.now()")
    page.get_by_role("button", name="Start").click()
    page.wait_for_timeout(1500)
    counted = boxes.locator(".state").all_inner_texts()
    elapsed_s = page.evaluate("(performance.now() - window.began) / 1000")
    for text, answer in zip(counted, answers, strict=True):
        assert answer.ttft_s is not None
        assert answer.tpot_s is not None
        due = 1 + (elapsed_s - answer.ttft_s.value) / answer.tpot_s.value
        shown = 0 if "reads" in text else min(200, int(re.findall(r"\d+", text)[0]))
        # the clock is read after the words, and the click came after the clock was set
        assert shown <= min(200, due) + 1
        assert shown >= min(200, 0.5 * due) - 1
    page.get_by_text("done: 200 tokens").nth(1).wait_for()
    ends = [
        float(re.findall(r"in ([\d.]+) s", text)[0]) for text in boxes.locator(".state").all_inner_texts()
    ]
    for end_s, answer in zip(ends, answers, strict=True):
        assert answer.e2e_s is not None
        assert end_s == pytest.approx(answer.ttft_s.value + 199 * answer.tpot_s.value, abs=0.051)  # type: ignore[union-attr]
    page.get_by_role("button", name="Start").wait_for()
    leave_page(page)
