"""The compiled core's parts, compiled once a session."""

from __future__ import annotations

import pytest
from core_alone import CoreAlone

from capacity.simulator.core import build


@pytest.fixture(scope="session")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> CoreAlone:
    if build.working_compiler() is None:
        pytest.skip("no C compiler")
    return CoreAlone(tmp_path_factory.mktemp("core"))
