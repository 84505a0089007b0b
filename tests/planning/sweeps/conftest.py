"""A sweep's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_files import SPEC


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC)
    return path
