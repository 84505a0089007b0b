"""The language check finds words of its list in every kind of text, and leaves code alone."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

CI = Path(__file__).parent.parent / ".ci"
WORDS = tomllib.loads((CI / "words.toml").read_text(encoding="utf-8"))["instead"]


@pytest.fixture
def prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", CI / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_the_list_has_at_most_60_entries() -> None:
    assert len(WORDS) <= 60


@pytest.mark.parametrize(
    ("name", "reader", "text", "found"),
    [
        (
            "a.py",
            "python_texts",
            '"""Read a file.\n\nRead it anew.\n"""\n',
            ["a.py:3: docstring: 'anew': again"],
        ),
        ("a.py", "python_texts", 'raise ValueError(f"ask {x} whoever it is")', ["'whoever'"]),
        ("a.py", "python_texts", 'anew = "anew"  # anew\n', []),
        ("a.json", "help_texts", '{"gpu": {"help": "GPUs that are turned down."}}', ["'turned down'"]),
        ("a.json", "help_texts", '{"examples": ["a turned down b c d e f."]}', []),
        ("a.md", "page_texts", "# A page\n\nIt hangs on load.\n", ["a.md:3: page: 'hangs on'"]),
        ("a.md", "page_texts", "```sh\nanew\n```\n\nUse `anew`.\n", []),
    ],
)
def test_a_word_of_the_list_is_found_where_people_read_it(
    prose: ModuleType, tmp_path: Path, name: str, reader: str, text: str, found: list[str]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    lines = list(prose.findings(getattr(prose, reader)(name), WORDS))
    assert len(lines) == len(found)
    assert all(part in line for part, line in zip(found, lines, strict=True))
