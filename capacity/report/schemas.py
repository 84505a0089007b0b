"""The JSON schemas of what the verbs answer, and of the files that they read, made from the records themselves.

A record declares what is written of it beside its fields (`base.record`); a test validates real answers of every verb.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

from capacity.base.errors import UnknownName
from capacity.techniques.registry import QUESTIONS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}


def schema_names() -> tuple[str, ...]:
    """Every name that `json_schema` knows."""
    return tuple(_MAKERS)


def json_schema(name: str) -> Schema:
    """The JSON schema of a verb's answer, or of a file (deployment, gpu-profile, sweep-file). Raises UnknownName."""
    if name not in _MAKERS:
        raise UnknownName("schema", name, _MAKERS)
    return {"$schema": DIALECT, **_MAKERS[name]()}


def _of(module: str, kind: str) -> Callable[[], Schema]:
    """The schema of a record, with its version."""
    return lambda: _described(getattr(import_module(module), kind))


def _answer_of(module: str, question: str) -> Callable[[], Schema]:
    """The schema of the record that a function returns."""
    return lambda: _described(get_type_hints(getattr(import_module(module), question))["return"])


def _described(record: type) -> Schema:
    from pydantic import TypeAdapter

    described: Schema = TypeAdapter(record).json_schema(mode="serialization", by_alias=True)
    if not hasattr(record, "SCHEMA"):
        return described
    properties = described["properties"] | {"schema": {"const": record.SCHEMA}}
    return described | {"properties": properties, "required": [*described.get("required", []), "schema"]}


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


def _gpu_profile() -> Schema:
    """A profile's TOML file: identity, and every fact with its source."""
    from capacity.hardware import HardwareProfile
    from capacity.hardware.profile import GROUP_LABELS, GROUPS, IDENTITY_FIELDS

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

    def link() -> Schema:
        members = definitions["Link"]["properties"]
        sourced = {
            name: value if name in GROUP_LABELS else with_source(value) for name, value in members.items()
        }
        return {**definitions["Link"], "properties": sourced}

    rates = {"type": "object", "additionalProperties": with_source({"type": "number", "exclusiveMinimum": 0})}
    beside = {"provenance", "step_time", "adjustment"}
    names = [name for name in properties if name not in {*IDENTITY_FIELDS, *beside}]
    facts = {name: with_source(properties[name]) for name in names if name not in GROUPS}
    facts |= {name: link() if name != "dense_flops_per_s" else rates for name in names if name in GROUPS}
    tables = {
        "facts": {"type": "object", "properties": facts, "required": names},
        "sources": {"type": "object"},
    }
    identity = {name: properties[name] for name in properties if name not in {*names, "provenance"}}
    required = [name for name in flat["required"] if name in IDENTITY_FIELDS]
    return {
        "$defs": definitions,
        "title": "A GPU profile: NAME.toml in a folder of --profiles",
        "type": "object",
        "properties": {**identity, **tables},
        "required": [*required, "facts"],
        "additionalProperties": False,
    }


_MAKERS: dict[str, Callable[[], Schema]] = {
    "fit": _of("capacity.answers.records", "Fit"),
    "estimate": _of("capacity.answers.records", "Estimate"),
    "explain": _of("capacity.answers.records", "Attribution"),
    "fit-comparison": _of("capacity.answers.fit_comparison", "FitComparison"),
    "engine-comparison": _of("capacity.answers.engine_comparison", "EngineComparison"),
    "gpu-support": _of("capacity.answers.support", "SupportMatrix"),
    "gpu-comparison": _of("capacity.planning.gpu_comparison", "GpuComparison"),
    "frontier": _of("capacity.answers.frontier", "Frontier"),
    "load-sweep": _of("capacity.answers.load_sweep", "LoadSweep"),
    "simulation": _simulation,
    "plan": _infinite_as_null(_of("capacity.planning.records", "Plan")),
    "fleet": _infinite_as_null(_of("capacity.planning.fleet_records", "FleetPlan")),
    "cost": _infinite_as_null(_of("capacity.planning.billing", "Bill")),
    "cascade": _of("capacity.planning.cascade_answer", "CascadeAnswer"),
    "curve": _infinite_as_null(_of("capacity.planning.curve", "Curve")),
    "tornado": _infinite_as_null(_of("capacity.planning.tornado", "Tornado")),
    "advise": _infinite_as_null(_of("capacity.planning.advice", "AdviceList")),
    "stack": _infinite_as_null(_of("capacity.planning.stack", "Stack")),
    "diff": _infinite_as_null(_of("capacity.planning.diff", "Diff")),
    "sweep": _of("capacity.planning.sweeping.run", "Swept"),
    "compare": _of("capacity_validate.comparison", "Comparison"),
    "definition": _of("capacity.techniques.glossary", "Definition"),
    **{name: _answer_of(module, question) for name, (module, question) in QUESTIONS.items()},
    "deployment": _of("capacity.deployment", "DeploymentFile"),
    "gpu-profile": _gpu_profile,
    "sweep-file": _of("capacity.planning.sweeping.spec", "SweepSpec"),
}
