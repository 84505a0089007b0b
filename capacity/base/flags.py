"""How the command line spells a keyword of a function: metadata of `Annotated`, so that a keyword is declared once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A keyword's help and flags; `spelled` empty: the keyword's own name, or the place of a positional parameter."""

    help: str
    spelled: str = ""  # flags by spaces; the last one stands in refusals
    least: int | None = None
    milliseconds: bool = False  # the keyword is in seconds
