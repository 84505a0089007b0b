"""Models as data: what their layers are, how many parameters they have, and how their checkpoints are stored."""

from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward
from capacity.model.hf_config import from_hf_config, supported_model_types
from capacity.model.layers import (
    Attention,
    KvCacheGroup,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Mixer,
    SparseIndexer,
)
from capacity.model.parts import ParameterPart, Sharding
from capacity.model.presets import load_model, model_names
from capacity.model.spec import ModelSpec

__all__ = [
    "Attention",
    "DenseFeedForward",
    "FeedForward",
    "KvCacheGroup",
    "LatentAttention",
    "LayerGroup",
    "LinearAttention",
    "Mixer",
    "MoEFeedForward",
    "ModelSpec",
    "ParameterPart",
    "Sharding",
    "SparseIndexer",
    "from_hf_config",
    "load_model",
    "model_names",
    "supported_model_types",
]
