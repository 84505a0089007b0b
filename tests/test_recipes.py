"""Recipes of CONTRIBUTING.md, followed in a copy of the checkout as a contributor would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNNEEDED = shutil.ignore_patterns(".*", "__pycache__", "gpu-results", "wheels", "build", "dist", "app")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy without the reference library."""
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=UNNEEDED))


def run(checkout: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAPACITY_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(checkout), str(checkout / "validate")])
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_gpu_is_one_file_and_needs_no_measured_tables(checkout: Path) -> None:
    profiles = checkout / "hardware_profiles"
    text = (profiles / "h20-96gb.toml").read_text(encoding="utf-8")
    facts, _, _ = text.partition("\n[step_time]")
    for old, new in (("h20-96gb", "h20e-141gb"), ('aliases = ["h20"', 'aliases = ["h20e"')):
        assert old in facts
        facts = facts.replace(old, new)
    tables = '\n[step_time]\ngpu = "h20e-141gb"\ntransferred_from = "h200-sxm-141gb"\n'
    (profiles / "h20e-141gb.toml").write_text(facts + tables, encoding="utf-8")

    told = run(checkout, "pytest", "tests/hardware", "tests/test_evidence.py", "-k", "h20e", "-v")
    assert " 7 passed" in told, told
    question = [
        "--gpu",
        "h20e",
        "--input-len",
        "1000",
        "--output-len",
        "100",
        "--concurrency",
        "8",
        "--format",
        "json",
    ]
    answer = json.loads(run(checkout, "capacity", "estimate", "llama-3.1-8b", *question))
    assert answer["tpot_s"]["low"] < answer["tpot_s"]["value"] < answer["tpot_s"]["high"]
