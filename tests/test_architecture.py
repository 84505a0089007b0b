"""The plan of the house as docs/architecture.md draws it: rooms, arrows and walks are those of the code."""

from __future__ import annotations

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from long_forms import mostly_ci

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import made_of_code  # noqa: E402

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOP = re.compile(r"^\d+\. `(?P<path>[\w/.]+)` `(?P<name>[\w.]+)`", re.MULTILINE)
MOST_HOPS = 10
MOST_FLOORS = 15


def walks() -> dict[str, list[tuple[str, str]]]:
    """Heading of each walk and its places, as (path, name)."""
    sections = re.split(r"^### ", PAGE.partition("## Walks")[2], flags=re.MULTILINE)[1:]
    return {text.splitlines()[0]: HOP.findall(text) for text in sections}


@pytest.mark.parametrize(
    "path",
    mostly_ci(made_of_code.MADE, [path for path in made_of_code.MADE if path.stem != "claims"]),
    ids=lambda path: path.stem,
)
def test_what_the_handbook_takes_from_the_code_is_as_the_code_is(path: Path) -> None:
    """The drawing of the rooms is that of the imports; the routers are those there are."""
    page = path.read_text(encoding="utf-8")
    assert made_of_code.written(path) == page, "the code has changed: run `python docs/made_of_code.py`"


def test_the_root_holds_rooms_and_nothing_else() -> None:
    entries = {path.name for path in (ROOT / "capacity").iterdir() if path.name != "__pycache__"}
    rooms = {room for floor in made_of_code.floors() for room in floor}
    assert entries == rooms | {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
    assert len(made_of_code.floors()) <= MOST_FLOORS


@pytest.mark.parametrize("room", sorted(made_of_code.rooms()))
def test_every_room_says_what_it_is_for(room: str) -> None:
    """What comes in, what goes out, where to start reading."""
    source = (made_of_code.rooms()[room] / "__init__.py").read_text(encoding="utf-8")
    front = ast.get_docstring(ast.parse(source)) or ""
    assert room in made_of_code.EDGES or 4 <= len(front.splitlines()) <= 12
    assert room in made_of_code.EDGES or re.search(
        r"\bIn(put)?\b.*\b[Oo]ut(put)?\b.*Start\s+(reading|with)", front, re.DOTALL
    )
    assert f"`{room}" in PAGE


@pytest.mark.parametrize("name", sorted(walks()))
def test_a_walk_goes_one_way_and_every_place_on_it_exists(name: str) -> None:
    hops = walks()[name]
    assert 1 < len(hops) <= MOST_HOPS
    for path, function in hops:
        assert defines(ROOT / path, function), f"{path} has no {function}"


def test_there_are_four_walks_and_none_goes_back_and_forth() -> None:
    assert len(walks()) == 4
    for name, hops in walks().items():
        visited = [room for room, _ in _runs([Path(path).parts[1] for path, _ in hops])]
        assert len(visited) == len(set(visited)), f"{name}: {visited}"


def _runs(rooms: list[str]) -> list[tuple[str, str]]:
    """Each room that a walk enters, with the room it comes from."""
    return [(room, before) for before, room in pairwise(["", *rooms]) if room != before]


def defines(path: Path, dotted: str) -> bool:
    """Whether the file defines a function, class, method, attribute or TOML key of that name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return dotted.rpartition(".")[2] in text
    body: list[ast.stmt] = ast.parse(text).body
    for part in dotted.split("."):
        holder = next((node for node in body if part in _names(node)), None)
        if holder is None:
            return False
        body = getattr(holder, "body", [])
    return True


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


READ_FILES = {  # modules that read files without `external_files`, and which: never one that a user or a file names
    "app/capacity_app/app_pages/plan.py": "a plan that this session wrote",
    "app/capacity_app/example_files.py": "its own examples",
    "app/capacity_app/launch.py": "its own configuration",
    "app/capacity_app/preload.py": "pages of the installed streamlit",
    "app/capacity_app/watch_view.py": "its own page",
    "capacity/answers/data_version.py": "data of the package",
    "capacity/answers/published_runs.py": "data of the package",
    "capacity/answers/records.py": "data of the package",
    "capacity/answers/startup.py": "data of the package",
    "capacity/base/data_files.py": "data of the package",
    "capacity/base/external_files.py": "everything else",
    "capacity/base/html.py": "data of the package",
    "capacity/base/registry.py": "data of the package",
    "capacity/deployment/drafts.py": "data of the package",
    "capacity/deployment/engines/files.py": "data of the package",
    "capacity/deployment/flag_table.py": "data of the package",
    "capacity/deployment/launch_writers.py": "data of the package",
    "capacity/deployment/server_forms.py": "data of the package",
    "capacity/deployment/use_cases.py": "data of the package",
    "capacity/model/presets.py": "data of the package",
    "capacity/planning/sweeps/store.py": "/proc",
    "capacity/planning/sweeps/sweep_spec.py": "digest of a file that was read",
    "capacity/planning/workers/environment_fingerprint.py": "digests of files that were read",
    "capacity/report/deploy_files.py": "data of the package",
    "capacity/report/figures/gantt.py": "data of the package",
    "capacity/report/figures/picture.py": "data of the package",
    "capacity/report/kubernetes.py": "data of the package",
    "capacity/report/server_form_files.py": "data of the package",
    "capacity/service/quotas.py": "/proc",
    "capacity/simulator/core/build.py": "sources of the package",
    "capacity/simulator/core/interface.py": "sources of the package",
    "capacity/simulator/core/library.py": "the compiled library and its lock",
    "validate/capacity_validate/cases.py": "a mark that this process wrote",
    "validate/capacity_validate/collective_times.py": "times that its own processes wrote",
    "validate/capacity_validate/devices.py": "/proc and /sys",
    "validate/capacity_validate/environment.py": "/sys and sources of the package",
    "validate/capacity_validate/real_engine.py": "the log of a server that it started",
    "validate/capacity_validate/submission.py": "files that it wrote",
    "validate/capacity_validate/watch_metrics.py": "data of the package",
}
READS = {"read_text", "read_bytes"}


def reads_a_file(node: ast.AST) -> bool:
    """Whether a call reads a file by its path: `path.read_text()`, `open(path)` or `path.open()` but to write."""
    if not isinstance(node, ast.Call):
        return False
    function, words = node.func, [a.value for a in node.args if isinstance(a, ast.Constant)]
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    keywords = {keyword.arg for keyword in node.keywords}
    if name in READS:
        return isinstance(function, ast.Attribute) and not node.args
    if name in ("load_all", "safe_load", "safe_load_all") and ast.unparse(function).startswith("yaml."):
        return True
    writes = any(isinstance(word, str) and word[:1] in ("w", "a", "x") for word in words)
    opens_path = isinstance(function, ast.Name) or not node.args or isinstance(node.args[0], ast.Constant)
    return name == "open" and opens_path and not writes and bool(node.args or keywords)


def test_only_external_files_reads_what_a_user_or_a_file_names() -> None:
    reading = {
        path.relative_to(ROOT).as_posix()
        for folder in ("capacity", "app", "validate")
        for path in (ROOT / folder).rglob("*.py")
        if any(reads_a_file(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert reading == set(READ_FILES), reading ^ set(READ_FILES)


LONGEST_WITHOUT = 100  # lines of a module that other modules' tests may cover


def places_of_tests(module: Path) -> list[Path]:
    """Where a module's tests may stand: at its path, or at that of a folder that it is in."""
    room = ROOT / "tests" / module.parts[0]
    beside = (ROOT / "tests").joinpath(*module.parts[:-1]) / f"test_{module.name}"
    return [
        beside,
        room / f"test_{module.name}",
        *(room / f"test_{folder}.py" for folder in module.parts[1:-1]),
    ]


def test_a_module_finds_its_tests_by_its_path() -> None:
    library = ROOT / "capacity"
    modules = [path.relative_to(library) for path in library.rglob("*.py") if path.name != "__init__.py"]
    untested = [
        module.as_posix()
        for module in modules
        if len(module.parts) > 1
        and len((library / module).read_text(encoding="utf-8").splitlines()) > LONGEST_WITHOUT
        and not any(path.is_file() for path in places_of_tests(module))
    ]
    assert untested == []
