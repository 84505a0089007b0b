"""The registry of verbs and the static API: its paths resolve, and type checkers reject a wrong keyword."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout_copy import copy_checkout, run_commands, run_python

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
    'capacity.simulate("llama-3.1-8b", gpu="h100", policy=3)': 'incompatible type "int"',
    'capacity.simulate("llama-3.1-8b", gpu="h100", routers="random")': 'Unexpected keyword argument "routers"',
    'capacity.engine_setup("llama-3.1-8b", gpu="h100", router="random")': 'Unexpected keyword argument "router"',
    'capacity.grid("fit", {"gpu": ["h100"]}, model="llama-3.1-8b", bogus=1)': 'Unexpected keyword argument "bogus"',
    'capacity.engine_setup("llama-3.1-8b", gpu="h100", replicas=2).setup.num_blocks': "",
}


@pytest.mark.slow
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


def test_stub_declares_every_keyword_with_its_kind() -> None:
    """What the type checker needs to reject an unknown keyword or a wrong kind: no function takes any keyword."""
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    kinds = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    declared: dict[str, dict[str, str | None]] = {}
    for function in (node for node in body if isinstance(node, ast.FunctionDef)):
        arguments = (*function.args.args, *function.args.kwonlyargs)
        fields: dict[str, str | None] = {
            each.arg: each.annotation and ast.unparse(each.annotation) for each in arguments
        }
        if function.args.kwarg is not None:
            options = re.fullmatch(
                r"Unpack\[(\w+)\]", ast.unparse(function.args.kwarg.annotation or ast.Pass())
            )
            assert options is not None, f"{function.name} takes any keyword"
            fields |= typed_fields(kinds, options[1])
        assert function.returns is not None
        assert all(fields.values()), function.name
        declared[function.name] = fields
    for name, field in (("estimate", "gpu"), ("simulate", "gpu"), ("plan", "workers")):
        assert "Any" not in str(declared[name][field])
        assert "object" not in str(declared[name][field])
        assert "bogus" not in declared[name]


def typed_fields(kinds: dict[str, ast.ClassDef], name: str) -> dict[str, str]:
    """Return the fields of a TypedDict of the stub and of its bases, with their kinds."""
    found: dict[str, str] = {}
    for base in kinds[name].bases:
        found |= typed_fields(kinds, base.id) if isinstance(base, ast.Name) and base.id in kinds else {}
    lines = (line for line in kinds[name].body if isinstance(line, ast.AnnAssign))
    return found | {ast.unparse(line.target): ast.unparse(line.annotation) for line in lines}


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
FORMATS = ("table", "json", "csv", "html")
IN_PYTHON = """
import sys
import capacity
sys.path.insert(0, "docs")
import made_of_code, stub
print("halve" in dir(capacity), capacity.halve(number=3).half)
print("----", made_of_code.verb_table(), "----", stub.stub())
"""
NEW_ENTRY = {
    "help": "What is half of a number?",
    "function": "capacity.techniques.halving:halve",
    "answers": [{"name": "halve", "record": "capacity.techniques.halving:Half"}],
    "examples": ["halve --number 5"],
}


@pytest.mark.ci
def test_new_verb_in_two_files_reaches_every_surface(tmp_path: Path) -> None:
    """One module and one entry; the command line, help, Python, JSON, CSV, schema, HTML and docs have it."""
    checkout = copy_checkout(tmp_path)
    (checkout / "capacity/techniques/halving.py").write_text(NEW_MODULE, encoding="utf-8")
    path = checkout / "capacity/base/verbs.json"
    declared = json.loads(path.read_bytes())
    declared["verbs"]["halve"] = NEW_ENTRY
    path.write_text(json.dumps(declared), encoding="utf-8")

    asked = ("halve", "--number", "5", "--format")
    commands = (["--help"], ["halve", "--help"], ["schema", "halve"], *([*asked, form] for form in FORMATS))
    verbs, own, schema, table, record, rows, page = run_commands(checkout, commands)
    assert "What is half of a number?" in verbs
    assert "The number to halve." in own
    assert '"half"' in schema
    assert "2.5" in table
    assert json.loads(record) == {"schema": "capacity/halve/v1", "number": 5.0, "half": 2.5}
    assert rows.splitlines() == ["schema,number,half", "capacity/halve/v1,5.0,2.5"]
    assert "What is half of a number?" in page
    answered, table, stub = run_python(checkout, ["-c", IN_PYTHON]).split("----")
    assert answered.split() == ["True", "1.5"]
    assert "`capacity.halve`" in table
    assert "halve as halve" in stub
