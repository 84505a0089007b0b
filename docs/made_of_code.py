"""What the handbook takes from the code: `python docs/made_of_code.py` writes it into the pages.

The rooms of `capacity/` and who imports whom, in docs/architecture.md; the routers, in docs/deployments.md; the claims
of the field beside our numbers, in docs/claims.md; the verbs, in docs/api.md; rules and defaults of engine releases,
in docs/engines.md.

An arrow is an import; the number beside it counts those that it stands for. Arrows that follow from longer ways (A to
C where A to B to C is drawn) are left out of the picture and listed in the table below it. A dotted arrow is one verb
of the command line that starts the dashboard or the harness.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
EDGES = {"app": ROOT / "app" / "capacity_app", "validate": ROOT / "validate" / "capacity_validate"}
BY_A_VERB = {("cli", "app"), ("cli", "validate")}  # imported only when that verb runs
START, END = "<!-- made by docs/made_of_code.py -->", "<!-- end of what is made -->"

Arrows = Counter[tuple[str, str]]


def floors() -> list[list[str]]:
    """The rooms from the top down, those of one floor together: the import contract in pyproject.toml."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in layers]


def rooms() -> dict[str, Path]:
    """Every room's folder: those of `capacity/`, and the two packages above it."""
    names = [room for floor in floors() for room in floor]
    return EDGES | {name: ROOT / "capacity" / name for name in names}


def imported_room(module: str) -> str | None:
    """The room that a dotted name leads to; None outside the project."""
    top, _, rest = module.partition(".")
    edges = {folder.name: room for room, folder in EDGES.items()}
    return edges.get(top) or (rest.partition(".")[0] if top == "capacity" and rest else None)


def arrows() -> Arrows:
    """Imports between rooms, local ones and those for typing included."""
    counted: Arrows = Counter()
    for room, folder in rooms().items():
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for target in {imported_room(name) for name in _modules(node)} - {room, None}:
                    counted[room, str(target)] += 1
    return counted


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and not node.level:
        if node.module == "capacity":
            return [f"capacity.{alias.name}" for alias in node.names if alias.name in rooms()]
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def reduced(counted: Arrows) -> list[tuple[str, str]]:
    """The arrows that do not follow from longer ways."""
    below: dict[str, set[str]] = {room: set() for room in rooms()}
    for source, target in set(counted) - BY_A_VERB:
        below[source].add(target)

    def reach(room: str) -> set[str]:
        return below[room].union(*(reach(next_room) for next_room in below[room]))

    return [
        (source, target)
        for source in below
        for target in sorted(below[source])
        if not any(target in reach(other) for other in below[source] - {target})
    ]


def drawing() -> str:
    """The picture (Mermaid) and the table of all arrows, as Markdown."""
    counted = arrows()
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {source} -->|{counted[source, target]}| {target}" for source, target in reduced(counted)]
    lines += [f"    {source} -.-> {target}" for source, target in sorted(BY_A_VERB)]
    lines += ["```", "", "| room | imports from |", "| --- | --- |"]
    for room in rooms():
        targets = sorted(target for source, target in counted if source == room)
        if targets:
            listed = ", ".join(f"{target} {counted[room, target]}" for target in targets)
            lines.append(f"| `{room}` | {listed} |")
    return "\n".join(lines)


def router_table() -> str:
    """The routers and what each does, as Markdown."""
    from capacity.deployment.routers import ROUTERS

    rows = [f"| `{name}` | {(router.__doc__ or '').splitlines()[0]} |" for name, router in ROUTERS.items()]
    return "\n".join(["| `--router` | description |", "| --- | --- |", *rows])


def claim_table() -> str:
    """The claims of the field recomputed, as Markdown."""
    from claims import table

    return table()


def verb_table() -> str:
    """Return the verbs with their Python names and schemas, as Markdown."""
    from capacity.base.registry import VERBS

    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in dict.fromkeys(names))

    rows = []
    for verb in VERBS:
        paths = (verb.function, *verb.further)
        python = listed(f"capacity.{path.partition(':')[2]}" for path in paths if path)
        answers = listed([verb.name, *(answer.name for answer in verb.answers[1:])] if verb.answers else [])
        rows.append(f"| `{verb.name}` | {python} | {answers} | {' '.join(verb.help.split())} |")
    return "\n".join(
        ["| verb | Python | `capacity schema` | what it answers |", "| --- | --- | --- | --- |", *rows]
    )


def release_table() -> str:
    """Return scheduling rules and defaults by release, and how our entries differ, as Markdown."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from release_facts import handbook_tables
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return handbook_tables()


MADE: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "architecture.md": drawing,
    ROOT / "docs" / "deployments.md": router_table,
    ROOT / "docs" / "claims.md": claim_table,
    ROOT / "docs" / "api.md": verb_table,
    ROOT / "docs" / "engines.md": release_table,
}


def written(path: Path) -> str:
    """A page with what is made of the code as it is now."""
    head, _, rest = path.read_text(encoding="utf-8").partition(START)
    return f"{head}{START}\n\n{MADE[path]()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for path in MADE:
        path.write_text(written(path), encoding="utf-8")
