"""Explanations of the figures of merit, from `meanings.toml`."""

from pathlib import Path

from capacity.base.data_files import read_data

MEANINGS = read_data(Path(__file__).with_name("meanings.toml"))


def meaning(label: str) -> str | None:
    """Return the help of a figure by its label or the beginning of its label, or None."""
    begun = (text for name, text in MEANINGS.items() if label.startswith((f"{name} ", f"{name},")))
    return MEANINGS.get(label) or next(begun, None)
