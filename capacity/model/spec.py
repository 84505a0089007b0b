"""Specification of a model: groups of identical layers, vocabulary, exact parameter counts, and caches."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from capacity.model.audio import AudioEncoder
from capacity.model.layers import KvCacheGroup, LayerGroup
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import matrix, vector
from capacity.model.quantization import QuantizationScheme, find_kv_cache_format
from capacity.model.vision_towers import VisionEncoder

Task: TypeAlias = Literal["generate", "embed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder or encoder: its layer groups, its vocabulary, and the format of its checkpoint.

    Totals do not include towers and multi-token-prediction layers (`vision_params`, `audio_params`, `mtp`). `vision`
    and `audio`: the shapes of the towers, None if unknown. `prompt_audio_s`: seconds of audio that form the prompt
    (Whisper). `uncounted`: sections of the config whose parameters are not counted. `notes`: assumptions made when the
    config was read. `norm_values`: learned values of a norm per hidden value: 1 for a scale, 2 with a bias, 0 if
    nothing is learned. `outside`: parameters other than layers, embedding, LM head and final norm (positions,
    per-layer embeddings). `assumed`: the model type is unknown, so the layers were derived only from the names of the
    config's fields. `rotary_values`: number of cosines and sines in the tables that an engine allocates for positions,
    0 if unknown. `task`: "generate", or "embed" for a model that only processes its prompt (embeddings, scores).
    """

    name: str
    hf_id: str | None
    model_type: str
    hidden_size: int
    vocab_size: int
    layer_groups: tuple[LayerGroup, ...]
    tie_word_embeddings: bool = False
    norms_per_layer: int = 2
    max_position_embeddings: int
    rotary_values: int = 0
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    checkpoint: QuantizationScheme
    mtp: LayerGroup | None = None
    vision_params: int = 0
    vision: VisionEncoder | None = None
    audio_params: int = 0
    audio: AudioEncoder | None = None
    prompt_audio_s: int | None = None
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    norm_values: int = 1
    outside: tuple[ParameterPart, ...] = ()
    assumed: bool = False
    task: Task = "generate"

    @property
    def tower_params(self) -> int:
        """Return the parameters of all towers, including projectors."""
        return self.vision_params + self.audio_params

    @property
    def towers(self) -> tuple[VisionEncoder, ...]:
        """Return the vision and audio encoders that run before the language model, if their shape is known."""
        return tuple(tower for tower in (self.vision, self.audio) if tower is not None)

    @property
    def without_towers(self) -> "ModelSpec":
        return replace(self, vision_params=0, vision=None, audio_params=0, audio=None)

    @property
    def num_layers(self) -> int:
        return sum(group.num_layers for group in self.layer_groups)

    @property
    def total_params(self) -> int:
        """Return the parameters of the text model with embeddings (tied ones once), without towers and MTP layers."""
        return sum(part.params for part in self.parameter_parts())

    @property
    def active_params(self) -> int:
        """Return the parameters that one token uses: all but the routed experts that are not selected."""
        return self.total_params - sum(
            group.num_layers * group.feed_forward.idle_params(self.hidden_size) for group in self.layer_groups
        )

    @property
    def is_moe(self) -> bool:
        return any(group.is_moe for group in self.layer_groups)

    @property
    def attention_kind(self) -> str:
        """Return `mha`, `gqa`, `mqa`, `mla` or `linear`; a hybrid has several joined by `+`."""
        return "+".join(sorted({group.mixer.kind for group in self.layer_groups} - {""}))

    @property
    def caches_latents(self) -> bool:
        """Return whether every layer caches one latent for all heads."""
        return all(group.mixer.latent for group in self.layer_groups)

    @property
    def softmax_groups(self) -> tuple[LayerGroup, ...]:
        """Return the groups of layers whose queries attend to individual keys."""
        return tuple(group for group in self.layer_groups if group.mixer.softmax)

    @property
    def window_tokens(self) -> int | None:
        """Return the largest attention window of all layers in tokens; None if no layer has a window."""
        return max((g.mixer.window_tokens for g in self.layer_groups if g.mixer.window_tokens), default=None)

    @property
    def num_attention_heads(self) -> int:
        """Return the number of query heads of softmax attention, which the tensor-parallel size must divide."""
        return max((group.mixer.num_heads for group in self.softmax_groups), default=0)

    @property
    def num_kv_heads(self) -> int:
        """Return the number of KV heads of softmax attention (1 for a latent)."""
        return max((group.mixer.num_kv_heads for group in self.softmax_groups), default=0)

    def parameter_parts(self) -> tuple[ParameterPart, ...]:
        """Return every parameter of the text model exactly once; a tied LM head is part of the embedding."""
        size = (self.vocab_size, self.hidden_size)
        embedding = matrix("embed_tokens", "embedding", *size, (), sharding="vocabulary")
        layers = [part for group in self.layer_groups for part in self.group_parts(group)]
        if self.norm_values:
            layers.append(vector("norm", "norm", self.norm_values * self.hidden_size, ()))
        if self.tie_word_embeddings or self.task == "embed":
            return (embedding, *layers, *self.outside)
        lm_head = matrix("lm_head", "lm_head", *size, (), sharding="vocabulary")
        return (embedding, *layers, *self.outside, lm_head)

    def mtp_parts(self) -> tuple[ParameterPart, ...]:
        """Return the parameters of the MTP layers: each has a full layer, a projection of 2h to h, and three norms.

        They share embedding and LM head with the model; checkpoints that store second copies of both are larger.
        """
        if self.mtp is None:
            return ()
        h, layers = self.hidden_size, self.mtp.layers
        projection = matrix("eh_proj", "attention", h, 2 * h, layers, sharding="replicated")
        return (projection, vector("mtp.norms", "norm", 3 * h, layers), *self.group_parts(self.mtp))

    def group_parts(self, group: LayerGroup) -> tuple[ParameterPart, ...]:
        return group.parts(self.hidden_size, self.norms_per_layer, norm_values=self.norm_values)

    def kv_cache_groups(self, kv_cache_dtype: str = "auto") -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of all layers. The keys of sparse indexers are the last groups."""
        kv = find_kv_cache_format(kv_cache_dtype, model_dtype=self.dtype)
        kept = [g for group in self.layer_groups for g in group.mixer.kv_cache_groups(group.layers, kv)]
        return tuple(sorted(kept, key=lambda group: group.index))

    @property
    def has_no_cache(self) -> bool:
        """Return whether the model has no KV cache and no state, because it is a pure encoder."""
        return not self.kv_cache_groups()

    def kv_bytes_per_token(self, kv_cache_dtype: str = "auto") -> float:
        """Return the cache bytes per token, summed over all layers without a window or fixed-size state.

        Keys of a sparse indexer are counted; replicas on tensor-parallel ranks are not. If every layer has a window
        (Phi-3, Mistral 7B v0.1), returns the bytes of those layers per token inside the window. Otherwise windowed
        layers (`window_kv_bytes_per_token`) and linear layers (`state_bytes_per_sequence`) are not included.
        """
        groups = self.kv_cache_groups(kv_cache_dtype)
        unbounded = sum(g.bytes_per_token for g in groups if g.kind == "full")
        return unbounded or self.window_kv_bytes_per_token(kv_cache_dtype)

    def window_kv_bytes_per_token(self, kv_cache_dtype: str = "auto") -> float:
        """Return the cache bytes per token of the layers with a window, for tokens inside the window."""
        return sum(g.bytes_per_token for g in self.kv_cache_groups(kv_cache_dtype) if g.kind == "window")

    def state_bytes_per_sequence(self) -> float:
        """Return the state bytes per sequence of all linear-attention layers, independent of the context length."""
        return sum(g.state_bytes_per_sequence for g in self.kv_cache_groups() if g.kind == "linear")
