"""What the dashboard's tests share: pages opened in streamlit's own test runner, and one real server and browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from capacity_app.jobs import runner
from capacity_app.pages import PAGES
from streamlit.testing.v1 import AppTest

ENTRY = Path(__file__).parents[2] / "app" / "dashboard.py"
TIMEOUT_S = 120


class Dashboard:
    """The dashboard in streamlit's test runner."""

    def __init__(self, page: str, query: dict[str, str]) -> None:
        self.at = AppTest.from_file(ENTRY, default_timeout=TIMEOUT_S)
        for name, value in query.items():
            self.at.query_params[name] = value
        self.at.run()
        if page != PAGES[0].name:
            self.at.switch_page(f"capacity_app/app_pages/{page}.py").run()

    def settled(self) -> Dashboard:
        """After the work in the background."""
        assert runner().join(TIMEOUT_S)
        self.at.run()
        return self

    @property
    def kpis(self) -> dict[str, str]:
        """The figures of merit by their labels."""
        return {metric.label: metric.value for metric in self.at.metric}

    @property
    def refusals(self) -> list[str]:
        """What stands in red or yellow."""
        return [element.value for element in (*self.at.error, *self.at.warning)]

    def code(self, language: str) -> str:
        """The text of the first copy in this language."""
        return next(str(code.value) for code in self.at.code if code.language == language)

    def pictures(self) -> list[Any]:
        """Charts and tables as they are sent to the browser."""
        return [
            element.proto for kind in ("plotly_chart", "arrow_data_frame") for element in self.at.get(kind)
        ]


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    runner().close()


@pytest.fixture
def dashboard() -> Callable[..., Dashboard]:
    """Open a page, with widgets set as a link sets them."""

    def opened(page: str, **query: str) -> Dashboard:
        return Dashboard(page, query)

    return opened
