"""JSON schemas of the commands' answers and of the input files, generated from the records.

A record declares the properties that it writes in addition to its fields (`base.record`); a test validates real
answers of every command against the schemas.
"""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from capacity.base.errors import UnknownName
from capacity.base.registry import ANSWERS, VERBS, find_verb

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}


def schema_names() -> tuple[str, ...]:
    """Return the names that `json_schema` accepts: commands, answers without a command, and input files."""
    further = (name for name in ANSWERS if name not in _BY_VERB.values())
    return (*_BY_VERB, *further, *_FILES)


def json_schema(name: str) -> Schema:
    """Return the JSON schema of a command's answer, of another answer, or of an input file. Raises UnknownName."""
    if name in _FILES:
        return {"$schema": DIALECT, **_FILES[name]()}
    if _BY_VERB.get(name, name) not in ANSWERS:
        find_verb(name)  # of a plug-in, whose answers become known
    answer = ANSWERS.get(_BY_VERB.get(name, name))
    if answer is None:
        raise UnknownName("schema", name, schema_names())
    described = _record_schema(answer.record)
    return {"$schema": DIALECT, **(_allow_null(described) if answer.unbounded else described)}


def _record_schema(path: str) -> Schema:
    """Return the JSON schema of the record class at this import path, including its schema version."""
    from pydantic import TypeAdapter

    record = resolve_name(path)
    if hasattr(record, "json_schema"):
        return record.json_schema()  # type: ignore[no-any-return]
    described: Schema = TypeAdapter(record).json_schema(mode="serialization", by_alias=True)
    if not hasattr(record, "SCHEMA"):
        return described
    properties = described["properties"] | {"schema": {"const": record.SCHEMA}}
    return described | {"properties": properties, "required": [*described.get("required", []), "schema"]}


def _allow_null(value: Any) -> Any:
    """Allow null for every number, because infinite ones (such as the rate of a burst) are written as null."""
    if isinstance(value, dict):
        if value.get("type") == "number":
            return value | NUMBER_OR_NULL
        return {name: _allow_null(item) for name, item in value.items()}
    return [_allow_null(item) for item in value] if isinstance(value, list) else value


def _gpu_profile_schema() -> Schema:
    """Return the schema of a GPU profile's TOML file: name and identity, and every value with its source."""
    from capacity.hardware import HardwareProfile
    from capacity.hardware.profile import FACT_GROUPS, GROUP_LABELS, IDENTITY_FIELDS

    flat = HardwareProfile.model_json_schema()
    definitions, properties = flat["$defs"], flat["properties"]
    origin = definitions["Provenance"]["properties"]

    def with_source(value: Schema) -> Schema:
        return {
            "type": "object",
            "properties": {"value": value, **origin},
            "required": ["value", "source", "date", "basis"],
            "additionalProperties": False,
        }

    link = {
        name: value if name in GROUP_LABELS else with_source(value)
        for name, value in definitions["Link"]["properties"].items()
    }
    rates = {"type": "object", "additionalProperties": with_source({"type": "number", "exclusiveMinimum": 0})}
    groups = {name: {**definitions["Link"], "properties": link} for name in FACT_GROUPS}
    groups["dense_flops_per_s"] = rates
    unsourced = {*IDENTITY_FIELDS, "provenance", "step_time", "adjustment", "power_cap_watts"}
    names = [name for name in properties if name not in unsourced]
    facts = {name: with_source(properties[name]) for name in names if name not in FACT_GROUPS}
    facts |= {name: groups[name] for name in names if name in FACT_GROUPS}
    written = {"type": "object", "properties": facts, "required": names}
    identity = {name: properties[name] for name in properties if name not in {*names, "provenance"}}
    required = [name for name in flat["required"] if name in IDENTITY_FIELDS]
    return {
        "$defs": definitions,
        "title": "GPU profile: NAME.toml in a folder of --profiles",
        "type": "object",
        "properties": {**identity, "facts": written, "sources": {"type": "object"}},
        "required": [*required, "facts"],
        "additionalProperties": False,
    }


_FILES: Mapping[str, Callable[[], Schema]] = {
    "deployment": lambda: _record_schema("capacity.deployment:DeploymentFile"),
    "gpu-profile": _gpu_profile_schema,
    "sweep-file": lambda: _record_schema("capacity.planning.sweeps.sweep_spec:SweepSpec"),
}
_BY_VERB = {verb.name: verb.answers[0].name for verb in VERBS if verb.answers}
