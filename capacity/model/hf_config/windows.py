"""Functions that return a layer's attention window in tokens (None: full attention), as each model family sets it."""

from collections.abc import Callable
from typing import TypeAlias

from capacity.base.fields import Fields
from capacity.model.hf_config.field_names import NAMES

MAX_LAYERS = 2_000
WindowRule: TypeAlias = Callable[[Fields, int], int | None]
LAYER_TYPES, NUM_LAYERS = NAMES["layer_types"], NAMES["num_layers"]


def layer_type(text: Fields, layer: int) -> str | None:
    """Return the layer's entry of `layer_types`, or None if the config has no such list."""
    kinds = text.items("layer_types")
    if not kinds:
        return None
    num_layers = text.count(*NUM_LAYERS, maximum=MAX_LAYERS)
    if len(kinds) != num_layers:
        raise text.problem("layer_types", f"{len(kinds)} entries for {num_layers} layers")
    kind = kinds[layer]
    if kind not in LAYER_TYPES:
        raise text.problem("layer_types", f"{kind!r} is not one of {', '.join(LAYER_TYPES)}")
    return str(kind)


def _window_tokens(text: Fields) -> int | None:
    return text.optional_count("sliding_window", minimum=0) or None


def uniform_window(text: Fields, layer: int) -> int | None:
    """Return `sliding_window` for all layers (Mistral 7B v0.1, Phi-3), or only for those marked in `layer_types`."""
    return _window_tokens(text) if layer_type(text, layer) in (None, "sliding_attention") else None


def qwen_window(text: Fields, layer: int) -> int | None:
    """Return `sliding_window` for layers from `max_window_layers` on, if `use_sliding_window` is set."""
    if not text.flag("use_sliding_window"):
        return None
    kind = layer_type(text, layer)
    windowed = (
        kind == "sliding_attention"
        if kind
        else layer >= text.count("max_window_layers", default=28, minimum=0)
    )
    return _window_tokens(text) if windowed else None


def interleaved_window(text: Fields, layer: int, *, pattern: int) -> int | None:
    """Return `sliding_window`, or None in every `sliding_window_pattern`-th layer (default: `pattern`-th)."""
    kind = layer_type(text, layer)
    every = _window_period(text, pattern)
    windowed = kind == "sliding_attention" if kind else bool((layer + 1) % every)
    return _window_tokens(text) if windowed else None


def _window_period(text: Fields, default: int) -> int:
    """Return n if every n-th layer has full attention, from a number or a pattern of n letters ("LLLG", EXAONE)."""
    stated = text.values.get("sliding_window_pattern")
    if isinstance(stated, str) and stated.count("G") == 1 and stated.endswith("G"):
        return len(stated)
    return text.count("sliding_window_pattern", "global_attn_every_n_layers", default=default)


def llama4_window(text: Fields, layer: int) -> int | None:
    """Return `attention_chunk_size` in layers with rotary embedding (3 of 4 layers, unless the config lists them)."""
    kind = layer_type(text, layer)
    rotary = text.items("no_rope_layers")
    if kind is None and rotary:
        num_layers = text.count("num_hidden_layers", maximum=MAX_LAYERS)
        if len(rotary) != num_layers:
            raise text.problem("no_rope_layers", f"{len(rotary)} entries for {num_layers} layers")
        windowed = bool(rotary[layer])
    else:
        every = text.count("no_rope_layer_interval", default=4)
        windowed = kind == "chunked_attention" if kind else bool((layer + 1) % every)
    return text.optional_count("attention_chunk_size") if windowed else None
