"""What all tests share: how hard hypothesis looks, long forms on request, the optional reference library."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import PROFILE
from hypothesis import settings
from library import SHARED

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long forms of checks too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="long form: pytest --slow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


@pytest.fixture
def shared_dir() -> Path:
    """The reference library's folder; tests that need it are skipped where it is not at hand."""
    if SHARED is None:
        pytest.skip("reference library not at hand (set CAPACITY_SHARED)")
    return SHARED
