"""What the dashboard's tests share: pages opened in streamlit's own test runner, and one real server and browser."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from capacity_app.pages import PAGES
from capacity_app.sessions import runner
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

ENTRY = Path(__file__).parents[2] / "app" / "dashboard.py"
TIMEOUT_S = 120


@pytest.fixture(scope="session", autouse=True)
def components_are_scanned_once() -> Iterator[None]:
    """Streamlit's test runner reads the metadata of all installed packages for every page that it opens (0.3 s)."""
    found = manifest_scanner.scan_component_manifests()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda *_, **__: list(found))
        yield


@pytest.fixture(autouse=True)
def main_module_stays() -> Iterator[None]:
    """Streamlit's test runner leaves its script as `__main__`, which a process started later would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


class Dashboard:
    """The dashboard in streamlit's test runner."""

    def __init__(self, page: str, query: dict[str, str]) -> None:
        self.at = AppTest.from_file(ENTRY, default_timeout=TIMEOUT_S)
        for name, value in query.items():
            self.at.query_params[name] = value
        if page != PAGES[0].name:
            self.at.switch_page(f"capacity_app/app_pages/{page}.py")
        self.at.run()

    def settled(self) -> Dashboard:
        """After the work in the background, and the work that starts with its results."""
        known: set[str] = set()
        while known != (known := set(runner()._jobs)):
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

    def inputs(self) -> dict[str, Any]:
        """The sidebar's widgets by their keys."""
        kinds = ("number_input", "selectbox", "toggle", "segmented_control")
        return {widget.key: widget for kind in kinds for widget in getattr(self.at.sidebar, kind)}

    def code(self, language: str, which: int = 0) -> str:
        """The text of a copy in this language, by default the first."""
        return [str(code.value) for code in self.at.code if code.language == language][which]

    def pictures(self) -> list[Any]:
        """Charts and tables as they are sent to the browser."""
        return [
            element.proto for kind in ("plotly_chart", "arrow_data_frame") for element in self.at.get(kind)
        ]


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    runner().close()


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test() -> Iterator[None]:
    """Cancel what a test has left running, for which the next page would wait."""
    yield
    for job in list(runner()._jobs.values()):
        if not job.ended.wait(0.3):  # a process that ends soon is cheaper than a new one
            runner().cancel(job)


@pytest.fixture
def dashboard() -> Callable[..., Dashboard]:
    """Open a page, with widgets set as a link sets them."""

    def opened(page: str, **query: str) -> Dashboard:
        return Dashboard(page, query)

    return opened


# a real browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium; its tests are skipped without one, or fail where CAPACITY_BROWSER says that it must be."""
    import screenshots

    missing = None if screenshots.chromium_path() else "no Chromium on the path, and CHROMIUM names none"
    if missing is None and importlib.util.find_spec("playwright") is None:
        missing = "playwright is not installed"
    if missing is not None:
        if os.environ.get("CAPACITY_BROWSER") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    with screenshots.browser() as found:
        yield found


@pytest.fixture(scope="session")
def log_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server of these tests writes its log."""
    return tmp_path_factory.mktemp("server") / "log.txt"


@pytest.fixture(scope="session")
def server(chromium: Any, log_path: Path) -> Iterator[str]:
    """The address of a dashboard that runs as `capacity dashboard` runs it."""
    from screenshots import dashboard_server

    assert chromium.is_connected()
    with dashboard_server(log_path) as address:
        yield address
    said = log_path.read_text(encoding="utf-8", errors="replace")
    assert "a page of the dashboard failed" not in said, said[-2000:]


@pytest.fixture(scope="session")
def server_log(log_path: Path) -> Callable[[], str]:
    """Return a function that reads what the server has logged so far."""
    return lambda: log_path.read_text(encoding="utf-8", errors="replace")
