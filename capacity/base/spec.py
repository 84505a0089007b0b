"""The base of everything that a user writes: frozen, unknown fields refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Spec(BaseModel):
    """A frozen specification; vary one with `spec.model_copy(update={...})`; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`input_len = true` is a slip of the pen, not one token."""
        if (
            _holds_a_boolean(value)
            and info.field_name is not None
            and not _takes_booleans(cls, info.field_name)
        ):
            raise ValueError("true and false are no number and no text")
        return value


def _holds_a_boolean(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(each, bool) for each in value)
    return isinstance(value, bool)


@lru_cache(maxsize=1024)
def _takes_booleans(spec: type[Spec], name: str) -> bool:
    annotation = str(spec.model_fields[name].annotation)
    return any(word in annotation for word in ("bool", "Any", "object", "Literal[True", "Literal[False"))
