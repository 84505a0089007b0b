"""The handbook's page on validation: blocks that need torch are run here, with a small budget."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = (CHECKOUT / "docs" / "validation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- torch -->\n```shell\n(.*?)```", PAGE, re.S)
CPU = max((CHECKOUT / "validate" / "measurements").glob("*-cpu-*.jsonl"))


def commands(block: str) -> list[str]:
    """Each line's command, with a budget that a test can wait for, and this interpreter's `capacity`."""
    lines = re.sub(r"--budget \w+", "--budget 4s", block).splitlines()
    return [re.sub(r"^capacity ", f"{sys.executable} -W ignore -m capacity ", line) for line in lines]


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(CHECKOUT / part) for part in (".", "validate", "app"))
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CAPACITY_PROFILES": str(folder / "profiles"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_block_that_needs_torch_is_run_here() -> None:
    assert len(re.findall(r"^```shell$", PAGE, re.M)) == len(BLOCKS) == 3


def test_validate_as_the_page_has_it(tmp_path: Path) -> None:
    (command,) = commands(BLOCKS[0])
    done = run(command, tmp_path)
    assert done.returncode in (0, 1, 3), done.stderr  # so short a run may judge anything
    assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "cpu-run").iterdir()} >= {
        "measurements.jsonl",
        "report.html",
        "report.json",
    }


def test_calibrate_as_the_page_has_it(tmp_path: Path) -> None:
    (tmp_path / "capacity-validation").mkdir()
    shutil.copy(CPU, tmp_path / "capacity-validation" / "measurements.jsonl")
    for command in commands(BLOCKS[1]):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr
    assert "cpu@mine" in done.stdout
    assert "basis: calibrated" in done.stdout
    assert (tmp_path / "profiles" / "cpu@mine.toml").is_file()
