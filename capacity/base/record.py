"""The base of what the product answers: frozen records whose `to_dict()` is the JSON of the command line."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar


@lru_cache(maxsize=256)
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def plain(value: Any) -> Any:
    """`dataclasses.asdict` of frozen records, whose leaves need no copy: four times as fast, which sweeps feel."""
    kind: Any = type(value)
    names = _field_names(kind)
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


class AnswerRecord:
    """Adds `to_dict()`; `SCHEMA` names the version of the record's shape."""

    __slots__ = ()
    SCHEMA: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, `schema` first."""
        return {"schema": self.SCHEMA, **plain(self)}
