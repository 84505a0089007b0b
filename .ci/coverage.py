"""Branch coverage of the tests, with a floor for each part that only rises.

    eval "$(python .ci/coverage.py start FOLDER)"            count the C core in the tests that follow; CI does
    eval "$(python .ci/coverage.py start FOLDER --python)"   count Python too, which takes more than twice the time
    python .ci/coverage.py check FOLDER                      shares of what was counted, against .ci/coverage.toml

Python is counted by coverage.py in every process that the tests start; the C core by gcov, in every library that is
compiled with the wrapper (`cc`) that `start` sets as the compiler. The tests must have run in this checkout.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ROOT / ".ci" / "coverage.toml"
CORE = "capacity/simulator/core"
PARTS = ("capacity/simulator", "capacity/planning", "capacity/answers")
RISE = 2.0  # percentage points above its floor from which a floor must be raised
CONFIG = """[run]
branch = true
parallel = true
data_file = {folder}/python
source =
    {sources}
"""


def start(folder: Path, *, python: bool) -> None:
    """Print the variables of the environment in which tests are counted."""
    folder.mkdir(parents=True, exist_ok=True)
    config, compiler = folder / "coveragerc", folder / "cc"
    config.write_text(CONFIG.format(folder=folder, sources="\n    ".join(str(ROOT / part) for part in PARTS)))
    compiler.write_text(
        f'#!/bin/sh\nexec env -u COVERAGE_PROCESS_START "{sys.executable}" "{__file__}" cc "{folder}" "$@"\n'
    )
    compiler.chmod(0o755)
    print(f"export CC={compiler}" + f" COVERAGE_PROCESS_START={config}" * python)


def compile_counted(folder: Path, arguments: list[str]) -> int:
    """Run gcc with counters. Objects are made in a folder that remains, because gcov needs the notes beside them."""
    command = ["gcc", *arguments]
    counters = ["--coverage"]
    if "-c" not in arguments:
        return subprocess.run([*command, *counters], check=False).returncode
    place = arguments.index("-o") + 1
    target = Path(arguments[place])
    kept = Path(tempfile.mkdtemp(dir=folder, prefix="object-")) / target.name
    command[place + 1] = str(kept)
    code = subprocess.run([*command, *counters], check=False).returncode
    if code == 0:
        target.write_bytes(kept.read_bytes())
    return code


def core_coverage(folder: Path) -> float:
    """Return the percentage of the core's branches that were taken in any library that was compiled.

    Lines that check what cannot fail (`REQUIRE`) are left out.
    """
    sources = {path.name: path.read_text().splitlines() for path in (ROOT / CORE).glob("*.[ch]")}
    taken: dict[tuple[str, int, int], bool] = defaultdict(bool)
    for data in sorted(folder.glob("object-*/*.gcda")):
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["gcov", "-b", "-j", str(data)], cwd=scratch, check=True, capture_output=True)
            for report in Path(scratch).glob("*.json.gz"):
                for file in json.loads(gzip.decompress(report.read_bytes()))["files"]:
                    name = Path(file["file"]).name
                    if name not in sources:
                        continue
                    for line in file["lines"]:
                        if sources[name][line["line_number"] - 1].strip().startswith("REQUIRE("):
                            continue
                        for index, branch in enumerate(line["branches"]):
                            taken[name, line["line_number"], index] |= branch["count"] > 0
    if not taken:
        sys.exit(f"no library of the core was executed: {folder}")
    return 100 * sum(taken.values()) / len(taken)


def python_coverage(folder: Path, part: str) -> float:
    """Return the percentage of lines and branches below a folder of the package that were executed."""
    report = subprocess.run(
        [sys.executable, "-m", "coverage", "json", "-q", "-o", "-", f"--include={ROOT / part}/*"],
        env={**os.environ, "COVERAGE_FILE": str(folder / "python")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(report.stdout)["totals"]["percent_covered"])


def check(folder: Path) -> int:
    """Print coverage and floor of each part; return 1 if one is below its floor or far above it."""
    floors = tomllib.loads(FLOORS.read_text())
    shares = {CORE: core_coverage(folder)}
    if any(folder.glob("python.*")):
        combine = [sys.executable, "-m", "coverage", "combine", "-q", str(folder)]
        subprocess.run(
            combine, env={**os.environ, "COVERAGE_FILE": str(folder / "python")}, cwd=ROOT, check=True
        )
        shares |= {part: python_coverage(folder, part) for part in PARTS}
    failed = 0
    for part, share in shares.items():
        floor = floors[part]
        advice = "below its floor" if share < floor else "raise its floor" if share >= floor + RISE else "ok"
        failed |= advice != "ok"
        print(f"{part:24} {share:5.1f} % of branches, floor {floor:g} %: {advice}")
    return failed


def main() -> int:
    action, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    if action == "cc":
        return compile_counted(folder, sys.argv[3:])
    if action == "check":
        return check(folder)
    start(folder, python="--python" in sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
