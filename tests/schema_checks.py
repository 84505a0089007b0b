"""Validation of answers against the schemas that `capacity schema` prints; each schema is made and checked once."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema
import pytest

from capacity.report.schemas import json_schema


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a schema by its name; raise SchemaError if it is none."""
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_answer(answer: dict[str, Any], name: str, *, removed: int | None = None) -> None:
    """Check that an answer is valid, has no field beside those of its schema, and is invalid without one of its fields.

    `removed`: how many of its fields are removed, one at a time; None: all.
    """
    found = validator(name)
    found.validate(answer)
    assert set(answer) <= set(found.schema["properties"]), "the schema leaves out what the answer holds"
    for field in list(answer)[:removed]:
        with pytest.raises(jsonschema.ValidationError):
            found.validate({key: value for key, value in answer.items() if key != field})
