"""What two machines must have in common: each thing that changes an answer changes what is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import capacity
from capacity.answers.data_version import data_version
from capacity.planning.workers import environment_fingerprint as module
from capacity.planning.workers.environment_fingerprint import (
    NO_NAMED_INPUTS,
    NamedInputs,
    difference,
    environment_fingerprint,
)

PROFILE = Path(capacity.__file__).parents[1] / "hardware_profiles" / "h100-sxm-80gb.toml"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    module.environment_fingerprint.cache_clear()


def test_another_process_finds_the_same() -> None:
    """Whatever the order of its sets."""
    named = NamedInputs(models=("llama-3.2-1b", "deepseek-r1"))
    code = (
        "import json; from capacity.planning.workers.environment_fingerprint import *; "
        f"print(json.dumps(environment_fingerprint(NamedInputs(models={named.models!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert difference(environment_fingerprint(named), json.loads(done.stdout)) is None


def test_the_data_is_that_of_the_version() -> None:
    assert environment_fingerprint()["the digest of llm-capacity's data"] == data_version().digest


def test_the_first_difference_is_said_with_both_values() -> None:
    own = environment_fingerprint()
    assert difference(own, own) is None
    assert (
        difference(own, {**own, "Python": "2.7"}) == f"Python is 2.7 on the worker and {own['Python']} here"
    )
    assert difference(own, {**own, "more": "there"}) is None
    assert str(difference(own, {})).startswith("llm-capacity is unknown on the worker and ")


def test_what_is_named_is_compared_by_its_contents(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    for name in ("trace.csv", "config.json"):
        (tmp_path / name).write_text("{}")
    named = NamedInputs(
        profiles=str(tmp_path / "profiles"),
        models=("llama-3.2-1b", "nonesuch"),
        files=(str(tmp_path / "trace.csv"), str(tmp_path / "nonesuch.csv"), "\0"),
    )
    before = environment_fingerprint(named)
    assert before["the digest of model nonesuch"] == before["the digest of \0"] == "none"
    assert before["the digest of model llama-3.2-1b"] != "none"
    assert difference(environment_fingerprint(NO_NAMED_INPUTS), before) is None
    for path, text in (
        (tmp_path / "trace.csv", "other"),
        (tmp_path / "profiles" / "h100-sxm-80gb.toml", PROFILE.read_text() + "\n"),
    ):
        path.write_text(text)
        module.environment_fingerprint.cache_clear()
        after = environment_fingerprint(named)
        assert difference(before, after) is not None, path.name
        before = after
