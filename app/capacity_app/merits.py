"""What each figure of merit means: the texts of `meanings.toml`, by label."""

from __future__ import annotations

from pathlib import Path

from capacity.base.data_files import read_data

MEANINGS = read_data(Path(__file__).with_name("meanings.toml"))


def meaning(label: str) -> str | None:
    """The help of a figure: by its label, or by what its label begins with; None of one that is not described."""
    begun = (text for name, text in MEANINGS.items() if label.startswith((f"{name} ", f"{name},")))
    return MEANINGS.get(label) or next(begun, None)
