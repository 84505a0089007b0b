"""A copy of the checkout, changed as a contributor would change it, and what its commands print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
UNNEEDED = shutil.ignore_patterns(
    ".*", "__pycache__", "gpu-results", "wheels", "build", "dist", "screenshots"
)
RUN_ALL = """
import contextlib, io, json, sys
from capacity.cli.main import main

printed = []
for words in json.load(sys.stdin):
    sys.argv = ["capacity", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def copy_checkout(folder: Path) -> Path:
    """Return a copy of the checkout without hidden files and without the reference library."""
    return Path(shutil.copytree(ROOT, folder / "checkout", ignore=UNNEEDED))


def run_python(checkout: Path, arguments: Sequence[str], text: str = "") -> str:
    """Return what Python prints in the copy; it must exit with 0."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAPACITY_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(checkout / folder) for folder in (".", "app", "validate"))
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env={**environment, "COLUMNS": "100"}, input=text,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_commands(checkout: Path, commands: Iterable[Sequence[str]]) -> list[str]:
    """Return what each `capacity` command prints, all in one process of the copy."""
    printed: list[str] = json.loads(run_python(checkout, ["-c", RUN_ALL], json.dumps([*map(list, commands)])))
    return printed
