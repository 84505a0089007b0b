"""A command that launches a server, as its words, and what several engines' commands are made with."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from capacity.deployment.pool import Pool

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


def above(value: int, least: int) -> int | None:
    """The value, where it is above what an engine takes by itself."""
    return value if value > least else None


def checkpoint_notes(pool: Pool, made_while_loading: Collection[str]) -> tuple[str, ...]:
    """That the format needs a checkpoint of its own, unless the engine makes it while loading."""
    if pool.quantization is None or pool.quantization in made_while_loading:
        return ()
    return (f"{pool.quantization} weights: put a checkpoint in that format in place of the model's name",)
