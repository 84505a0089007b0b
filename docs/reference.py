"""Reference pages of the site and the man page, made from the registry: commands with their flags, and schemas.

`docs/conf.py` calls `write_pages` when Sphinx starts. The pages are not stored in the repository.

    sphinx-build docs site                   # the site
    sphinx-build -b man docs man             # man/capacity.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from capacity.base.registry import BY_NAME, GROUPS, Verb
from capacity.cli.help import spell_option
from capacity.cli.verbs import command_of
from capacity.report.schemas import json_schema, schema_names

COMMANDS, SCHEMAS = "reference/commands", "reference/schemas"


def write_pages(docs: Path) -> None:
    """Write the pages in the folder of the documentation; files that would not change keep their time."""
    for name, lines in ((COMMANDS, command_page()), (SCHEMAS, schema_page())):
        path, text = docs / f"{name}.md", "\n".join(lines) + "\n"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def command_page() -> Iterator[str]:
    """Yield the lines of the page of commands, then of the flags that describe a deployment."""
    yield from ("# Commands and flags", "", "`capacity COMMAND [flags]`: every command with its flags.", "")
    shared: dict[str, dict[str, Any]] = {}
    for group, names in GROUPS.items():
        yield from (f"## {group}", "")
        for name in names:
            yield from _command(BY_NAME[name], shared)
    for panel, options in shared.items():
        yield from (f"## Flags of a deployment: {panel.lower()}", "")
        for option in options.values():
            yield from _flag(option)


def _command(verb: Verb, shared: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a command's text and own flags; collect the flags of a deployment in `shared`."""
    yield from (f"### {verb.name}", "", verb.help, "")
    yield from (line for example in verb.examples for line in ("```sh", f"capacity {example}", "```", ""))
    of_deployment: dict[str, list[str]] = {}
    for option in command_of(verb).params:
        if option.name == "help" or getattr(option, "hidden", False):
            continue
        panel = getattr(option, "rich_help_panel", None)
        if panel:
            shared.setdefault(panel, {})[option.name] = option
            of_deployment.setdefault(panel, []).append(f"`{option.opts[0]}`")
        else:
            yield from _flag(option)
    for panel, flags in of_deployment.items():
        yield from (f"{panel} flags: {', '.join(flags)}.", "")


def _flag(option: Any) -> Iterator[str]:
    name = spell_option(option) if option.param_type_name == "option" else option.name.upper()
    yield from (f"- `{name}`: {(option.help or '').strip()}", "")


def schema_page() -> Iterator[str]:
    """Yield the lines of the page of JSON schemas: the fields of each answer and file format, then nested records."""
    yield from ("# JSON schemas", "", "`capacity schema NAME` prints the complete schema.", "")
    nested: dict[str, Mapping[str, Any]] = {}
    for name in schema_names():
        schema = json_schema(name)
        nested |= schema.get("$defs", {})
        yield from _fields(f"## {name}", schema)
    yield from ("## Nested records", "")
    for name, schema in sorted(nested.items()):
        yield from _fields(f"### {name}", schema)


def _fields(heading: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a heading, the description of a schema, and a table of its fields."""
    yield from (heading, "", _in_one_line(schema), "")
    if properties := schema.get("properties"):
        yield from ("| field | type | description |", "| --- | --- | --- |")
        for field, row in properties.items():
            yield f"| `{field}` | {_type(row)} | {_in_one_line(row)} |"
        yield ""


def _in_one_line(schema: Mapping[str, Any]) -> str:
    return " ".join(str(schema.get("description", "")).split()).replace("|", "\\|")


def _type(row: Mapping[str, Any]) -> str:
    """Return the JSON type of a field in words."""
    if "anyOf" in row:
        return " or ".join(map(_type, row["anyOf"]))
    if "$ref" in row:
        name = str(row["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in row or "const" in row:
        return " or ".join(f"`{value}`" for value in row.get("enum", [row.get("const")]))
    if row.get("type") == "array":
        return f"array of {_type(row.get('items', {}))}"
    return str(row.get("type", "any"))
