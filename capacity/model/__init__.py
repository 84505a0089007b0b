"""Models as data: what their layers are, how many parameters they have, and how their checkpoints are stored.

In: a preset's name, a `config.json` or its folder. Out: a `ModelSpec`, whose layers say themselves what they count
and cache. `layers` has one class for each kind of mixer (what a mixer must say is `Mixer`), `feed_forward` the dense
and the routed ones, `parts` the parameters, `spec` the model; `hf_config` reads Hugging Face's files, `presets` the
bundled ones and the names of copies; `quantization` is how weights and KV cache are stored. Nothing here
knows a GPU or an engine. Start reading at `spec`, then `layers`.
"""

from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward
from capacity.model.hf_config import from_hf_config
from capacity.model.hf_config.family import supported_model_types
from capacity.model.kept import KeptModel, kept_names
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
