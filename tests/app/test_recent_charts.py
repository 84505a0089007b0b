"""Charts that sessions reuse, drawn by the threads of many sessions at a time."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the app extra is not installed")

from capacity_app import views

from capacity.report.views.view import CustomChart

THREADS, CHARTS = 8, 20_000


def test_threads_of_many_sessions_draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread gets its own chart, and the oldest charts are dropped."""
    session = threading.local()
    monkeypatch.setattr(views, "_RECENT_CHARTS", {})
    monkeypatch.setattr(views, "current_inputs", lambda: SimpleNamespace(units="ms"))
    monkeypatch.setattr(views, "current_session", lambda: session.name)
    monkeypatch.setattr(views, "draw_block", lambda _, answer, __: answer)
    errors: list[BaseException] = []

    def draw_charts(thread: int) -> None:
        try:
            for number in range(CHARTS):
                session.name = f"{thread} {number % 40}"
                answer: Any = (thread, number)
                assert views._draw_or_reuse(CustomChart(partial(str)), answer) is answer
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=draw_charts, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert len(views._RECENT_CHARTS) == views.MAX_RECENT_CHARTS
