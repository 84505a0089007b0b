"""Public draft checkpoints whose acceptance was measured, by the model that they draft for."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capacity.base.spec import Spec

TABLE = Path(__file__).with_suffix(".toml")


class DraftCheckpoint(Spec):
    """A draft checkpoint, or (`checkpoint` None) the drafting layer of the target's own checkpoint.

    `accepted_length`: tokens of a round of `draft_tokens` drafts; None: the method's own acceptance was measured on
    these targets.
    """

    method: str
    targets: tuple[str, ...]
    checkpoint: str | None = None
    draft_tokens: int = Field(1, ge=1)
    accepted_length: float | None = Field(None, ge=1)
    accepted_lengths_by_task: dict[str, float] = Field(default={})
    setting: str = ""
    source: str
    date: str
    basis: Literal["measured"]


@lru_cache(maxsize=1)
def draft_checkpoints() -> dict[tuple[str, str], DraftCheckpoint]:
    """All of them, by target (in lower case) and method."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["checkpoints"]
    found = [DraftCheckpoint(**row) for row in rows]
    return {(target.lower(), each.method): each for each in found for target in each.targets}


def find_draft_checkpoint(model_id: str | None, method: str) -> DraftCheckpoint | None:
    """The checkpoint that drafts for the model with this Hugging Face id, or None."""
    return None if model_id is None else draft_checkpoints().get((model_id.lower(), method))
