"""Draw texts at random for a reader who judges whether they are understood at the first reading.

python .ci/draw_texts.py --seed 1 --count 60        docstrings, help texts, and notes or errors
python .ci/draw_texts.py --all capacity/planning    every docstring and message below a folder, in order
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main

PACKAGES = ("capacity", "app", "validate")
WORDS = 5  # a string of fewer words is a label, not a sentence
CODE = ("from ", "import ", "#include")  # a string that begins so is a program


def text_of(node: ast.expr) -> str:
    """Return the text of a string or f-string, with the source of each replaced part in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part)
        for part in parts
    )


def signature(node: ast.AST, names: dict[ast.AST, str]) -> str:
    """Return the name of a documented object with the classes and functions around it, and its parameters."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{names[node]}({ast.unparse(node.args)}){returns}"
    return names[node]


def qualified_names(node: ast.AST, prefix: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield each module, class and function below a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield child, prefix + child.name
            inner = f"{prefix}{child.name}."
        yield from qualified_names(child, inner)


def texts_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, place, text) of each docstring and message in a file."""
    tree = ast.parse(path.read_text())
    names: dict[ast.AST, str] = {tree: "module", **dict(qualified_names(tree))}
    owners = {node.body[0].value: node for node in names if ast.get_docstring(node)}  # type: ignore[arg-type,attr-defined]
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if node in parts or not isinstance(node, ast.JoinedStr | ast.Constant):
            continue
        if node in owners:
            yield "docstring", f"{path}:{node.lineno} {signature(owners[node], names)}", text_of(node)
        elif len(text_of(node).split()) >= WORDS and not text_of(node).startswith(CODE):
            yield "message", f"{path}:{node.lineno}", text_of(node)


def help_texts() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, place, text) of the help of each verb and flag, each text once."""
    from capacity.cli.main import app

    group: Any = typer.main.get_command(app)
    context = click.Context(group)
    texts = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        texts[command.help] = name
        for flag in command.make_context(name, [], resilient_parsing=True).command.params:
            if not getattr(flag, "hidden", False):  # the help of --output has the texts of hidden flags
                texts.setdefault(getattr(flag, "help", None), f"{name} {flag.opts[0]}")
    yield from (("help", place, text) for text, place in texts.items() if text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--all", metavar="FOLDER")
    options = parser.parse_args()
    folders = [options.all] if options.all else PACKAGES
    found = [
        each for folder in folders for path in sorted(Path(folder).rglob("*.py")) for each in texts_of(path)
    ]
    if options.all:
        for kind, place, text in found:
            print(f"[{kind}] {place}\n{text}\n")
        return
    found += help_texts()
    draw = random.Random(options.seed)
    for kind in ("docstring", "help", "message"):
        print(f"== {kind}")
        for _, place, text in draw.sample([each for each in found if each[0] == kind], options.count):
            print(f"{place}\n    {text}\n")


if __name__ == "__main__":
    main()
