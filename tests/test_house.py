"""The house's own rules: the public API, what a wheel carries, what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import capacity

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("capacity", "app", "validate", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


def test_the_public_api_is_sorted_complete_and_importable() -> None:
    assert capacity.__all__ == sorted(capacity.__all__)
    assert set(capacity.__all__) == set(capacity._HOMES)
    for name in capacity.__all__:
        assert getattr(capacity, name).__doc__, name
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = capacity.nonesuch


def test_no_module_is_hidden_by_a_function_of_its_name() -> None:
    modules = {path.stem for path in (ROOT / "capacity").iterdir()}
    assert not modules & set(capacity.__all__)


def test_every_module_says_what_it_is() -> None:
    """Its text begins with the docstring, after comments at most."""
    begins = re.compile(r'(#.*\n|\n)*"""\S')
    assert [path for path in SOURCES if not begins.match(path.read_text(encoding="utf-8"))] == []


FORBIDDEN_CALLS = {"eval", "exec", "pickle.load", "pickle.loads", "joblib.load", "torch.load", "os.system"}


def test_nothing_untrusted_is_ever_executed() -> None:
    words = {name.rpartition(".")[2] for name in FORBIDDEN_CALLS} | {"trust_remote_code", "shell"}
    suspect = re.compile(rf"\b({'|'.join(words)})\b")
    for path in (path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if suspect.search(text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "shell"):
                assert isinstance(node.value, ast.Constant), f"{path}:{node.value.lineno}"
                assert node.value.value is False, f"{path}:{node.value.lineno}"


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split() if (ROOT / name).is_file()]


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine, no package registry's host."""
    hosts = re.compile(
        r"pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org|/root/|/work/|/home/\w+/"
    )
    for path in tracked():
        if path == Path(__file__):
            continue
        found = hosts.search(path.read_bytes().decode("utf-8", errors="replace"))
        assert found is None, f"{path.relative_to(ROOT)}: {found and found[0]}"


def test_the_top_level_folders_are_those_of_the_architecture() -> None:
    allowed = {"capacity", "hardware_profiles", "app", "validate", "tests", "benchmarks", "docs"}
    assert {
        path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1
    } <= {
        *allowed,
        ".ci",
        ".github",
        ".streamlit",
    }


def test_the_wheel_carries_every_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built without compiling; installing and running it outside the checkout is CI's last step."""
    pytest.importorskip("hatchling")
    monkeypatch.setenv("CAPACITY_CORE", "off")
    from hatchling.builders.wheel import WheelBuilder

    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = set(zipfile.ZipFile(wheel).namelist())
    data = [p for p in (ROOT / "capacity").rglob("*") if p.suffix in (".toml", ".json", ".csv", ".typed")]
    for path in data:
        assert path.relative_to(ROOT).as_posix() in names
    for path in (ROOT / "hardware_profiles").glob("*.toml"):
        assert f"capacity/hardware_profiles/{path.name}" in names


def test_extras_name_what_the_readme_promises() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"dashboard", "gpu", "test", "all"} <= set(project["optional-dependencies"])
    assert project["name"] == "llm-capacity"
    assert project["scripts"] == dict.fromkeys(("capacity", "llm-capacity"), "capacity.__main__:main")


LOOSE_TYPE = re.compile(r"dict\[str, Any\]")
MOST_LOOSE_TYPES = 20


def test_records_have_types() -> None:
    """`dict[str, Any]` stands where JSON or TOML is read or written, nowhere else."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "capacity").rglob("*.py"))
    lines = [line for text in texts for line in text.splitlines()]
    assert sum(bool(LOOSE_TYPE.search(line)) for line in lines) <= MOST_LOOSE_TYPES


WORDS = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(
        (ROOT / "tests/data/bare_names.toml").read_text(encoding="utf-8")
    ).items()
}


def is_bare(name: str) -> bool:
    """Return whether a function's name is a preposition, pronoun or participle without an object."""
    word = name.strip("_")
    if name.startswith("__") or "_" in word:
        return False
    ending = word.endswith(("ed", "ing")) and word not in WORDS["nouns"]
    return word in WORDS["prepositions_and_pronouns"] or word in WORDS["participles"] or ending


def function_names(node: ast.AST) -> Iterator[str]:
    """Yield names of functions and methods below a node, except properties, which are named like fields."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not any(
            "property" in ast.dump(decorator) for decorator in child.decorator_list
        ):
            yield child.name
        yield from function_names(child)


def test_no_function_is_named_by_a_bare_preposition_or_participle() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] in ("capacity", "app", "validate")
        for name in function_names(ast.parse(path.read_text(encoding="utf-8")))
        if is_bare(name)
    ]
    assert not found


@pytest.mark.parametrize("name", ["of", "_with", "held", "_said", "beside", "drawn", "scaled", "typing"])
def test_bare_names_are_found(name: str) -> None:
    assert is_bare(name)


@pytest.mark.parametrize(
    "name", ["scale", "bytes_of", "_held_blocks", "__len__", "embed", "timing", "read", "split"]
)
def test_verbs_and_nouns_are_no_bare_names(name: str) -> None:
    assert not is_bare(name)
