"""The list of techniques."""

from __future__ import annotations

from importlib import import_module
from typing import get_type_hints

import capacity
from capacity.techniques.registry import QUESTIONS as QUESTIONS_BY_SCHEMA
from capacity.techniques.registry import TECHNIQUES


def test_every_technique_is_public_and_names_the_schema_of_its_answers() -> None:
    assert all(hasattr(capacity, technique.question) for technique in TECHNIQUES)
    for schema, (module, question) in QUESTIONS_BY_SCHEMA.items():
        record = get_type_hints(getattr(import_module(module), question))["return"]
        assert f"capacity/{schema}/v1" == record.SCHEMA
