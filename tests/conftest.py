"""What all tests share: how hard hypothesis looks, long forms on request, the optional reference library."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import warm_process
from examples import load_profile
from library import SHARED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ci",
        action="store_true",
        help="also run the checks of several seconds and the long forms that CI runs",
    )
    parser.addoption("--slow", action="store_true", help="also run these and all other long forms")


def pytest_configure(config: pytest.Config) -> None:
    load_profile(slow=config.getoption("--slow"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    markers = ("slow",) if config.getoption("--ci") else ("slow", "ci")
    left_out = [item for item in items if any(map(item.get_closest_marker, markers))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and all modules: nothing that is looked through again and again for garbage


@pytest.fixture(scope="session", autouse=True)
def _no_files_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the user's own models, GPU profiles and defaults from the tests and from the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def shared_dir() -> Path:
    """The reference library's folder; tests that need it are skipped where it is not at hand."""
    if SHARED is None:
        pytest.skip("reference library not at hand (set CAPACITY_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `capacity` that begins loaded."""
    with warm_process.warm_server(tmp_path_factory.mktemp("warm")) as folder:
        yield folder


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports a script of `benchmarks/` as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module
