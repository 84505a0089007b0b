"""Registry of all verbs (commands): Python function, answers, schemas, tables, charts and help of each.

The entries are in `verbs.json`, which every command reads. This module imports nothing of the package: functions,
records and specs are named as `module:name` and imported on first use. A new verb needs one entry there, the function
with its record, and the functions that display it.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

STORED = ("deployment", "from_launch")


class Answer(NamedTuple):
    """A record that a verb returns, its name in the schema (`capacity/NAME/v1`) and the functions that display it.

    `view`: the function that declares what every output format shows; without one, fields are listed by their names.
    `question`: the heading of the HTML page. `unbounded`: the record may contain infinite numbers, written as null.
    """

    name: str
    record: str
    view: str = ""
    question: str = ""
    unbounded: bool = False


class Alternative(NamedTuple):
    """A second function of a verb, selected by a switch such as --support."""

    flag: str
    function: str
    help: str
    answer: Answer


class Verb(NamedTuple):
    """A verb of the command line and of the Python API.

    `function` returns the answer in Python; `further` are additional public Python names of the verb. `command` is the
    command-line function of a verb that prints its answer itself. `shared`: the names of options that the verb has in
    common with other verbs (`SHARED_OPTIONS`), or that are keywords with a `Flag` of `flags`, by default of
    `function`. If `command` and `shared` are empty, the flags are all keywords with a `Flag` and the fields of the
    function's specs. `specs`: records whose fields are flags. `traffic_fields`: only these fields of Traffic are
    flags. `without`: fields that are not flags of this verb. `progress`: the unit that the function's progress counts.
    `unmet`: the property of the answer that, if false, gives exit code 1. `reads`: the parts of a deployment that
    change the answer (`deployment.reading`). `first`: the flags of the first help page. `options`: for each parameter
    of the command, its help or a table of parser settings.
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
    """Return the texts with placeholders filled in; `+NAME` is replaced by the list NAME in `verbs.json`."""
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
"""Options that many verbs share: their parser settings, the `kind` of value, and the `keyword` that each becomes."""
VERBS = tuple(_verb(name, row) for name, row in _FILE["verbs"].items())
GROUPS: dict[str, tuple[str, ...]] = {name: tuple(verbs.split()) for name, verbs in _FILE["groups"].items()}
BY_NAME = {verb.name: verb for verb in VERBS}  # and verbs of plug-ins that are in use
ANSWERS = {
    answer.name: answer
    for verb in VERBS
    for answer in (*verb.answers, *(other.answer for other in verb.alternatives))
}


def find_verb(name: str) -> Verb | None:
    """Return a verb by its name, or None. A plug-in's verb joins `BY_NAME` and `ANSWERS` when it is first used.

    Raises InvalidInput for a broken plug-in.
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
    """Return the module and the name of `module:name`."""
    module, _, name = path.partition(":")
    return module, name


def public_names() -> dict[str, str]:
    """Return the public Python names of the verbs, each with its module."""
    paths = [path for verb in VERBS for path in (verb.function, *verb.further) if path]
    return {name: module for module, name in map(split_path, paths)}
