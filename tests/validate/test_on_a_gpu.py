"""The script for a visit to a GPU: one archive whatever happens, and an exit code that says what did."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent
SCRIPT = CHECKOUT / "validate" / "on_a_gpu.sh"
CPU = max((CHECKOUT / "validate" / "measurements").glob("*-cpu-*.jsonl"))

# stands for python: what the script asks of pytest and of the two verbs, played
PYTHON = """#!/usr/bin/env bash
case "$*" in
"-c import"*) exit "${MISSING:-0}" ;;
*pytest*) echo "tests"; exit "${TESTS:-0}" ;;
*validate*)
    out=$(echo "$*" | sed 's/.*--out //')
    mkdir -p "$out"
    for status in ${CASES:-ok ok}; do echo "{\\"status\\": \\"$status\\"}" >>"$out/measurements.jsonl"; done
    echo "profile" >"$out/h200@mine.toml"
    [ -n "${HANG:-}" ] && { trap 'kill $!; exit 3' INT; sleep 60 >/dev/null 2>&1 & wait; }
    exit "${RUN:-0}" ;;
*calibrate*) echo "calibrated"; exit 0 ;;
esac
exit 9
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "validate").mkdir()
    shutil.copy(SCRIPT, tmp_path / "validate")
    (tmp_path / "python").write_text(PYTHON.replace("\\\\", "\\"))
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def visit(checkout: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "validate/on_a_gpu.sh", *command.split()],
        cwd=checkout,
        env={**os.environ, "PYTHON": str(checkout / "python"), **environment},
        capture_output=True,
        text=True,
        timeout=300,  # the real verbs take 5 s alone, and over a minute with a low priority on a busy machine
        check=False,
    )


def archived(checkout: Path, command: str, folder: str = "gpu-results") -> list[str]:
    (path,) = (checkout / folder).glob("*.tar.gz")
    assert path.name == f"capacity-gpu-{command}.tar.gz"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name)
    with tarfile.open(path) as archive:
        return archive.getnames()


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({}, 0),
        ({"TESTS": "1"}, 1),
        ({"TESTS": "1", "RUN": "3"}, 1),
        ({"CASES": "ok wrong", "RUN": "1"}, 1),
        ({"RUN": "3"}, 3),
        ({"CASES": "unsupported failed", "RUN": "3"}, 3),
        ({"MISSING": "1"}, 2),
    ],
)
def test_the_exit_code_says_what_happened_and_the_archive_is_there(
    checkout: Path, environment: dict[str, str], code: int
) -> None:
    done = visit(checkout, "quick out", **environment)
    assert done.returncode == code, done.stderr
    names = archived(checkout, "quick", "out")
    assert "./quick.status" in names
    assert ("./quick/measurements.jsonl" in names) == ("MISSING" not in environment)


def test_all_is_everything_in_one_archive(checkout: Path) -> None:
    done = visit(checkout, "all")
    assert done.returncode == 0, done.stderr
    names = archived(checkout, "all")
    for name in (
        "kernels.log",
        "quick.log",
        "standard/measurements.jsonl",
        "calibrate.log",
        "quick/h200@mine.toml",
    ):
        assert f"./{name}" in names


def test_one_deadline_ends_what_hangs_and_keeps_what_was_measured(checkout: Path) -> None:
    done = visit(checkout, "standard", HANG="1", LIMIT_S="26")
    assert done.returncode == 3, done.stderr  # of the run, which ends itself when it is interrupted
    assert "2 cases timed" in done.stdout
    assert "./standard/measurements.jsonl" in archived(checkout, "standard")


def test_an_unknown_word_is_told_the_commands(checkout: Path) -> None:
    done = visit(checkout, "everything")
    assert done.returncode == 2
    assert "bash validate/on_a_gpu.sh standard" in done.stderr


def test_where_there_is_no_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    """The real verbs, from the real checkout."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = visit(CHECKOUT, f"standard {tmp_path}", PYTHON=sys.executable, RESULTS=str(tmp_path / "results"))
    assert done.returncode == 2
    assert "without a GPU use --device cpu" in done.stdout
    assert done.stderr.strip().startswith("nothing was measured: see ")


def test_calibrate_needs_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "standard").mkdir()
    shutil.copy(CPU, tmp_path / "standard" / "measurements.jsonl")
    done = visit(CHECKOUT, "calibrate", PYTHON=sys.executable, RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "./cpu@measured.toml" in archived(tmp_path, "calibrate", ".")


def test_the_page_has_its_commands() -> None:
    page = (CHECKOUT / "docs" / "validation.md").read_text(encoding="utf-8")
    for command in ("quick", "standard", "calibrate"):
        assert f"bash validate/on_a_gpu.sh {command}" in page
