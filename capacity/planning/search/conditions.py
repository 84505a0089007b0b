"""Conditions that keep a deployment from being recommended: formats that lose quality, and unmeasured drafts.

The recommended deployment runs exactly as the printed launch command and loses no quality that evaluations can detect.
Formats and draft methods that the user names (`--quantizations`, `--kv-cache-dtypes`, `--max-quality-loss`,
`--speculators`, `--draft`) are not conditions.
"""

from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.deployment.drafts import DRAFT_FIELDS, find_draft_checkpoint
from capacity.deployment.launch_dialects import METHODS_WITH_CHECKPOINT
from capacity.deployment.launch_writers import is_launched, launch_command
from capacity.model import ModelSpec
from capacity.model.quantization import scheme_for
from capacity.planning.quality import quality_change
from capacity.planning.space import DRAFT_MODEL, Search
from capacity.pool.drafting import find_speculator


def conditions_of(search: Search, model: ModelSpec, pool: Pool) -> tuple[str, ...]:
    """Return texts on disadvantages that a user must accept (quality loss, unmeasured drafts); may be empty."""
    found = [_weights(search, model, pool), _cache(search, model, pool), _drafts(search, model, pool)]
    return tuple(condition for condition in found if condition is not None)


def _weights(search: Search, model: ModelSpec, pool: Pool) -> str | None:
    if pool.quantization is None or search.quantizations or search.max_quality_loss is not None:
        return None
    try:
        scheme = scheme_for(model, pool.quantization)
    except CapacityError:
        return None  # the candidate generator rejects it with its reason
    if not quality_change(scheme, model.checkpoint, "auto", params=model.total_params).lossless:
        return f"{pool.quantization} weights"
    if not is_launched(pool.engine):
        return None
    alone = pool.model_copy(update={name: Pool.model_fields[name].default for name in DRAFT_FIELDS})
    notes = launch_command(pool.engine, model.hf_id or model.name, alone).notes
    # the engine cannot quantize the model's checkpoint while loading
    lacking = any(note.startswith(f"{pool.quantization} weights:") for note in notes)
    return f"a checkpoint in {pool.quantization}" if lacking else None


def _cache(search: Search, model: ModelSpec, pool: Pool) -> str | None:
    asked = "kv_cache_dtypes" in search.model_fields_set or search.max_quality_loss is not None
    own, dtype = model.checkpoint, pool.kv_cache_dtype
    if asked or quality_change(own, own, dtype, params=model.total_params).lossless:
        return None
    return f"{pool.kv_cache_dtype} KV cache"


def _drafts(search: Search, model: ModelSpec, pool: Pool) -> str | None:
    way = pool.speculator
    if way is None or search.speculators or way == DRAFT_MODEL:
        return None
    known = find_draft_checkpoint(model.hf_id, way)
    if known is not None or (search.acceptance is not None and way not in METHODS_WITH_CHECKPOINT):
        return None
    if search.acceptance is not None:
        return f"an {way} checkpoint for this model"
    measured_on = find_speculator(way).acceptance_model.partition(" with ")[0]
    return f"{way} drafts with the acceptance rate measured on {measured_on}"
