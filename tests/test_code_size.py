"""Growth of the code that the changelog does not account for fails the check."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def code_size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_size", ROOT / ".ci" / "code_size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("grown", "changelog", "code"),
    [
        (0, "", 0),
        (-500, "", 0),
        (1, "", 1),
        (300, "- Code size: +300 lines (a router)", 0),
        (301, "- Code size: +300 lines (a router)", 1),
        (1500, "- Code size: +1,200 lines (one thing)\n- Code size: +300 lines (another)", 0),
        (300, "- Code size: +300 lines", 1),
        (300, "\n## 0.0.9\n- Code size: +300 lines (an earlier release's)", 1),
    ],
)
def test_growth_needs_a_reason(
    code_size: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    grown: int,
    changelog: str,
    code: int,
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## 0.1.0\n{changelog}\n", encoding="utf-8")
    monkeypatch.setattr(code_size, "ROOT", tmp_path)
    monkeypatch.setattr(code_size, "recorded", lambda: {"app": (1000, 9000), "gone": (10, 90)})
    monkeypatch.setattr(code_size, "measured", lambda: {"app": (1010 + grown, 9000)})
    monkeypatch.setattr("sys.argv", ["code_size.py"])
    assert code_size.main() == code


def test_denser_code_counts_the_same(code_size: ModuleType, tmp_path: Path) -> None:
    spread, dense = tmp_path / "spread.py", tmp_path / "dense.py"
    spread.write_text(
        '"""What it is."""\n\n\ndef f(\n    a,\n    b\n):  # a comment\n    """Add."""\n    return a + b\n'
    )
    dense.write_text("def f(a, b): return a + b\n")
    assert code_size.tokens_of(spread) == code_size.tokens_of(dense) > 0
