"""Vision towers: what published totals count beside the language model."""

from __future__ import annotations

from capacity.model import load_model


# Totals of the safetensors metadata that the models' pages on the Hugging Face hub state; they count what we
# count apart: vision tower, MTP layer with its copies of embedding and head, score correction biases, scales.
def test_vision_towers_make_up_the_published_totals() -> None:
    for name, published in {
        "gemma-3-4b": 4_300_079_472,
        "gemma-3-12b": 12_187_325_040,
        "gemma-3-27b": 27_432_406_640,
        "llama-4-scout": 108_641_793_536,
    }.items():
        model = load_model(name)
        assert model.total_params + model.vision_params == published
