"""OpenAPI document of the service, from the request and answer schemas of its verbs."""

import json
from importlib.metadata import version

from capacity.base.registry import BY_NAME
from capacity.report.schemas import Schema, json_schema
from capacity.service.verb_requests import LISTINGS, request_schema, served_verbs

PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {
            "type": "string",
            "description": "One line: what is wrong, the value, the limit and the fix.",
        },
    },
}


def openapi_document() -> Schema:
    """Return the OpenAPI 3.1 document."""
    components: Schema = {"Problem": PROBLEM}
    paths = {f"/v1/{verb}": _path(verb, components) for verb in served_verbs()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-capacity", "version": version("llm-capacity")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _path(verb: str, components: Schema) -> Schema:
    """Return the OpenAPI path item of a verb, and add the verb's schemas to `components`."""
    entry = BY_NAME[verb]
    answer: Schema = {"type": "array", "items": {"type": "object"}}
    if entry.answers:
        answer = _move_definitions(json_schema(entry.answers[0].name), verb, components)
    body = {"content": {"application/json": {"schema": request_schema(verb)}}}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    events = {"type": "string", "description": "Server-sent events: `progress`, then `answer` or `problem`."}
    content = {"application/json": {"schema": answer}, "text/event-stream": {"schema": events}}
    responses = {
        "200": {"description": "The answer, in the JSON format of the command line.", "content": content},
        "default": {"description": "An error.", "content": problem},
    }
    summary, _, further = entry.help.partition("\n\n")
    operation = {"summary": summary, "description": further, "operationId": verb, "responses": responses}
    posted = {"post": {**operation, "requestBody": body}}
    return posted | ({"get": {**operation, "operationId": f"list-{verb}"}} if verb in LISTINGS else {})


def _move_definitions(schema: Schema, verb: str, components: Schema) -> Schema:
    """Return a schema with its definitions moved to `components`, where references of an OpenAPI document point."""
    text = json.dumps(schema).replace("#/$defs/", f"#/components/schemas/{verb}.")
    moved: Schema = json.loads(text)
    components.update({f"{verb}.{name}": each for name, each in moved.pop("$defs", {}).items()})
    moved.pop("$schema")
    return moved
