"""The mutation score: mutants of a small function are generated, killed by a test, or reported as survivors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mutation import MODULES, ROOT, generate_mutants, score

SOURCE = """def add_up(values, most):
    total = 0
    for value in values:
        if value < most and not value == 7:
            total += max(value, 1)
    values.sort()
    return divmod(total, most)
"""


def test_every_kind_of_mutant_is_generated_once() -> None:
    mutants = list(generate_mutants(SOURCE, random.Random(0)))
    assert len({mutant.source for mutant in mutants}) == len(mutants)
    changes = {(mutant.old, mutant.new) for mutant in mutants}
    assert changes >= {
        ("value < most", "value <= most"),
        ("value == 7", "value != 7"),
        ("7", "8"),
        ("7", "6"),
        ("total += max(value, 1)", "total -= max(value, 1)"),
        ("total += max(value, 1)", "..."),
        ("values.sort()", "..."),
        ("max(value, 1)", "min(value, 1)"),
        ("divmod(total, most)", "divmod(most, total)"),
        ("value < most and (not value == 7)", "value < most or not value == 7"),
        ("not value == 7", "+bool(value == 7)"),
    }
    assert ("max(value, 1)", "max(1, value)") not in changes
    for mutant in mutants:
        compile(mutant.source, "mutant", "exec")


@pytest.mark.ci
def test_a_mutant_is_killed_or_survives(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text("def counted(value):\n    value.sort()\n    return len(value) > 2\n")
    test = tmp_path / "test_counted.py"
    test.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom counted import counted\n"
        "def test_counted():\n    assert counted([1, 2, 3]) and not counted([1])\n"
    )
    tried, survivors = score(tmp_path / "counted.py", (str(test),), 100, 0)
    assert tried == 4
    assert {(mutant.line, mutant.old, mutant.new) for mutant in survivors} == {
        (2, "value.sort()", "..."),
        (3, "len(value) > 2", "len(value) >= 2"),
        (3, "2", "1"),
    }
    test.write_text("def test_fails():\n    assert False\n")
    with pytest.raises(RuntimeError, match="fail without a mutation"):
        score(tmp_path / "counted.py", (str(test),), 1, 0)


@pytest.mark.parametrize("name", MODULES)
def test_the_files_of_a_module_exist(name: str) -> None:
    file, tests = MODULES[name]
    assert all((ROOT / path).exists() for path in (f"capacity/{file}", *tests))
