"""Models as data: their layers, parameter counts and checkpoint formats.

Input: a preset's name, a `config.json` or its folder. Output: a `ModelSpec`, whose layers report their own parameters
and caches. `layers`, `latent`, `compressed` and `recurrent` have the kinds of token mixers (the interface is `Mixer`),
`feed_forward` has dense and routed feed-forwards, `parts` parameter matrices, `spec` the model. `hf_config` reads
Hugging Face's files, `presets` finds models by name; `quantization` describes the storage of weights and KV cache.
Nothing here depends on a GPU or an engine. Start with `spec`, then `layers`.
"""

from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward
from capacity.model.hf_config import from_hf_config
from capacity.model.hf_config.family import supported_model_types
from capacity.model.layers import (
    Attention,
    KvCacheGroup,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Mixer,
    SparseIndexer,
)
from capacity.model.parameter_part import ParameterPart, Sharding
from capacity.model.presets import add_model, is_known, load_model, model_names
from capacity.model.spec import ModelSpec
from capacity.model.stored_models import AddedModel, user_model_names
