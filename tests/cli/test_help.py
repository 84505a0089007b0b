"""Help: one screen of what people use, with examples that run; and every flag, with no name cut."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer.main

from capacity.base.registry import BY_NAME, GROUPS
from capacity.cli.help import DEPRECATED
from capacity.cli.main import app, main

VERBS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
SCREEN = 50  # lines; every help text is complete
SLOW = {
    "frontier",
    "quantize",
    "plan",
    "fleet",
    "advise",
    "stack",
    "tornado",
    "curve",
    "charts",
    "validate",
    "batching",
}
SERVERS = {"dashboard", "mcp", "serve"}  # run until they are interrupted
FILES = ("http://", "requests.csv", "requests.jsonl", "result.json", ".toml", "scenario.json", "measurements")


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str, columns: int = 80
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["capacity", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    return capsys.readouterr().out


def flags_of(verb: str) -> set[str]:
    context = typer.main.get_command(app).commands[verb].make_context(verb, [], resilient_parsing=True)  # type: ignore[attr-defined]
    shown = [parameter for parameter in context.command.params if not getattr(parameter, "hidden", False)]
    spelled = [flag for parameter in shown for flag in (*parameter.opts, *parameter.secondary_opts)]
    return {flag for flag in spelled if flag.startswith("-")}.difference(DEPRECATED)


def test_the_help_of_the_command_has_60_lines_and_every_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = said(capsys, monkeypatch, "--help")
    assert len(page.splitlines()) <= 60
    grouped = [verb for verbs in GROUPS.values() for verb in verbs]
    assert sorted(grouped) == sorted(BY_NAME)
    for group, verbs in GROUPS.items():
        assert (f"─ {group} ─" in page) == (group != "Deprecated")
        for verb in verbs if group != "Deprecated" else ():
            assert re.search(rf"│ {verb} +{re.escape(BY_NAME[verb].help.splitlines()[0])} +│", page), verb
    assert "from-vllm" not in page


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_page_fits_a_screen(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (80, 100):
        lines = said(capsys, monkeypatch, verb, "--help", columns=columns).splitlines()
        assert len(lines) <= SCREEN
        assert max(map(len, lines)) <= columns
    named = {f"--{name}" for name in BY_NAME[verb].first.split()}
    assert named <= flags_of(verb), "a flag of the page that the verb does not have"
    text = " ".join(lines)
    assert all(example in " ".join(text.split()) for example in BY_NAME[verb].examples)


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_somewhere_and_whole(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = said(capsys, monkeypatch, verb, "--help-all", columns=60).replace(",", " ").split()
    assert flags_of(verb) - {"--help", "-h"} <= set(words)
    assert not [word for word in words if word.startswith("--") and word.endswith("…")]


EXAMPLES = [(verb, example) for verb, page in BY_NAME.items() for example in page.examples]


@pytest.mark.ci
@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_is_a_command(
    verb: str,
    example: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words = shlex.split(example)
    assert words[0] == verb
    known = flags_of(verb)
    for word in words:
        assert not word.startswith("-") or word in known, word
    if verb in SLOW | SERVERS or any(ending in word for word in words for ending in FILES):
        return  # the README and the handbook run these, or they need a file
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["capacity", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (0, 1, None), capsys.readouterr().err
