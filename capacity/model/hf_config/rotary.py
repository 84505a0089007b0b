"""How large the tables of cosines and sines are that engines keep for rotary positions."""

from collections.abc import Iterable

from capacity.base.fields import Fields
from capacity.model.latent import LatentAttention
from capacity.model.layers import Attention, LayerGroup

MAX_ROPE_FACTOR = 1e6  # real ones are 2 to 64


def stretches_its_tables_alone(text: Fields) -> bool:
    """Whether `rope_scaling` is of the tables and `max_position_embeddings` has it already: Gemma 3.

    Source: vLLM 0.33.0, transformers_utils/model_arch_config_convertor.py, derive_max_model_len; 2026-11.
    """
    return "gemma3" in text.text("model_type")


def rotary_values(text: Fields, groups: Iterable[LayerGroup], positions: int) -> int:
    """Values of the tables of all distinct ropes: every position that the config allows, times the dimensions turned.

    An engine makes one for each rope at the start, however short `max_model_len` is: 2.5 GiB of Llama 4 Scout, made for
    10,485,760 positions of 128 dimensions, which is what a start-up log has beside its weights. Gemma 3 turns its full
    layers by a table stretched by `rope_scaling` and its windows by another. Source: vLLM
    model_executor/layers/rotary_embedding, _compute_cos_sin_cache; models that turn nothing count a little too much.
    """
    sizes = {size for group in groups if (size := _turned(text, group.mixer))}
    values = positions * sum(sizes)
    scaling = text.section("rope_scaling", "rope_parameters")
    if not stretches_its_tables_alone(text):
        return values
    factor = 1.0
    if scaling is not None and scaling.text("rope_type", "type") == "linear":
        factor = scaling.number("factor", default=1.0, minimum=1.0, maximum=MAX_ROPE_FACTOR)
    return round(values * (factor + 1))


def _turned(text: Fields, mixer: object) -> int:
    """Dimensions of a head that rotary positions turn; 0 where there are none."""
    if isinstance(mixer, LatentAttention):
        return mixer.qk_rope_head_dim
    if not isinstance(mixer, Attention) or mixer.cross:
        return 0
    part = text.number("partial_rotary_factor", default=1.0, minimum=0.0, maximum=1.0)
    said = text.optional_count("rotary_dim", minimum=0)
    return round(mixer.head_dim * part) if said is None else said
