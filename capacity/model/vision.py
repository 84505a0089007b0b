"""Vision towers, counted apart from the language model: exact where the tower's formula is known."""

from __future__ import annotations

from collections.abc import Callable

from capacity.base.fields import Fields


def vision_tower(config: Fields) -> tuple[int, tuple[str, ...]]:
    """Parameters of the vision tower with its projector, and what of the config is not counted.

    Known: SigLIP in Gemma 3, Llama 4's, Qwen3-VL's and 3.5's. Another is named, not guessed.
    """
    tower = config.section("vision_config")
    uncounted = [key for key in ("audio_config", "speech_config") if config.has(key)]
    if tower is None:
        return 0, tuple(uncounted)
    text = config.section("text_config")
    formula = _FORMULAS.get(config.text("model_type"))
    if formula is None or text is None or not tower.has("hidden_size"):
        return 0, (*uncounted, "vision_config")
    return formula(tower, text.count("hidden_size")), tuple(uncounted)


def _linear(inputs: int, outputs: int) -> int:
    """With a bias."""
    return inputs * outputs + outputs


def _vit_layer(width: int, intermediate: int) -> int:
    """Four projections, two-matrix MLP, two layer norms, all with biases."""
    mlp = _linear(width, intermediate) + _linear(intermediate, width)
    return 4 * _linear(width, width) + mlp + 4 * width


def _gemma3(tower: Fields, hidden_size: int) -> int:
    """SigLIP and the multimodal projector: 423,060,336 in gemma-3-27b, as published."""
    width, patch = tower.count("hidden_size"), tower.count("patch_size")
    positions = (tower.count("image_size") // patch) ** 2
    layers = tower.count("num_hidden_layers") * _vit_layer(width, tower.count("intermediate_size"))
    embeddings = _linear(3 * patch**2, width) + positions * width
    return layers + embeddings + 2 * width + width * hidden_size + width


def _llama4(tower: Fields, hidden_size: int) -> int:
    """ViT with a class token, pixel-shuffle adapter and projector: 871,932,416 in Llama 4, as published."""
    width, patch, intermediate = (tower.count(k) for k in ("hidden_size", "patch_size", "intermediate_size"))
    projected_in, projected = tower.count("projector_input_dim"), tower.count("projector_output_dim")
    positions = (tower.count("image_size") // patch) ** 2 + 1
    layers = tower.count("num_hidden_layers") * _vit_layer(width, intermediate)
    embeddings = 3 * patch**2 * width + width + positions * width + 4 * width
    adapter = intermediate * projected_in + projected_in * projected
    return layers + embeddings + adapter + projected * hidden_size


def _qwen3_vl(tower: Fields, _hidden_size: int) -> int:
    """3-D patches, learned positions, merger and one more merger for each deepstack layer."""
    width, patch = tower.count("hidden_size"), tower.count("patch_size")
    merged = width * tower.count("spatial_merge_size") ** 2
    patch_inputs = (
        tower.count("in_channels", default=3) * tower.count("temporal_patch_size", default=2) * patch**2
    )
    out = tower.count("out_hidden_size")
    mlp = _linear(merged, merged) + _linear(merged, out)
    layers = tower.count("depth") * _vit_layer(width, tower.count("intermediate_size"))
    embeddings = _linear(patch_inputs, width) + tower.count("num_position_embeddings") * width
    deepstack = len(tower.items("deepstack_visual_indexes") or []) * (mlp + 2 * merged)
    return layers + embeddings + mlp + 2 * width + deepstack


_FORMULAS: dict[str, Callable[[Fields, int], int]] = {
    "gemma3": _gemma3,
    "llama4": _llama4,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
}
