"""Answers as plain values: what is written of a record, in which order, and that its schema says the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import TypeAdapter

from capacity.base.record import NOT_WRITTEN, AnswerRecord, WrittenRecord, to_plain_values
from capacity.base.spec import Spec


class Wish(Spec):
    gpu: str
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(WrittenRecord):
    FIRST: ClassVar[tuple[str, ...]] = ("total",)
    counts: tuple[int, ...]
    hidden: int = field(default=5, metadata=NOT_WRITTEN)

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(AnswerRecord):
    SCHEMA: ClassVar[str] = "capacity/test/v1"
    wish: Wish
    parts: dict[str, Part]


ANSWER = Answer(wish=Wish(gpu="h100"), parts={"a": Part(counts=(1, 2))})


def test_a_record_is_written_with_its_properties_and_without_what_is_left_out() -> None:
    written = ANSWER.to_dict()
    assert list(written) == ["schema", "wish", "parts"]
    assert written["wish"] == {"gpu": "h100"}  # what differs from the defaults
    assert json.dumps(written["parts"]) == '{"a": {"total": 3, "counts": [1, 2]}}'


def test_the_schema_is_of_what_is_written() -> None:
    schema = TypeAdapter(Part).json_schema()
    assert list(schema["properties"]) == list(to_plain_values(Part(counts=())))
    assert schema["properties"]["total"]["type"] == "integer"
