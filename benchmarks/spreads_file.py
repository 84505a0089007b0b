"""A record of fitted constants as the TOML file that ships with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capacity.base.spec import Spec
from capacity.base.toml_text import toml_key, toml_value

SPREADS = "Written by benchmarks/fit_spreads.py: deviations of the logarithm of measured over predicted."


def write(known: Spec, path: Path, *, header: str = SPREADS) -> None:
    """Write the record as TOML, one table for each part; `header` is the comment in the first line."""
    lines = [f"# {header}"]
    document = known.model_dump(mode="json", exclude_none=True)
    scalars = {name: value for name, value in document.items() if not isinstance(value, dict | list)}
    lines += [f"{name} = {toml_value(value)}" for name, value in scalars.items()]
    for name, value in document.items():
        if isinstance(value, dict):
            lines += _table(name, value)
        elif isinstance(value, list):
            for entry in value:
                lines += ["", f"[[{name}]]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in entry.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(name: str, value: Mapping[str, Any]) -> list[str]:
    plain = {k: v for k, v in value.items() if not isinstance(v, dict)}
    lines = (
        ["", f"[{name}]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in plain.items())] if plain else []
    )
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines += _table(f"{name}.{toml_key(key)}", inner)
    return lines
