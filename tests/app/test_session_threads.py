"""What the sessions share, used by the threads of many sessions at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the app extra is not installed")

from capacity_app import uploads, views

from capacity.report.figures.chart import Chart
from capacity.report.views.view import CustomChart

THREADS = 8


@pytest.fixture
def run_in_threads() -> Iterator[Callable[[Callable[[int], None]], list[BaseException]]]:
    """Run a function of the thread's number in all threads at once, which change often; return what it raised."""

    def run(work: Callable[[int], None]) -> list[BaseException]:
        errors: list[BaseException] = []

        def guarded(thread: int) -> None:
            try:
                work(thread)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield run
    sys.setswitchinterval(interval)


def test_threads_of_many_sessions_draw_charts_at_once(
    monkeypatch: pytest.MonkeyPatch, run_in_threads: Callable[[Callable[[int], None]], list[BaseException]]
) -> None:
    """Every thread gets its own chart, and the oldest charts are dropped."""
    session = threading.local()
    monkeypatch.setattr(views, "_RECENT_CHARTS", {})
    monkeypatch.setattr(views, "current_inputs", lambda: SimpleNamespace(units="ms"))
    monkeypatch.setattr(views, "current_session", lambda: session.name)
    monkeypatch.setattr(views, "draw_block", lambda _, answer, __: answer)
    chart = CustomChart(partial(Chart))

    def draw_charts(thread: int) -> None:
        for number in range(20_000):
            session.name = f"{thread} {number % 40}"
            answer: Any = (thread, number)
            assert views._draw_or_reuse(chart, answer) is answer

    assert run_in_threads(draw_charts) == []
    assert len(views._RECENT_CHARTS) == views.MAX_RECENT_CHARTS


def test_threads_of_many_sessions_upload_files_at_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run_in_threads: Callable[[Callable[[int], None]], list[BaseException]],
) -> None:
    """Also equal files, and more than are kept."""
    monkeypatch.setattr(uploads, "_folder", lambda: tmp_path)

    def upload(thread: int) -> None:
        for number in range(300):
            content = f"{number % 60} {thread % 3}".encode()
            assert uploads.store_file("run.json", content).name == "run.json"

    assert run_in_threads(upload) == []
    assert len(list(tmp_path.iterdir())) == uploads.MAX_FILES
