"""A command that launches a server, as its words, and what several engines' commands are made with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

PORT = 8000
PROXY_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command as its words, what it cannot say, and the files that it reads (name, text)."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The command, quoted for a shell, a flag a line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--") and lines[-1]:
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n    ".join(" ".join(line) for line in lines)


def flag_words(values: Sequence[tuple[str, object]]) -> list[str]:
    """`--flag value` of each pair; True stands alone, None and False are left out."""
    words: list[str] = []
    for flag, value in values:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words
