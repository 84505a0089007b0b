"""Help texts of the key metrics, from `meanings.toml`."""

from pathlib import Path

from capacity.base.data_files import read_data

MEANINGS = read_data(Path(__file__).with_name("meanings.toml"))


def meaning(label: str) -> str | None:
    """Return the help text of a metric whose name is the label or the label's first words; None if there is none."""
    begun = (text for name, text in MEANINGS.items() if label.startswith((f"{name} ", f"{name},")))
    return MEANINGS.get(label) or next(begun, None)
