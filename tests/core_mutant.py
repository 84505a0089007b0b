"""The compiled engines with one wrong rule: compiled, and run in a process of its own against the readable ones.

`python core_mutant.py LIBRARY SEED...` ends with 1 and names the first seed on which both differ.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core_mutations import CoreMutation

from capacity.simulator.core import build, library

SOURCES = Path(build.__file__).parent
FLAGS = [*build.FLAGS, "-O1", "-fPIC", "-w", '-DCORE_VERSION="mutant"', f"-I{SOURCES}"]
TIMEOUT_S = 300  # a mutant that never ends is shown too


class CoreMutants:
    """The engines' objects, compiled once, and a library for each mutation of one of them."""

    def __init__(self, folder: Path) -> None:
        command = build.working_compiler()
        assert command is not None
        self._compiler = command
        self._folder = folder
        sources = [path for path in build.source_files(SOURCES) if path.suffix == ".c"]
        with ThreadPoolExecutor() as pool:
            self._objects = dict(zip([path.name for path in sources], pool.map(self._compiled, sources)))

    def _compiled(self, source: Path) -> Path:
        target = self._folder / f"{source.stem}.o"
        self._run("-c", str(source), "-o", str(target))
        return target

    def _run(self, *arguments: str) -> None:
        subprocess.run([*self._compiler, *FLAGS, *arguments], check=True, capture_output=True)

    def library(self, mutation: CoreMutation, name: str = "mutant") -> Path:
        text = (SOURCES / mutation.file).read_text()
        assert text.count(mutation.old) == 1, f"{mutation.name}: {text.count(mutation.old)} times"
        source = self._folder / f"{name}-{mutation.file}"
        source.write_text(text.replace(mutation.old, mutation.new))
        target = self._folder / f"{name}{Path(build.library_name()).suffix}"
        objects = {**self._objects, mutation.file: self._compiled(source)}
        self._run("-shared", *map(str, objects.values()), "-o", str(target), "-lm")
        return target


def shown_by(path: Path, seeds: list[int]) -> str | None:
    """What shows the mutant, None if nothing does: a seed, a crash or a run without end."""
    command = [sys.executable, __file__, str(path), *map(str, seeds)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "it never ends"
    return None if ran.returncode == 0 else ran.stdout.strip() or ran.stderr.strip()[-300:]


def main() -> None:
    mutant = ctypes.CDLL(sys.argv[1])
    library.load = functools.cache(lambda: mutant)
    from random_deployments import differing

    for seed in map(int, sys.argv[2:]):
        if found := differing(seed):
            print(f"{seed}: {', '.join(found)[:200]}")
            sys.exit(1)


if __name__ == "__main__":
    main()
