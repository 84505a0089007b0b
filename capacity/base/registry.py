"""Registry of all verbs (commands): the Python function, answers, schemas, tables, charts and help of each verb.

The entries are in `verbs.json`, which every command reads. To keep start-up fast, this module imports no other part of
the package: functions, records and specs are named as `module:name` and imported on first use. A new verb needs an
entry in `verbs.json`, the function with its record, and the functions that display it.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

STORED = ("deployment", "from_launch")


class Answer(NamedTuple):
    """A record that a verb returns, its name in the schema (`capacity/NAME/v1`) and the function that displays it.

    `view`: the function that declares the content of every output format; if empty, fields are listed by name.
    `question`: the heading of the HTML page. `unbounded`: whether it may contain infinite numbers, written as null.
    """

    name: str
    record: str
    view: str = ""
    question: str = ""
    unbounded: bool = False


class Alternative(NamedTuple):
    """A second function of a verb, which runs in place of the first if a flag such as --support is given."""

    flag: str
    function: str
    help: str
    answer: Answer


class Verb(NamedTuple):
    """A verb of the command line and of the Python API.

    `function` returns the answer in Python; `further` are additional public Python names of the verb. `command` is the
    command-line function of a verb that prints its answer itself. `shared`: names of flags that are declared in
    `SHARED_OPTIONS`, or as keywords with a `Flag` of the function `flags` (default: `function`). If `command` and
    `shared` are empty, the flags are all keywords with a `Flag` and the fields of the function's specs. `specs`:
    records whose fields are flags. `traffic_fields`: only these fields of Traffic are flags. `without`: fields that are
    not flags of this verb. `progress`: the unit of the progress bar. `unmet`: a property of the answer; if it is false,
    the exit code is 1. `reads`: key in `deployment.used_fields` of the verb's computations. `first`: the
    flags on the first help page. `options`: the help or the parser settings of each parameter of the command.
    """

    name: str
    help: str
    function: str = ""
    answers: tuple[Answer, ...] = ()
    command: str = ""
    flags: str = ""
    further: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    traffic_fields: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    progress: str = ""
    unmet: str = ""
    reads: str = ""
    first: str = ""
    examples: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


_FILE = json.loads(Path(__file__).with_name("verbs.json").read_bytes())


def _fill_placeholders(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts with `{name}` replaced from "words" of `verbs.json`, and `+NAME` by the list NAME of "lists"."""
    found: list[str] = []
    for text in texts:
        found += (
            _fill_placeholders(_FILE["lists"][text[1:]])
            if text[0] == "+"
            else [text.format(**_FILE["words"])]
        )
    return tuple(found)


def _verb(name: str, row: Mapping[str, Any]) -> Verb:
    fields = dict(row)
    answers = tuple(Answer(**each) for each in fields.pop("answers", ()))
    others = tuple(
        Alternative(**{**each, "answer": Answer(**each["answer"])}) for each in fields.pop("alternatives", ())
    )
    options = fields.pop("options", {})
    for key, value in fields.items():
        fields[key] = _fill_placeholders(value) if isinstance(value, list) else value.format(**_FILE["words"])
    return Verb(name, answers=answers, alternatives=others, options=options, **fields)


SHARED_OPTIONS: Mapping[str, Mapping[str, Any]] = _FILE["shared_options"]
"""Flags that many verbs share: parser settings, the `kind` of value, and the Python `keyword` that receives the
value."""
VERBS = tuple(_verb(name, row) for name, row in _FILE["verbs"].items())
GROUPS: dict[str, tuple[str, ...]] = {name: tuple(verbs.split()) for name, verbs in _FILE["groups"].items()}
BY_NAME = {verb.name: verb for verb in VERBS}  # and verbs of plug-ins that are in use
ANSWERS = {
    answer.name: answer
    for verb in VERBS
    for answer in (*verb.answers, *(other.answer for other in verb.alternatives))
}


def find_verb(name: str) -> Verb | None:
    """Return the verb with this name, or None. A verb of a plug-in is added to `BY_NAME` and `ANSWERS` on first use.

    Raises InvalidInput for a plug-in that cannot be loaded.
    """
    if name not in BY_NAME:
        from capacity.base.plugins import load_plugin

        verb = load_plugin(
            "verbs", name, "a Verb with this name", lambda it: isinstance(it, Verb) and it.name == name
        )
        if verb is None:
            return None
        BY_NAME[name] = verb
        ANSWERS.update({answer.name: answer for answer in verb.answers})
    return BY_NAME[name]


def split_path(path: str) -> tuple[str, str]:
    """Split `module:name` into module and name."""
    module, _, name = path.partition(":")
    return module, name


def public_names() -> dict[str, str]:
    """Return a mapping from the public Python names of the verbs to their modules."""
    paths = [path for verb in VERBS for path in (verb.function, *verb.further) if path]
    return {name: module for module, name in map(split_path, paths)}
