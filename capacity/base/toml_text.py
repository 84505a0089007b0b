"""Write values as TOML text, because the standard library only reads TOML."""

import json
from collections.abc import Mapping


def toml_key(key: str) -> str:
    """Return a key as TOML text, with quotes if TOML requires them."""
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isalnum() and bare.isascii() else toml_value(key)


def toml_value(value: object) -> str:
    """Return a value as TOML on one line; mappings become inline tables without None. Floats are restored exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping):
        entries = [
            f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items() if item is not None
        ]
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} cannot be written as TOML")


def _number(value: float) -> str:
    short = f"{value:.12g}"
    return short if not isinstance(value, int) and float(short) == value else repr(value)
