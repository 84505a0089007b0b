"""Mutations of the package, each in a process of its own: the tests that hold the rule must all fail.

A few seconds a mutation: every run tries one of the schedulers and one of the step model.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 300


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_a_mutation_applies_and_its_tests_exist(mutation: Mutation) -> None:
    assert mutation.old != mutation.new
    compile(mutation.file().read_text().replace(mutation.old, mutation.new), mutation.name, "exec")
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()


@pytest.mark.ci
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, marks=() if m.short else pytest.mark.slow, id=m.name.replace(" ", "-"))
        for m in MUTATIONS
    ],
)
def test_a_broken_rule_shows(mutation: Mutation) -> None:
    """Every test that is named fails, by an assertion or an error of its own; none is missing, none passes."""
    environment = os.environ | {
        "CAPACITY_MUTANT": json.dumps([str(mutation.file()), mutation.old, mutation.new]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    }
    options = ["-p", "mutant_import", "-p", "no:cacheprovider", "--tb=line", "--slow"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *mutation.tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", ran.stdout)
    }
    assert counts == {"failed": len(mutation.tests)}, ran.stdout[-3000:] + ran.stderr[-1000:]
