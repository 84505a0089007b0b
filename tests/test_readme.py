"""README and handbook run: every marked block is executed, and the output shown is the output that comes.

`UPDATE_README=1 python -m pytest tests/test_readme.py` writes the present output into them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(
    r"<!-- (?P<kind>run|output) -->\n```(?P<language>\w+)\n(?P<code>.*?)```\n(?:```text\n(?P<shown>.*?)```\n)?",
    re.S,
)
PAGES = (README, *sorted((README.parent / "docs").glob("*.md")))
BLOCKS = [(page, block) for page in PAGES for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def run(language: str, code: str, folder: Path) -> str:
    """What a block prints; it must succeed."""
    command = (
        [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def label(value: Path | re.Match[str]) -> str:
    """A block by its page and its first line."""
    return value.name if isinstance(value, Path) else value["code"].strip().splitlines()[0][:60]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=label)
def test_a_block_does_what_the_page_says(page: Path, block: re.Match[str], tmp_path: Path) -> None:
    printed = run(block["language"], block["code"], tmp_path)
    if block["kind"] == "run":
        return
    if os.environ.get("UPDATE_README"):
        text = page.read_text(encoding="utf-8")
        shown = f"{block['code']}```\n```text\n"
        before, _, rest = text.partition(shown)
        page.write_text(before + shown + printed + rest[rest.index("```\n") :], encoding="utf-8")
        return
    assert printed == block["shown"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_block_is_marked(page: Path) -> None:
    """A block that no test and no CI step runs would rot."""
    text = page.read_text(encoding="utf-8")
    fences = len(re.findall(r"^```(?:sh|python)$", text, re.M))
    commands = len(re.findall(r"^<!-- command: [\w-]+ -->\n```sh$", text, re.M))
    assert fences == len([block for where, block in BLOCKS if where == page]) + commands
    assert commands == (2 if page == README else 0)


def test_the_install_commands_are_what_ci_runs() -> None:
    script = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    for name in ("install-and-run", "install-and-test"):
        assert f"<!-- command: {name} -->" in README.read_text(encoding="utf-8")
        assert f"readme_command {name}" in script
