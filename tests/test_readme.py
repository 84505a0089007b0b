"""README and handbook run: every marked block is executed, and the output shown is the output that comes.

`UPDATE_README=1 python -m pytest --slow tests/test_readme.py` writes the current output into them. With `--ci` the
README's blocks run as users run them; all others in processes that begin with the package loaded. Without `--ci`,
blocks that search are left out, and of a page of the handbook only the first that shows what it prints is run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm_process
from long_forms import mostly_ci

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(
    r"<!-- (?P<kind>run|output) -->\n```(?P<language>\w+)\n(?P<code>.*?)```\n(?:```text\n(?P<shown>.*?)```\n)?",
    re.S,
)
ELAPSED = re.compile(r"; [\d.]+ s, first answer\s+after\s+[\d.]+ s")
CALIBRATED = re.compile(r"(note: calibrated on [^(]*)\(\d{4}-\d\d-\d\d\)")  # with the day of the calibration
TUTORIAL = README.parent / "docs" / "tutorial.md"
PAGES = (README, *sorted((README.parent / "docs").glob("*.md")))
BLOCKS = [
    (page, block)
    for page in PAGES
    if page != TUTORIAL
    for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
]
SEARCH = re.compile(
    r"\b(plan|fleet|stack|frontier|tornado|advise|curve|cascade|trace|gantt)\b"
)  # seconds to minutes
FIRST = {
    page: (page, block)
    for page, block in reversed(BLOCKS)
    if block["kind"] == "output" and not SEARCH.search(block["code"])
}
OF_README = [pair for pair in BLOCKS if pair[0] == README and not SEARCH.search(pair[1]["code"])]
MANY_SECONDS = re.compile(
    r"capacity quantize \S+ --gpu h100 --input-len|from capacity.simulator import EngineSetup"
    r"|capacity simulate qwen3-vl|capacity plan llama-3.1-8b --use-case"
)
LONG = [
    (page, block)
    for page, block in BLOCKS
    if (page.stem in ("fleets", "stack") or MANY_SECONDS.match(block["code"]))
    and (page, block) not in FIRST.values()
]
SHORT = [*FIRST.values(), *OF_README]


def run(language: str, code: str, folder: Path, warm: Path | None) -> str:
    """What a block prints; it must succeed. `warm`: the folder of the `capacity` that begins loaded, if it is used."""
    if language == "python" and warm is not None:
        return warm_process.run_code(code, folder, warm)
    command = (
        [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    )
    commands = Path(sys.executable).parent if warm is None else warm
    path = os.pathsep.join((str(commands), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def label(value: Path | re.Match[str]) -> str:
    """A block by its page and its first line."""
    return value.name if isinstance(value, Path) else value["code"].strip().splitlines()[0][:60]


@pytest.mark.parametrize(("page", "block"), mostly_ci(BLOCKS, SHORT, LONG), ids=label)
def test_a_block_does_what_the_page_says(
    page: Path, block: re.Match[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    compare_output(page, block, run(block["language"], block["code"], tmp_path, warm_for(page, request)))


def warm_for(page: Path, request: pytest.FixtureRequest) -> Path | None:
    """The folder of the warm processes; None where a block runs as anyone runs it."""
    cold = page == README and (request.config.getoption("--ci") or request.config.getoption("--slow"))
    return None if cold or not hasattr(os, "pidfd_open") else request.getfixturevalue("warm")


def compare_output(page: Path, block: re.Match[str], printed: str) -> None:
    """Compare with the output that the page shows, if it shows any; UPDATE_README=1 writes it into the page."""
    if block["kind"] == "run":
        return
    if os.environ.get("UPDATE_README"):
        text = page.read_text(encoding="utf-8")
        shown = f"{block['code']}```\n```text\n"
        before, _, rest = text.partition(shown)
        page.write_text(before + shown + printed + rest[rest.index("```\n") :], encoding="utf-8")
        return
    assert without_elapsed(printed) == without_elapsed(block["shown"])


@pytest.mark.parametrize("with_searches", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_the_tutorial_runs_from_top_to_bottom_in_one_folder(
    tmp_path: Path, request: pytest.FixtureRequest, with_searches: bool
) -> None:
    """No later block depends on those that search."""
    warm = warm_for(TUTORIAL, request)
    for block in list(BLOCK.finditer(TUTORIAL.read_text(encoding="utf-8"))):
        if SEARCH.search(block["code"]) and not with_searches:
            continue
        compare_output(TUTORIAL, block, run(block["language"], block["code"], tmp_path, warm))


def test_calibration_halves_the_ttft_interval_of_the_tutorial() -> None:
    """The page says so: TTFT of the first estimate and of the calibrated one, in ms."""
    shown = re.findall(r"^ TTFT +\S+ ms +(\d+) to (\d+) ms$", TUTORIAL.read_text(encoding="utf-8"), re.M)
    before, after = (float(high) - float(low) for low, high in shown)
    assert after / before == pytest.approx(0.5, abs=0.1)


def without_elapsed(printed: str) -> str:
    """Output without the seconds of `plan`, the line break that depends on their digits, and today's date."""
    return CALIBRATED.sub(r"\1", ELAPSED.sub("", printed))


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_readmes_accuracy_is_that_of_the_accuracy_page() -> None:
    """Each row of the README has the numbers of one row of docs/accuracy.md, which other tests recompute."""
    page = (README.parent / "docs" / "accuracy.md").read_text(encoding="utf-8")
    cells = {
        row[0]: row[1:]
        for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines())
    }
    dense, experts = cells["closed loops, dense"], cells["closed loops, experts"]
    rows, median, p90, *_ = cells["KV capacity on start-up lines, aside"][1:]
    startup = f"{rows} | {median} | {p90}".replace("%", " %")
    shown = README.read_text(encoding="utf-8")
    for label, source in (("dense models", dense), ("mixtures of experts", experts)):
        for metric, pair in (("TPOT", source[1]), ("TTFT", source[2])):
            median, p90 = pair.removesuffix(" %").split(" / ")
            assert f"| {metric}, served {label} | {source[0]} | {median} % | {p90} % |" in shown
    assert f"| KV capacity at start-up, unseen servers | {startup} |" in shown


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes")
def test_a_process_that_begins_loaded_ends_as_any_other(warm: Path, tmp_path: Path) -> None:
    """Else a block that fails would pass."""
    assert run("python", "import sys; print(sys.argv, __name__)", tmp_path, warm) == "['-c'] __main__\n"
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("python", "1 / 0", tmp_path, warm)
    with pytest.raises(AssertionError, match="no-such"):
        run("sh", "capacity fit no-such --gpu h100", tmp_path, warm)
    unmet = "capacity fit llama-3.1-70b --gpu t4 > answer || echo $?; pwd"
    assert run("sh", unmet, tmp_path, warm) == f"1\n{tmp_path}\n"
    assert (tmp_path / "answer").stat().st_size


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_block_is_marked(page: Path) -> None:
    """A block that no test and no CI step runs would rot."""
    text = page.read_text(encoding="utf-8")
    fences = len(re.findall(r"^```(?:sh|python)$", text, re.M))
    commands = len(re.findall(r"^<!-- command: [\w-]+ -->\n```sh$", text, re.M))
    assert fences == len(BLOCK.findall(text)) + commands
    assert commands == (2 if page == README else 0)


def test_the_install_commands_are_what_ci_runs() -> None:
    script = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    for name in ("install-and-run", "install-and-test"):
        assert f"<!-- command: {name} -->" in README.read_text(encoding="utf-8")
        assert f"readme_command {name}" in script
