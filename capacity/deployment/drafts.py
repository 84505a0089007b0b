"""Convert drafting methods between vLLM's options, the flags of vLLM V0, checkpoint names, and `Pool` fields.

This module also reads the table of public draft checkpoints, with their target models and measured acceptance.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capacity.base.spec import Spec

# method that vLLM infers from a checkpoint's name; otherwise it is a draft model
CHECKPOINT_METHODS = ("eagle3", "eagle", "medusa")
METHODS = {  # vLLM 0.33.0, config/speculative.py; all draft chains unless speculative_token_tree is set
    **dict.fromkeys(("ngram", "ngram_gpu"), "ngram"),
    **{way: way for way in reversed(CHECKPOINT_METHODS)},
    "draft_model": "draft-model",
    **dict.fromkeys(("mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "ernie_mtp"), "mtp"),
    **dict.fromkeys(("longcat_flash_mtp", "mimo_mtp"), "mtp"),
}
METHOD_ENGINES: Mapping[str, tuple[str, ...]] = {  # methods that only these engines support; 2026-11
    # LookaheadDecodingConfig, of its TensorRT backend; llama.cpp has an example program
    "lookahead": ("tensorrt-llm",),
    "layer-skip": ("hf-transformers",),  # assistant_early_exit, for checkpoints trained for it
}
TREE = "-tree"  # suffix of methods that draft trees; without it, the method drafts a chain
PROMPT_LOOKUP_NAMES = ("ngram", "[ngram]")  # V0's --speculative-model for prompt lookup
OTHER_NAMES = {
    "eagle-3": "eagle3",
    "eagle-2": "eagle2",
    "draft_model": "draft-model",
    "deepseek_mtp": "mtp",
    "layerskip": "layer-skip",
    "layer_skip": "layer-skip",
}


DRAFT_FIELDS = (  # pool fields about drafting
    *("speculator", "draft", "draft_tensor_parallel_size", "draft_layers", "num_speculative_tokens"),
    *("acceptance", "acceptance_spread"),
)


def drafting_name(name: str) -> str:
    """Return the canonical name of a drafting method; `eagle-3` and `eagle3-chain`, for example, become `eagle3`."""
    plain = name.strip().lower().removesuffix("-chain")
    return OTHER_NAMES.get(plain, plain)


def supports_drafting(engine: str, way: str) -> bool:
    """Return whether an engine, named without a version, supports this drafting method."""
    return engine in METHOD_ENGINES.get(way, (engine,))


def drafting_notes(engine: str, way: str | None) -> tuple[str, ...]:
    """Return a note that the answer is hypothetical, if the engine does not support the drafting method."""
    if way is None or supports_drafting(engine, way):
        return ()
    return (
        f"hypothetical: {engine} does not support the drafting method {way}; {' and '.join(METHOD_ENGINES[way])} does",
    )


def infer_drafting_method(checkpoint: str) -> str:
    """Return the drafting method implied by the name of a checkpoint, as vLLM does if no method is given."""
    name = checkpoint.rpartition("/")[2].lower()
    if checkpoint.lower() in PROMPT_LOOKUP_NAMES:
        return "ngram"
    return next((way for way in CHECKPOINT_METHODS if way in name), "draft-model")


def drafting_fields(method: str | None, checkpoint: str | None) -> dict[str, object]:
    """Return the `Pool` fields of a drafting method: `speculator` and, for a draft model, `draft`.

    `method`: a value of `METHODS`; None: inferred from the checkpoint's name. Checkpoints of drafting heads and layers
    are not stored, because their shapes follow from the target model.
    """
    way = method or (None if checkpoint is None else infer_drafting_method(checkpoint))
    if way is None:
        return {}
    if way == "draft-model" and checkpoint is not None:
        return {"speculator": way, "draft": checkpoint}
    return {"speculator": way}


def fill_in_drafting_method(fields: Mapping[str, object]) -> dict[str, object]:
    """Return `Pool` fields with the drafting method inferred from the draft's name if it is missing."""
    draft = fields.get("draft")
    if not isinstance(draft, str) or fields.get("speculator") is not None:
        return dict(fields)
    others = {name: value for name, value in fields.items() if name not in ("draft", "speculator")}
    return {**others, **drafting_fields(None, draft)}


TABLE = Path(__file__).with_name("draft_checkpoints.toml")


class DraftCheckpoint(Spec):
    """A draft checkpoint; or, if `checkpoint` is None, the drafting layer in the target's own checkpoint.

    `accepted_length`: mean tokens per verification step with `draft_tokens` draft tokens. None: the default acceptance
    of the method applies, which was measured on the models in `targets`.
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
    """Return all draft checkpoints; a key consists of a target model's id in lower case and a drafting method."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["checkpoints"]
    found = [DraftCheckpoint(**row) for row in rows]
    return {(target.lower(), each.method): each for each in found for target in each.targets}


def find_draft_checkpoint(model_id: str | None, method: str) -> DraftCheckpoint | None:
    """Return the draft checkpoint for the model with this Hugging Face id, or None."""
    return None if model_id is None else draft_checkpoints().get((model_id.lower(), method))
