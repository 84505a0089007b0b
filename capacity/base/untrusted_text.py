"""Escape hidden characters in text from outside, which could move the cursor, reverse the text or end a line."""

import re
from typing import Any
from unicodedata import category

HIDDEN_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and line break
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # directions, line ends, halves of characters
)
COLOUR = re.compile("(\x1b\\[[0-9;]*m)")
UNASSIGNED_CATEGORIES = {"Cn", "Co"}  # not assigned, or for private use
MAX_MESSAGE_LENGTH = 900  # characters of a message; the middle of longer ones is left out
MAX_DEPTH = 200  # nested lists; parsers accept fewer


def printable(text: str, *, colours: bool = False) -> str:
    r"""Return the text with hidden characters as escapes such as `\x1b`; `colours`: whether to keep colour codes."""
    if text.isprintable() or not (HIDDEN_CHARACTERS.search(text) or _has_unknown_characters(text)):
        return text
    parts = COLOUR.split(text) if colours else [text]
    return "".join(part if place % 2 else _escape_hidden(part) for place, part in enumerate(parts))


def _has_unknown_characters(text: str) -> bool:
    return any(
        category(c) in UNASSIGNED_CATEGORIES
        for line in text.splitlines()
        if not line.isprintable()
        for c in line
    )


def _escape_hidden(text: str) -> str:
    shown = HIDDEN_CHARACTERS.sub(lambda match: _escape(match[0]), text)
    if not _has_unknown_characters(shown):
        return shown
    return "".join(_escape(c) if category(c) in UNASSIGNED_CATEGORIES else c for c in shown)


def one_line(text: str) -> str:
    """Return the printable text on one line, without line breaks or tabs."""
    return printable(" ".join(text.split()) if "\n" in text or "\t" in text else text)


def shorten_text(text: str) -> str:
    """Return the text on one line; the middle of a text above `MAX_MESSAGE_LENGTH` characters is replaced by "..."."""
    line = one_line(text)
    return (
        line
        if len(line) <= MAX_MESSAGE_LENGTH
        else f"{line[: MAX_MESSAGE_LENGTH * 3 // 4]} ... {line[-MAX_MESSAGE_LENGTH // 5 :]}"
    )


def printable_values(value: Any, depth: int = 0) -> Any:
    """Return parsed data with hidden characters escaped in all texts and keys."""
    if isinstance(value, str):
        return printable(value)
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {
            printable(name) if isinstance(name, str) else name: printable_values(each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [printable_values(each, depth + 1) for each in value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
