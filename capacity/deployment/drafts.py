"""Words for ways to draft: vLLM's methods and checkpoints, its V0 engine's flags, and the names that a pool keeps;
public draft checkpoints whose acceptance was measured, by the model that they draft for."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capacity.base.spec import Spec

# what vLLM takes a draft checkpoint for by its name, else for a model of its own
IN_CHECKPOINTS = ("eagle3", "eagle", "medusa")
METHODS = {  # vLLM 0.33.0, config/speculative.py: all of them draft chains, but for a speculative_token_tree
    **dict.fromkeys(("ngram", "ngram_gpu"), "ngram"),
    **{way: way for way in reversed(IN_CHECKPOINTS)},
    "draft_model": "draft-model",
    **dict.fromkeys(("mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "ernie_mtp"), "mtp"),
    **dict.fromkeys(("longcat_flash_mtp", "mimo_mtp"), "mtp"),
}
ONLY_IN: Mapping[str, tuple[str, ...]] = {  # ways that some engines have, and no other; 2026-11
    # LookaheadDecodingConfig, of its TensorRT backend; llama.cpp has an example program
    "lookahead": ("tensorrt-llm",),
    "layer-skip": ("hf-transformers",),  # assistant_early_exit, on checkpoints that were trained for it
}
TREE = "-tree"  # ends the name of a way that drafts trees: the name alone is its chain
LOOKUP = ("ngram", "[ngram]")  # V0's --speculative-model for prompt lookup
OTHER_NAMES = {
    "eagle-3": "eagle3",
    "eagle-2": "eagle2",
    "draft_model": "draft-model",
    "deepseek_mtp": "mtp",
    "layerskip": "layer-skip",
    "layer_skip": "layer-skip",
}


DRAFT_FIELDS = (  # of a pool: all that is about drafts
    *("speculator", "draft", "draft_tensor_parallel_size", "draft_layers", "num_speculative_tokens"),
    *("acceptance", "acceptance_spread"),
)


def drafting_name(name: str) -> str:
    """A way to draft as it is kept: `eagle3-chain` is `eagle3`, since a name alone is the chain."""
    plain = name.strip().lower().removesuffix("-chain")
    return OTHER_NAMES.get(plain, plain)


def has_way(engine: str, way: str) -> bool:
    """Whether an engine drafts this way, by its name without a version."""
    return engine in ONLY_IN.get(way, (engine,))


def drafting_notes(engine: str, way: str | None) -> tuple[str, ...]:
    """What to say where an engine does not draft as it is asked to: the answer is what if."""
    if way is None or has_way(engine, way):
        return ()
    return (f"{engine} does not draft by {way}, {' and '.join(ONLY_IN[way])} does: what if it did",)


def way_of(checkpoint: str) -> str:
    """The way to draft that a draft checkpoint's name means, as vLLM guesses where no method is given."""
    name = checkpoint.rpartition("/")[2].lower()
    if checkpoint.lower() in LOOKUP:
        return "ngram"
    return next((way for way in IN_CHECKPOINTS if way in name), "draft-model")


def drafting_fields(method: str | None, checkpoint: str | None) -> dict[str, object]:
    """`speculator` and, for a draft model, `draft`: what a method (of `METHODS`) and a checkpoint say together.

    Heads and layers are checkpoints too, whose shapes follow from the target's: their names are not kept.
    """
    way = method or (None if checkpoint is None else way_of(checkpoint))
    if way is None:
        return {}
    if way == "draft-model" and checkpoint is not None:
        return {"speculator": way, "draft": checkpoint}
    return {"speculator": way}


def with_way(fields: Mapping[str, object]) -> dict[str, object]:
    """A pool's fields, where a draft without a way to draft says the way by its name."""
    draft = fields.get("draft")
    if not isinstance(draft, str) or fields.get("speculator") is not None:
        return dict(fields)
    others = {name: value for name, value in fields.items() if name not in ("draft", "speculator")}
    return {**others, **drafting_fields(None, draft)}


TABLE = Path(__file__).with_name("draft_checkpoints.toml")


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
