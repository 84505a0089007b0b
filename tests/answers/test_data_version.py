"""The digest tells installations apart by what their answers rest on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from capacity.answers import data_version as module
from capacity.answers.data_version import data_version
from capacity.hardware import bundled_directory


def test_one_changed_value_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = data_version()
    profiles = shutil.copytree(bundled_directory(), tmp_path / "profiles")
    monkeypatch.setattr(module, "bundled_directory", lambda: profiles)
    assert data_version() == plain  # where the files lie is no matter
    card = profiles / "h100-sxm-80gb.toml"
    card.write_text(card.read_text("utf-8").replace("700", "701", 1), "utf-8")
    assert data_version().digest != plain.digest
    assert data_version().files == plain.files


def test_it_names_its_newest_date() -> None:
    assert "2026-11-22" <= data_version().newest < "2100"


def test_it_does_not_change_with_the_words_of_the_command_line() -> None:
    package = Path(module.__file__).parents[1]
    tables = [path for suffix in module.SUFFIXES for path in package.rglob(f"*{suffix}")]
    words = [path for path in tables if path.name in module.WORDS]
    assert {path.name for path in words} == set(module.WORDS)
    assert data_version().files == len(tables) - len(words) + len(list(bundled_directory().glob("*.toml")))
