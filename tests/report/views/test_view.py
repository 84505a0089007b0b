"""A figure as text: its interval and note, or why there is none, alike on a terminal and among the first figures."""

from __future__ import annotations

from capacity.answers.records import Quantity
from capacity.report.layout import render_text
from capacity.report.views import units
from capacity.report.views.layout import view_parts
from capacity.report.views.view import Fact, Facts, Rejections, View

TTFT = Quantity(value=0.106, low=0.08, high=0.16)


def test_a_note_stands_behind_the_interval_and_the_reason_in_its_place() -> None:
    assert Fact("TTFT", TTFT, units.LATENCY, "mean").texts() == ("110 ms", "80 to 160 ms; mean")
    assert Fact("TTFT", TTFT, units.BARE_LATENCY).texts() == ("110 ms", "")
    assert Fact("TTFT", None, units.LATENCY, "mean", missing="none").texts() == ("-", "none")


def test_detail_is_shown_on_request_and_a_line_in_its_place_otherwise() -> None:
    facts, refused = Facts("Now", [Fact("TTFT", TTFT, units.LATENCY)]), Rejections({"l4": "too small"})
    more = Facts("More", [Fact("GPUs", 2)])
    view = View("title", [facts, Facts("None", []), refused], detail=[more], brief="in brief", notes=["so"])
    shown = {kind: render_text(view_parts(view, None, kind)) for kind in ("tables", "summary", "sheet")}
    for text in shown.values():
        assert "80 to 160 ms" in text
        assert "l4: too small" in text
        assert "None" not in text
        assert text.endswith("note: so")
    assert ["More" in text for text in shown.values()] == [True, False, False]
    assert ["in brief" in text for text in shown.values()] == [False, True, False]
