"""Typed access to the fields of a model configuration. Every error names the file, the field and the value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.external_files import parse_json, read_bytes

MAX_COUNT = 1_000_000_000  # of anything: the largest vocabularies are 1e6, contexts 1e7


class Fields:
    """A JSON object whose values are read by type (`count`, `flag`, `text`, ...). Values can have alternative keys."""

    def __init__(self, values: Mapping[str, Any], origin: str, *, prefix: str = "") -> None:
        self.values = values
        self.origin = origin
        self.prefix = prefix

    def has(self, *keys: str) -> bool:
        """Return whether one of `keys` is present and not null."""
        return any(self.values.get(key) is not None for key in keys)

    def count(
        self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_COUNT
    ) -> int:
        """Return the value of the first of `keys` that is present, a whole number from `minimum` to `maximum`;
        `default` if none is present."""
        value = self.optional_count(*keys, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            raise self.problem(keys[0], "missing; it must be a whole number")
        return default

    def optional_count(self, *keys: str, minimum: int = 1, maximum: int = MAX_COUNT) -> int | None:
        """Return the same as `count`, or None if the configuration has none of `keys`."""
        key, value = self._first(keys, int, "a whole number")
        if value is not None and not minimum <= value <= maximum:
            raise self.problem(key, f"{_short_repr(value)} is outside of {minimum}..{maximum}")
        return value  # type: ignore[no-any-return]

    def number(self, key: str, *, default: float, minimum: float, maximum: float) -> float:
        """Return the value of `key`, a number from `minimum` to `maximum`; `default` if the key is missing."""
        _, value = self._first((key,), (int, float), "a number")
        if value is None:
            return default
        if not minimum <= value <= maximum:
            raise self.problem(key, f"{_short_repr(value)} is outside of {minimum:g}..{maximum:g}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return the value of `key`, true or false; `default` if the key is missing."""
        _, value = self._first((key,), bool, "true or false")
        return default if value is None else value

    def text(self, *keys: str, default: str = "") -> str:
        """Return the value of the first of `keys` that is present, a string; `default` if none is present."""
        _, value = self._first(keys, str, "text")
        return default if value is None else value

    def items(self, key: str) -> list[Any] | None:
        """Return the value of `key`, a list; None if the key is missing."""
        _, value = self._first((key,), list, "a list")
        return value  # type: ignore[no-any-return]

    def section(self, *keys: str) -> "Fields | None":
        """Return the JSON object of the first of `keys` that is present, as `Fields`; None if none is present."""
        key, value = self._first(keys, dict, "an object")
        return None if value is None else Fields(value, self.origin, prefix=f"{self.prefix}{key}.")

    def _first(self, keys: tuple[str, ...], kind: type | tuple[type, ...], what: str) -> tuple[str, Any]:
        """Return the first of `keys` that is present, with its value; "" and None if none is present. Raises
        MalformedFile if the value is not of type `kind`."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise self.problem(key, f"{_short_repr(value)} is not {what}")
            return key, value
        return "", None

    def update(self, values: Mapping[str, Any]) -> "Fields":
        """Return a copy of this configuration in which `values` are added, or replace the existing values."""
        return Fields({**self.values, **values}, self.origin, prefix=self.prefix)

    def entry_of_layer(self, key: str, layer: int) -> Any:
        """Return item `layer` of the list `key`, which has one per layer; None if the list or the item is missing."""
        entries = self.items(key) or []
        return entries[layer] if layer < len(entries) else None

    def problem(self, key: str, text: str) -> MalformedFile:
        """Return the MalformedFile error for the value of `key`; the caller raises it."""
        return MalformedFile(self.origin, text, where=f"{self.prefix}{key}")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path`. Raises MalformedFile for other content or more than 1 MB."""
    return parse_json_object(read_bytes(path, "a model configuration"), path)


def parse_json_object(raw: bytes, origin: object) -> dict[str, Any]:
    """Parse `raw` as one JSON object; reject NaN, Infinity, duplicate keys and excessive nesting."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields: dict[str, object] = {}
        for key, value in pairs:
            if key in fields:
                raise MalformedFile(origin, "the key occurs twice in one object", where=key)
            fields[key] = value
        return fields

    def no_constant(text: str) -> None:
        raise MalformedFile(origin, f"{text} is not JSON")

    try:
        text = raw.decode("utf-8-sig")
        if not text.strip():
            raise MalformedFile(origin, "the file is empty")
    except UnicodeDecodeError:
        raise MalformedFile(origin, "not UTF-8 text") from None
    value = parse_json(text, origin, object_pairs_hook=unique, parse_constant=no_constant)
    if not isinstance(value, dict):
        raise MalformedFile(origin, f"must contain a JSON object, not a {type(value).__name__}")
    return value


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
