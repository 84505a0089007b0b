"""Verbs: flags that are made when they are needed, and nothing that start-up does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer

from capacity.base.flags import Flag
from capacity.base.registry import BY_NAME, Verb
from capacity.cli import verbs
from capacity.cli.question import Question
from capacity.cli.verbs import CURRENCY_VERBS, command_of, defer
from capacity.report.schemas import json_schema

HEAVY = {"numpy", "pandas", "scipy", "plotly", "simpy", "streamlit", "torch"}
ESTIMATE = ("estimate", "llama-3.1-8b", "--gpu", "h100", "--isl", "512", "--osl", "64", "--batch-size", "8")


def loaded(*arguments: str) -> set[str]:
    """The modules that a command imports."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from capacity.cli.main import main\n"
        f"sys.argv = ['capacity', *{arguments!r}]\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("fit", *ESTIMATE[1:4]), ESTIMATE])
def test_quick_answers_load_no_heavy_library(arguments: tuple[str, ...]) -> None:
    modules = loaded(*arguments)
    assert not HEAVY & modules
    modules -= {"capacity.planning.sizing", "capacity.planning.sizing.sized_estimate"}  # the verb itself
    assert not [name for name in modules if name.startswith(("capacity.simulator.", "capacity.planning."))]


def test_a_command_ends_without_looking_through_what_it_made() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count()))\n"
        "from capacity.cli.main import main\n"
        f"sys.argv = ['capacity', *{ESTIMATE!r}]\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout.split()[-1]) > 10_000


def test_the_help_knows_no_specs() -> None:
    assert not {"pydantic", "capacity.deployment", "capacity.techniques.quantize"} & loaded("--help")


DECLARED: list[object] = []


def quick(number: int = 1) -> None:
    DECLARED.append(number)


def asks(question: Question) -> None:
    DECLARED.append((question.flags, question.format))


def answers(*, often: Annotated[int, Flag("How often.")] = 1, unnamed: int = 2) -> None:
    """What `shows` asks."""


def shows(
    file: Annotated[str, typer.Argument()] = "none",
    *,
    format: Annotated[str, typer.Option("--format")] = "own",
    **keywords: object,
) -> None:
    DECLARED.append((file, format, keywords))


def test_command_is_made_when_its_verb_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, made = typer.Typer(add_completion=False), []
    monkeypatch.setattr(verbs, "command_of", lambda entry: made.append(entry.name) or command_of(entry))
    defer(app, Verb("quick", "Quick.", command="test_verbs:quick"))
    further = {
        "specs": ("capacity.deployment:Pool", "capacity.deployment:Traffic"),
        "shared": ("format",),
        "without": ("input_len",),
    }
    defer(app, Verb("asks", "Asks.", command="test_verbs:asks", **further))
    monkeypatch.setitem(sys.modules, "test_verbs", sys.modules[__name__])
    with pytest.raises(SystemExit):
        app(["--help"])
    assert {"quick", "asks"} <= set(capsys.readouterr().out.split())
    assert not made
    app(["quick", "--number", "3"], standalone_mode=False)
    assert made == ["quick"]
    app(["asks", "--gpu", "h100", "-tp", "2", "--format", "csv"], standalone_mode=False)
    assert DECLARED == [3, ({"gpu": "h100", "tensor_parallel_size": "2"}, "csv")]
    with pytest.raises(Exception, match="input-len"):
        app(["asks", "--input-len", "3"], standalone_mode=False)


def test_options_are_shared_or_a_keyword_of_the_function_or_the_commands_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not set is left to the function; `format` is the command's own here, and no question's."""
    app = typer.Typer(add_completion=False)
    app.command("other")(quick)
    shared = ("often", "format", "slo", "workers")
    defer(app, Verb("shows", "Shows.", "test_verbs:answers", command="test_verbs:shows", shared=shared))
    monkeypatch.setitem(sys.modules, "test_verbs", sys.modules[__name__])
    DECLARED.clear()
    app(["shows"], standalone_mode=False)
    app(["shows", "a", "--often", "1k", "--format", "csv", "--slo", "ttft:5"], standalone_mode=False)
    assert DECLARED == [
        ("none", "own", {"often": 1, "workers": 2}),
        ("a", "csv", {"often": 1000, "workers": 2, "slo": ["ttft:5"]}),
    ]
    with pytest.raises(Exception, match="unnamed"):
        app(["shows", "--unnamed", "3"], standalone_mode=False)


def test_currency_is_a_flag_of_every_verb_whose_answer_has_an_amount() -> None:
    without = {name for name in CURRENCY_VERBS if "usd" not in schemas_of(name)}
    assert without == {"simulate", "sweep"}  # their records have free fields
    assert {name for name in BY_NAME if "usd" in schemas_of(name)} <= set(CURRENCY_VERBS)


def schemas_of(name: str) -> str:
    return json.dumps([json_schema(answer.name) for answer in BY_NAME[name].answers])


def test_unknown_currency_is_rejected_before_the_answer_is_computed(run: Any) -> None:
    code, out, err = run("estimate", "no-such-model", "--currency", "XYZ")
    assert (code, out) == (2, "")
    assert err.startswith("InvalidInput: --currency 'XYZ': use one of USD, EUR, GBP, JPY, ")
    assert err.count("\n") == 1
