"""Every page with a side pinned: each opens, each of its popovers opens, and the server logs no error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from capacity_app.error_display import INTERNAL_ERROR
from capacity_app.pages import EVERY_ENGINE, EVERY_GPU, FRONTIER, OVER_LOADS, PAGES, RATE
from screenshots import leave_page, open_page, wait_until_drawn

pytestmark = pytest.mark.slow

SMALL = "plan_n=60&plan_s=5&plan_gpus=h100-sxm-80gb&fleet_n=60&fleet_s=5&cost_requests=60&adv_n=40&stack_n=30&dis_n=60"
VIEWS = (OVER_LOADS, EVERY_GPU, EVERY_ENGINE, FRONTIER)
FRONT = "front_gpus=h100-sxm-80gb&front_weights=fp8"


def wait_for_answers(page: Any) -> None:
    """Wait until the page is drawn and no computation of it is under way."""
    wait_until_drawn(page)
    page.wait_for_timeout(150)  # a progress bar is drawn by the run after the one that ends
    page.wait_for_function(
        "() => ![...document.querySelectorAll('button')].some((each) => each.innerText.includes('Cancel'))"
    )
    wait_until_drawn(page)


def open_popovers(page: Any, label: str = "") -> int:
    """Open and close each popover of the page whose label holds `label`, and return how many there are.

    A page that is drawn again under the click shuts what it opened: then it is pressed once more.
    """
    openers = page.get_by_test_id("stPopoverButton").filter(has_text=label)
    count = int(openers.count())
    for index in range(count):
        shown = page.get_by_test_id("stPopoverBody").first
        openers.nth(index).click()
        with suppress(Exception):  # playwright's own, which is not there where no browser is
            shown.wait_for(timeout=10_000)
        if not shown.is_visible():
            openers.nth(index).click()
        shown.wait_for()
        wait_until_drawn(page)
        page.keyboard.press("Escape")
        wait_until_drawn(page)
    return count


@pytest.fixture(scope="module")
def walked(chromium: Any, server: str) -> Any:
    """A tab with the load at 4 requests/s pinned as A and 6 requests/s in sight, and the errors that it showed."""
    page = open_page(chromium, "light", 1440, 1000)
    page.goto(f"{server}/estimate?load={RATE.replace(' ', '+')}&rate=4&{SMALL}&{FRONT}")
    wait_for_answers(page)
    page.evaluate(
        """text => {
          window.errorsShown = [];
          new MutationObserver(() => {
            const found = document.querySelector('[data-testid=stMain]');
            if (found && found.innerText.includes(text)) window.errorsShown.push(location.pathname);
          }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }""",
        INTERNAL_ERROR,
    )
    page.get_by_role("button", name="Pin this as A").click()
    page.get_by_role("button", name="Unpin A").wait_for()
    rate = page.get_by_role("spinbutton", name="Requests/s", exact=True)
    rate.fill("6")
    rate.press("Enter")
    page.wait_for_url("**rate=6**")
    wait_for_answers(page)
    yield page
    leave_page(page)


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
def test_page_with_a_pin_and_open_popovers_logs_no_error(walked: Any, server_log: Any, entry: Any) -> None:
    before = len(server_log())
    if entry.section:
        walked.get_by_test_id("stTopNavSection").filter(has_text=entry.section).click()
        walked.get_by_test_id("stTopNavDropdownLink").filter(has_text=entry.title).click()
    else:
        walked.get_by_test_id("stTopNavLink").filter(has_text=entry.title).click()
    walked.get_by_role("heading", level=1, name=entry.title, exact=True).wait_for()
    wait_for_answers(walked)
    assert open_popovers(walked) >= 2  # examples and the link are on each page
    if entry.name == "estimate":
        for view in VIEWS:
            walked.get_by_role("radio", name=view, exact=True).click()
            wait_for_answers(walked)
            walked.get_by_role("button", name="Data and files").first.wait_for()
            assert open_popovers(walked, "Data and files")
    assert walked.evaluate("window.errorsShown") == []
    assert walked.get_by_text(INTERNAL_ERROR).count() == 0
    assert "Traceback" not in server_log()[before:]
