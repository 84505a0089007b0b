"""The JSON schemas of what the verbs answer, and of the files that they read, made from the records themselves.

What a record's `to_dict()` adds to its fields is written here; a test validates real answers of every verb.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

from capacity.base.errors import UnknownName
from capacity.techniques.registry import QUESTIONS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
OBJECT: Schema = {"type": "object"}


def schema_names() -> tuple[str, ...]:
    """Every name that `json_schema` knows."""
    return tuple(_MAKERS)


def json_schema(name: str) -> Schema:
    """The JSON schema of a verb's answer, or of a file: `deployment`, `sweep-file`. Raises UnknownName."""
    if name not in _MAKERS:
        raise UnknownName("schema", name, _MAKERS)
    return {"$schema": DIALECT, **_MAKERS[name]()}


def _of(module: str, kind: str, **changed: Schema) -> Callable[[], Schema]:
    """The schema of a record; `changed` are properties that `to_dict()` adds or writes in another way."""

    return lambda: _described(getattr(import_module(module), kind), changed)


def _answer_of(module: str, question: str) -> Callable[[], Schema]:
    """The schema of the record that a function returns."""
    return lambda: _described(get_type_hints(getattr(import_module(module), question))["return"], {})


def _described(record: type, changed: Schema) -> Schema:
    from pydantic import TypeAdapter

    described: Schema = TypeAdapter(record).json_schema(mode="serialization", by_alias=True)
    return _with(described, _named(record) | changed)


def _named(record: Any) -> Schema:
    return {"schema": {"const": record.SCHEMA}} if hasattr(record, "SCHEMA") else {}


def _with(described: Schema, properties: Schema) -> Schema:
    required = described.get("required", [])
    return {
        **described,
        "properties": {**described["properties"], **properties},
        "required": [*required, *(name for name in properties if name not in required)],
    }


def _infinite_as_null(make: Callable[[], Schema]) -> Callable[[], Schema]:
    """Of answers that may hold an infinite number (a rate of requests that all come at once), written as null."""

    def loosened(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("type") == "number":
                return value | NUMBER_OR_NULL
            return {name: loosened(item) for name, item in value.items()}
        return [loosened(item) for item in value] if isinstance(value, list) else value

    return lambda: loosened(make())


def _simulation() -> Schema:
    from capacity.answers.records import Simulation

    return Simulation.json_schema()


def _plan() -> Schema:
    """A plan's candidates are written as their label, pools and replicas."""
    from capacity.planning.records import Ranked

    written = [name for name in Ranked.__slots__ if name != "candidate"]
    ranked = {
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "pool": OBJECT,
            "num_gpus": {"type": "integer", "minimum": 1},
            "billed_gpus": {"type": "integer", "minimum": 1},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "trial": OBJECT,
            "quality": OBJECT,
            "cost": {"type": ["object", "null"]},
            "tokens_per_s_per_gpu": NUMBER,
        },
        "required": ["label", "replicas", *written, "tokens_per_s_per_gpu"],
    }
    rejected = {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["replicas", "kind", "reason"],
    }
    return _of(
        "capacity.planning.records",
        "Plan",
        ranked={"type": "array", "items": ranked},
        rejected={"type": "array", "items": rejected},
        counts={"type": "object", "additionalProperties": NUMBER},
        proof={"type": "string"},
        reasons={"type": "object", "additionalProperties": {"type": "integer"}},
    )()


def _diff() -> Schema:
    made = _of("capacity.planning.paired", "Diff")()
    made["$defs"]["Difference"] = _with(made["$defs"]["Difference"], {"significant": {"type": "boolean"}})
    return made


_MAKERS: dict[str, Callable[[], Schema]] = {
    "fit": _of("capacity.answers.records", "Fit"),
    "estimate": _of("capacity.answers.records", "Estimate"),
    "explain": _of("capacity.answers.records", "Attribution"),
    "simulation": _simulation,
    "plan": _infinite_as_null(_plan),
    "cost": _infinite_as_null(_of("capacity.planning.billing", "Bill")),
    "curve": _infinite_as_null(_of("capacity.planning.curves", "Curve")),
    "tornado": _infinite_as_null(_of("capacity.planning.sensitivity", "Tornado")),
    "advise": _infinite_as_null(_of("capacity.planning.advice", "AdviceList")),
    "diff": _infinite_as_null(_diff),
    "sweep": _of("capacity.planning.sweeping.run", "Swept"),
    "definition": _of("capacity.techniques.glossary", "Definition"),
    **{name: _answer_of(module, question) for name, (module, question) in QUESTIONS.items()},
    "deployment": _of("capacity.deployment", "DeploymentFile"),
    "sweep-file": _of("capacity.planning.sweeping.spec", "SweepSpec"),
}
