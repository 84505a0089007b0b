"""Write `capacity/__init__.pyi` from the registry of verbs: `python docs/stub.py` (needs ruff).

The functions take the fields of their specs as `**options`. The stub declares these fields, so that editors complete
the keywords of `capacity.estimate(...)` and type checkers reject unknown ones.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import capacity
from capacity.base.spec import Spec

STUB = Path(capacity.__file__).with_suffix(".pyi")
KINDS = {
    bool: "bool",
    int: "int | str",
    float: "float | str",
    str: "str",
}  # texts as on the command line: "32k"
HEAD = '"""Made by docs/stub.py from the registry of verbs."""\n'
BUILTINS = {"str", "int", "float", "bool", "object", "None", "tuple", "list", "dict", "type"}


class Imports:
    """The imports of the stub, by module."""

    def __init__(self) -> None:
        self._public: dict[str, set[str]] = {}
        self._used: dict[str, set[str]] = {}
        self._modules: dict[str, str] = {}

    def publish(self, module: str, name: str) -> None:
        """Re-export a name."""
        self._public.setdefault(module, set()).add(name)

    def use(self, module: str, name: str) -> str:
        """Import a name for annotations; return its local name: with the module's where two modules define it."""
        local = name
        if self._modules.setdefault(name, module) != module:
            local = f"{name}Of{module.rpartition('.')[2].title().replace('_', '')}"
        self._used.setdefault(module, set()).add(f"{name} as {local}" if local != name else name)
        return local

    def lines(self) -> Iterator[str]:
        """Return the import statements."""
        for module in sorted({*self._public, *self._used}):
            public = self._public.get(module, set())
            yield from (f"from {module} import {name} as {name}" for name in sorted(public))
            yield from (
                f"from {module} import {name}" for name in sorted(self._used.get(module, set()) - public)
            )


def stub() -> str:
    """Return the text of `capacity/__init__.pyi`."""
    imports, verbs = Imports(), dict[str, Any]()
    for name, module in sorted(capacity._HOMES.items()):
        function = getattr(import_module(module), name)
        if hasattr(function, "specs"):
            verbs[name] = function
        else:
            imports.publish(function.__module__, name)
    for name in ("Any", "TypedDict", "Unpack"):
        imports.use("typing", name)
    own = {each.arg for function in verbs.values() for each in _parameters(_definition(function)[1])}
    specs = {spec.__name__: spec for function in verbs.values() for spec in function.specs}
    options = [_keywords(f"_{name}", "TypedDict", [spec], own) for name, spec in sorted(specs.items())]
    functions = [_function(name, function, own, imports) for name, function in verbs.items()]
    names = ", ".join(f'"{name}"' for name in sorted(capacity._HOMES))
    return "\n".join([HEAD, *imports.lines(), "", f"__all__ = [{names}]", *options, *functions, ""])


def _definition(function: Any) -> tuple[ast.Module, ast.FunctionDef]:
    """Return the syntax tree of a function's module, and the function in it."""
    tree = ast.parse(Path(inspect.getfile(inspect.unwrap(function))).read_text(encoding="utf-8"))
    found = (each for each in tree.body if isinstance(each, ast.FunctionDef))
    return tree, next(each for each in found if each.name == function.__name__)


def _parameters(node: ast.FunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _keywords(name: str, base: str, specs: Sequence[type[Spec]], without: set[str]) -> str:
    """Return a TypedDict with the fields of specs."""
    fields = {n: field for spec in specs for n, field in spec.model_fields.items() if n not in without}
    lines = [f"    {n}: {_kind(field.annotation)}" for n, field in fields.items()]
    return "\n".join([f"\nclass {name}({base}, total=False):", *(lines or ["    ..."])])


def _class_name(function: str) -> str:
    return f"_{function.title().replace('_', '')}Options"


def _kind(annotation: Any) -> str:
    """Return what a keyword takes: the plain types of its annotation, or Any where it has others."""
    held = [annotation, *get_args(annotation)]
    held += [each for inner in get_args(annotation) for each in get_args(inner)]
    names = [name for kind, name in KINDS.items() if kind in held]
    if not names or any(isinstance(kind, type) and kind not in (*KINDS, type(None)) for kind in held):
        return "Any"
    return " | ".join([*names, *(["None"] if type(None) in held else [])])


def _function(name: str, function: Any, own: set[str], imports: Imports) -> str:
    """Return a function with its own parameters and the fields of its specs.

    `own`: the names that are a parameter of some verb, and so no fields of the specs' own dictionaries.
    """
    tree, node = _definition(function)
    homes = _homes(tree, function.__module__)
    for each in _parameters(node):
        each.annotation = _plain(each.annotation)
    node.args.kw_defaults = [
        None if default is None else ast.Constant(...) for default in node.args.kw_defaults
    ]
    node.args.defaults = [ast.Constant(...) for _ in node.args.defaults]
    node.args.kwarg = ast.arg("options", ast.Name(f"Unpack[{_class_name(name)}]"))
    for part in (*(each.annotation for each in _parameters(node)), node.returns):
        for used in ast.walk(part) if part is not None else ():
            if isinstance(used, ast.Name) and used.id not in BUILTINS:
                used.id = imports.use(*homes[used.id])
    bases = ", ".join(f"_{spec.__name__}" for spec in function.specs)
    without = {n for spec in function.specs for n in spec.model_fields if n not in own}
    options = _keywords(
        _class_name(name), bases, function.specs, without | {each.arg for each in _parameters(node)}
    )
    return f"{options}\ndef {name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns or ast.Name('Any'))}: ..."


def _homes(tree: ast.Module, module: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name of each name in a module: what it imports, also for typing, and its own."""
    homes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        names += [each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)]
        homes |= {name: (module, name) for name in names}
    return homes


def _plain(annotation: ast.expr | None) -> ast.expr | None:
    """Return an annotation without the metadata of `Annotated`."""
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Annotated":
        return annotation.slice.elts[0]  # type: ignore[attr-defined]
    return annotation


if __name__ == "__main__":
    formatted = subprocess.run(
        ["ruff", "format", "--stdin-filename", STUB.name, "-"],
        input=stub(),
        capture_output=True,
        text=True,
        check=True,
    )
    STUB.write_text(formatted.stdout, encoding="utf-8")
