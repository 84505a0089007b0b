"""Check the language of README, docs, help, messages and docstrings; or draw samples of them for a reader.

    python .ci/prose.py                      # exit 1 if a text contains a word of .ci/words.toml, or a typing error
    python .ci/prose.py --kinds page help    # only README, docs and help
    python .ci/prose.py draw --seed 1 -n 60  # 60 docstrings, 60 help texts and 60 messages, drawn at random

Messages are strings of four words and more outside of docstrings; code spans in backticks are not checked.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
WORDS = Path(__file__).with_name("words.toml")
PYTHON = ("capacity/*.py", "app/*.py", "validate/*.py")
HELP = ("capacity/base/verbs.json", "capacity/*/flags.json")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
NOT_OURS = {"docs/claims.md"}  # quotations
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.S)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MESSAGE_WORDS = 4
KINDS = ("docstring", "help", "message", "page")


class Text(NamedTuple):
    """A text that a person reads: its kind, file, line and content."""

    kind: str
    path: str
    line: int
    content: str


def tracked_files(*patterns: str) -> list[str]:
    """Paths of the files in the repository that match."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def docstring_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    """String constants that are docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0].value  # type: ignore[attr-defined,misc]


def python_texts(path: str) -> Iterator[Text]:
    """Docstrings and messages of a module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    docstrings = {id(node): node for node in docstring_nodes(tree)}
    for node in docstrings.values():
        yield Text("docstring", path, node.lineno, str(node.value))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            content = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            content = "" if id(node) in docstrings else node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", content)) >= MESSAGE_WORDS and " " in content:
            yield Text("message", path, node.lineno, content)


def strings_in(value: Any) -> Iterator[str]:
    """Sentences anywhere in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        yield from itertools.chain.from_iterable(strings_in(each) for each in value)
    elif isinstance(value, str) and (
        value.rstrip().endswith((".", "?")) or value.count(" ") >= MESSAGE_WORDS
    ):
        yield value


def help_texts(path: str) -> Iterator[Text]:
    """Help of verbs and flags in a JSON file; `examples` and `first` are commands and names."""
    source = (ROOT / path).read_text(encoding="utf-8")
    document = json.loads(
        source, object_hook=lambda each: {k: v for k, v in each.items() if k not in COMMANDS}
    )
    for content in strings_in(document):
        begin = json.dumps(content, ensure_ascii=False)[1:60]
        yield Text("help", path, source[: max(0, source.find(begin))].count("\n") + 1, content)


COMMANDS = {"examples", "first", "words", "function", "record", "view"}


def page_texts(path: str) -> Iterator[Text]:
    """Paragraphs of a page."""
    line = 1
    source = CODE.sub(lambda code: "\n" * code[0].count("\n"), (ROOT / path).read_text(encoding="utf-8"))
    for paragraph in re.split(r"(\n\s*\n)", source):
        if paragraph.strip():
            yield Text("page", path, line, paragraph)
        line += paragraph.count("\n")


def all_texts() -> Iterator[Text]:
    """Every text that is checked."""
    readers = ((PYTHON, python_texts), (HELP, help_texts), (PAGES, page_texts))
    for patterns, read in readers:
        for path in tracked_files(*patterns):
            if path not in NOT_OURS:
                yield from read(path)


def findings(texts: Iterator[Text], words: dict[str, str]) -> Iterator[str]:
    """A line for each word of the list in a text: where it is, and what to write instead."""
    pattern = re.compile(r"\b(?:" + "|".join(words) + r")\b", re.I)
    for text in texts:
        content = CODE.sub(lambda code: "\n" * code[0].count("\n"), text.content)
        for found in pattern.finditer(content):
            line = text.line + content[: found.start()].count("\n")
            better = next(new for old, new in words.items() if re.fullmatch(old, found[0], re.I))
            yield f"{text.path}:{line}: {text.kind}: '{found[0]}': {better}"


def check(kinds: list[str]) -> int:
    """Print findings in texts of these kinds and typing errors in all; return 1 if there are any."""
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))["instead"]
    found = list(findings((text for text in all_texts() if text.kind in kinds), words))
    print("\n".join([*found, f"{len(found)} findings"]))
    spelled = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *tracked_files(*PYTHON, *HELP, *PAGES)], cwd=ROOT, check=False
    )
    return int(bool(found) or spelled.returncode != 0)


def draw(kinds: list[str], seed: int, count: int) -> None:
    """Print up to `count` texts of each kind, drawn at random."""
    texts = list(all_texts())
    for kind in kinds:
        of_kind = [text for text in texts if text.kind == kind]
        for number, text in enumerate(random.Random(seed).sample(of_kind, min(count, len(of_kind))), 1):
            print(f"{kind} {number}, {text.path}:{text.line}\n{text.content.strip()}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", nargs="?", choices=("check", "draw"), default="check")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=60, help="texts of each kind")
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS, choices=KINDS, help="texts to check, or to draw from"
    )
    given = parser.parse_args()
    if given.action == "check":
        sys.exit(check(given.kinds))
    draw(given.kinds, given.seed, given.n)
