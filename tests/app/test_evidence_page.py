"""The page of measured runs, and the link to it from the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_every_answer_links_to_the_page_of_measured_runs(dashboard: Callable[..., Any]) -> None:
    opened = dashboard("cost", model="llama-3.1-70b", tp="4").settled()
    shown = "".join(str(element.proto.body) for element in opened.at.main.get("html"))
    assert 'href="evidence?model=llama-3.1-70b&amp;tp=4"' in shown
    page = dashboard("evidence", model="llama-3.1-70b", tp="4").settled()
    assert page.refusals == []
    assert "Nearest published runs" in [each.value for each in page.at.subheader]
    assert len(page.at.get("plotly_chart")) == 2
