"""The registry of verbs and the static API: its paths resolve, and type checkers reject a wrong keyword."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capacity
from capacity.base.registry import ANSWERS, VERBS

ROOT = Path(__file__).parents[2]
STUB = ROOT / "capacity" / "__init__.pyi"


def test_stub_is_current() -> None:
    spec = importlib.util.spec_from_file_location("stub", ROOT / "docs" / "stub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, kept = (ast.dump(ast.parse(text)) for text in (module.stub(), STUB.read_text(encoding="utf-8")))
    assert made == kept, "python docs/stub.py writes it"


WRONG = {
    'capacity.estimate("llama-3.1-8b", gpu="h100", bogus=1)': 'Unexpected keyword argument "bogus"',
    'capacity.simulate("llama-3.1-8b", gpu=3)': 'incompatible type "int"',
    'capacity.plan("llama-3.1-8b", slo="ttft:500", workers="two")': 'incompatible type "str"',
    'capacity.fit("llama-3.1-8b", gpu="h100").nonesuch': 'has no attribute "nonesuch"',
    'capacity.estimate("llama-3.1-8b", gpu="h100", input_len="32k", batch_size=8).ttft_s': "",
}


def test_type_checker_rejects_unknown_keyword_and_wrong_kind(tmp_path: Path) -> None:
    path = tmp_path / "use.py"
    path.write_text("import capacity\n" + "\n".join(WRONG) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    for number, wrong in enumerate(WRONG.values(), start=2):
        found = [line for line in lines if f"use.py:{number}:" in line and ": error:" in line]
        assert len(found) == bool(wrong), (number, done.stdout)
        assert all(wrong in line for line in found)


def test_names_of_answers_are_those_of_their_schemas() -> None:
    from pkgutil import resolve_name

    for name, answer in ANSWERS.items():
        assert resolve_name(answer.record).SCHEMA.split("/")[1] == name


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_path_of_the_registry_resolves(verb: object) -> None:
    from pkgutil import resolve_name

    assert verb in VERBS
    entry = next(each for each in VERBS if each is verb)
    paths = [entry.function, entry.command, entry.flags, *entry.further, *entry.specs]
    for answer in (*entry.answers, *(other.answer for other in entry.alternatives)):
        paths += [answer.record, answer.view]
    paths += [other.function for other in entry.alternatives]
    assert all(callable(resolve_name(path)) for path in paths if path)
    assert entry.function == "" or hasattr(capacity, entry.function.partition(":")[2])


def test_options_are_of_the_commands_own_parameters() -> None:
    from pkgutil import resolve_name

    for entry in (each for each in VERBS if each.options):
        assert entry.options.keys() <= inspect.signature(resolve_name(entry.command)).parameters.keys(), (
            entry.name
        )


NEW_MODULE = '''"""Half of a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from capacity.base.flags import Flag
from capacity.base.record import AnswerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Half(AnswerRecord):
    """Half of a number."""

    SCHEMA: ClassVar[str] = "capacity/halve/v1"
    number: float
    half: float


def halve(*, number: Annotated[float, Flag(help="The number to halve.")] = 2.0) -> Half:
    """Return half of a number."""
    return Half(number=number, half=number / 2)
'''
NEW_ENTRY = {
    "help": "What is half of a number?",
    "function": "capacity.techniques.halving:halve",
    "answers": [{"name": "halve", "record": "capacity.techniques.halving:Half"}],
    "examples": ["halve --number 5"],
}


def test_new_verb_in_two_files_reaches_every_surface(tmp_path: Path) -> None:
    """One module and one entry; the command line, help, Python, JSON, CSV, schema, HTML and docs have it."""
    for folder in ("capacity", "docs", "hardware_profiles"):
        ignored = shutil.ignore_patterns("__pycache__", "screenshots", "charts")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "capacity/techniques/halving.py").write_text(NEW_MODULE, encoding="utf-8")
    path = tmp_path / "capacity/base/verbs.json"
    declared = json.loads(path.read_bytes())
    declared["verbs"]["halve"] = NEW_ENTRY
    path.write_text(json.dumps(declared), encoding="utf-8")

    def output(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "What is half of a number?" in output("-m", "capacity", "--help")
    assert "The number to halve." in output("-m", "capacity", "halve", "--help")
    assert "2.5" in output("-m", "capacity", "halve", "--number", "5")
    asked = ("-m", "capacity", "halve", "--number", "5", "--format")
    assert json.loads(output(*asked, "json")) == {"schema": "capacity/halve/v1", "number": 5.0, "half": 2.5}
    assert output(*asked, "csv").splitlines() == ["schema,number,half", "capacity/halve/v1,5.0,2.5"]
    assert "What is half of a number?" in output(*asked, "html")
    assert '"half"' in output("-m", "capacity", "schema", "halve")
    printed = output("-c", "import capacity; print('halve' in dir(capacity), capacity.halve(number=3).half)")
    assert printed.split() == ["True", "1.5"]
    code = "import sys; sys.path.insert(0, 'docs'); import made_of_code, stub; "
    assert "`capacity.halve`" in output("-c", code + "print(made_of_code.verb_table())")
    assert "halve as halve" in output("-c", code + "print(stub.stub())")
