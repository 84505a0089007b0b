"""Base of all specifications that users write: they are frozen and reject unknown fields."""

import re
from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_SHORT_COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kKmMgG])")
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def short_count(text: str) -> str | int:
    """Parse vLLM's short form of a count: 25.6k is 25600, 1k is 1000, 1K is 1024. Other text is returned unchanged."""
    short = _SHORT_COUNT.fullmatch(text.strip())
    return text if short is None else round(float(short[1]) * _SUFFIXES[short[2]])


class Spec(BaseModel):
    """A frozen specification that rejects unknown fields; change one with `spec.model_copy(update={...})`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject true and false for number fields: `input_len = true` is a mistake, not one token."""
        values, name = value if isinstance(value, list | tuple) else (value,), info.field_name
        if any(isinstance(each, bool) for each in values) and name and not _takes_booleans(cls, name):
            raise ValueError("must be a number or text, not true or false")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _parse_short_counts(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert the short form of a whole number (1k); other texts are left to the integer parser."""
        if isinstance(value, str) and info.field_name is not None and _is_count_field(cls, info.field_name):
            return short_count(value)
        return value


@lru_cache(maxsize=1024)
def _takes_booleans(spec: type[Spec], name: str) -> bool:
    annotation = str(spec.model_fields[name].annotation)
    return any(word in annotation for word in ("bool", "Any", "object", "Literal[True", "Literal[False"))


@lru_cache(maxsize=1024)
def _is_count_field(spec: type[Spec], name: str) -> bool:
    """Return whether a field accepts whole numbers and no text, so that `1k` is a number."""
    annotation = spec.model_fields[name].annotation
    kinds = {getattr(kind, "__origin__", kind) for kind in (annotation, *get_args(annotation))}
    return int in kinds and str not in kinds
