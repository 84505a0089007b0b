"""Mutation score of the compiled engines: the share of generated mutants that differ from the Python engines.

`python -m tests.core_mutation_score --mutants 300 --seed 0` changes one operator, number or statement of the C sources
at a time, compiles it, and runs the schedules and deployments of `core_mutant` on it, and then the source's `TESTS`.
Mutants that do not compile, or whose object is the same as before, are not counted.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from core_mutant import SOURCES, CoreMutants, compiled, compiled_sources
from core_mutations import CoreMutation
from kinds_of_deployments import KINDS, MADE, deployment_of

from capacity.simulator.core import build, fleet, library

FOLDER = Path(__file__).parent / "simulator" / "core"
POOLS = ("pools", "gaps", "work")
TESTS = {  # of `FOLDER`, by the sources that they run without an engine or with wrong arguments; the others have none
    **dict.fromkeys(("step_times.c", "norms.c"), ("step_data",)),
    **dict.fromkeys(("memory.c", "runs.c", "run_pool.c", "block_pool.c", "contiguous_pool.c"), POOLS),
    **dict.fromkeys(("offload.c", "tiers.c"), ("offload",)),
    "fleet.c": ("refusals", "equal"),
    "gaps.c": ("gaps",),
    "work.c": ("work",),
}
TESTS_S = 300

SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
    "*": "+", "/": "*", "%": "*", "+=": "-=", "-=": "+=", "MIN(": "MAX(", "MAX(": "MIN(",
}  # fmt: skip
OPERATOR = re.compile(r"(?<=[\w)\]] )(<=|>=|==|!=|&&|\|\||\+=|-=|[<>+\-*/%])(?= [\w(!&*])|\b(?:MIN|MAX)\(")
NUMBER = re.compile(r"(?<![\w.\"])\d+(?![\w.\"])")
STATEMENT = re.compile(
    r"^(\s+)(?!return|break|continue|case|else|static|const|goto)[\w>.\[\]()\- ]*(?:\(.*\)|[+|-]?= .*|\+\+|--);$"
)
DECLARED = re.compile(r"^\s+(?:const |static )?(?:struct |enum )?\w+ \*?\w+ = ")
SKIPPED = re.compile(
    r"^\s*(?:REQUIRE|#|//|/?\*|static_assert|_Static_assert)|^\S"
)  # checks, comments, declarations


def changed_number(code: str, match: re.Match[str]) -> str:
    """Return the number plus 1, but 0 for `return 1`, which would return another true value."""
    truth = match.group() == "1" and code[: match.start()].endswith("return ")
    return "0" if truth else str(int(match.group()) + 1)


def generate(rng: random.Random) -> Iterator[CoreMutation]:
    """Yield all mutants of all sources, in random order."""
    places = []
    for path in sorted(SOURCES.glob("*.c")):
        lines = path.read_text().splitlines(keepends=True)
        for at, line in enumerate(lines):
            code = line.split("/*")[0].split("//")[0].rstrip()
            if SKIPPED.match(line) or not code or '"' in code:
                continue
            changes = [(m.start(), m.end(), SWAPPED[m.group()]) for m in OPERATOR.finditer(code)]
            changes += [(m.start(), m.end(), changed_number(code, m)) for m in NUMBER.finditer(code)]
            if STATEMENT.match(code) and not DECLARED.match(code):
                changes.append((len(code) - len(code.lstrip()), len(code), ";"))
            places += [(path, lines, at, *change) for change in changes]
    for path, lines, at, start, end, new in rng.sample(places, len(places)):
        line = lines[at]
        changed = "".join([*lines[:at], line[:start] + new + line[end:], *lines[at + 1 :]])
        name = f"{path.name}:{at + 1}: {line[start:end]} -> {new} in {line.strip()}"
        yield CoreMutation(name=name, file=path.name, old="".join(lines), new=changed)


def is_counted(mutation: CoreMutation, folder: Path) -> bool:
    """Return whether a mutant compiles to another object."""
    source = folder / mutation.file
    source.write_text(mutation.new)
    try:
        made = compiled(source, folder)
    except subprocess.CalledProcessError:
        return False
    return made.read_bytes() != compiled_sources()[mutation.file].read_bytes()


def fails(core: Path, file: str) -> bool:
    """Return whether a test of this source fails with this library; the mutated source, if any, is beside it."""
    if file not in TESTS:
        return False
    child = multiprocessing.get_context("fork").Process(target=_run_tests, args=(core, file))
    child.start()
    child.join(TESTS_S)
    child.kill()
    child.join()
    return child.exitcode != 0


def _run_tests(core: Path, file: str) -> None:
    compile_library = build.compile_library

    def compile_mutated(sources: list[Path], *rest: Any) -> None:  # tests that compile a part of the core
        mutated = core.with_suffix(".c")
        compile_library(
            [mutated if path.name == file and mutated.exists() else path for path in sources], *rest
        )

    build.compile_library = compile_mutated
    mutant = ctypes.CDLL(str(core))
    library.load = functools.cache(lambda: mutant)
    fleet._load_core.cache_clear()
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os._exit(
        pytest.main(
            [
                "-x",
                "-q",
                "-p",
                "no:xdist",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=--import-mode=importlib",
                *(f"{FOLDER}/test_{name}.py" for name in TESTS[file]),
            ]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deployments", type=int, default=30)
    asked = parser.parse_args()
    made = {
        f"{kind} {seed}": deployment_of(kind, seed) for seed in range(asked.deployments) for kind in KINDS
    }
    made |= {name: make() for name, make in MADE.items()}
    scratch = Path(tempfile.mkdtemp())
    mutants = CoreMutants(Path(tempfile.mkdtemp()), range(asked.deployments), made)
    if mutants.shown_by(None) or any(
        fails(mutants.library(None), file) for file in {tests: file for file, tests in TESTS.items()}.values()
    ):
        sys.exit("the tests fail without a mutation: mend them first")
    tried, survivors = Counter[str](), Counter[str]()
    for number, each in enumerate(generate(random.Random(asked.seed))):
        if sum(tried.values()) == asked.mutants:
            break
        if not is_counted(each, scratch):
            continue
        tried[each.file] += 1
        mutation = CoreMutation(name=str(number), file=each.file, old=each.old, new=each.new)
        if mutants.shown_by(mutation) is None and not fails(mutants.library(mutation), each.file):
            survivors[each.file] += 1
            print(f"survives: {each.name}", flush=True)
    for file, count in sorted(tried.items()):
        print(f"{file}: {count - survivors[file]} of {count}")
    killed = sum(tried.values()) - sum(survivors.values())
    print(f"{killed} of {sum(tried.values())} killed ({killed / sum(tried.values()):.0%}), seed {asked.seed}")


if __name__ == "__main__":
    main()
