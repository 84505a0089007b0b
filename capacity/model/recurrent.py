"""Mixers with a state of fixed size per sequence instead of a growing cache."""

from dataclasses import dataclass
from typing import ClassVar

from capacity.model.parameter_part import ParameterPart, PartKind
from capacity.model.parts import KvCacheGroup, Mixer, Product, matrix, vector
from capacity.model.quantization import KvCacheFormat


class FixedState:
    """Base of mixers whose layers store a state of fixed size per sequence instead of a KV cache."""

    __slots__ = ()
    softmax: ClassVar[bool] = False
    latent: ClassVar[bool] = False
    window_tokens: ClassVar[None] = None
    flops_per_pair: ClassVar[float] = 0.0

    @property
    def num_heads(self) -> int:
        raise NotImplementedError

    @property
    def num_kv_heads(self) -> int:
        """Return the number of heads by which tensor parallelism can divide the state."""
        return self.num_heads

    @property
    def state_bytes_per_sequence(self) -> float:
        return 0.0

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:  # noqa: ARG002
        return 0.0

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:  # noqa: ARG002
        """Return the cache group of these layers: a state whose size does not depend on the context."""
        state = KvCacheGroup(
            kind="linear",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            state_bytes_per_sequence=self.state_bytes_per_sequence * len(layers),
        )
        return (state,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention(FixedState):
    """Gated DeltaNet, the linear attention of Qwen3-Next and Qwen3.5; its state has a fixed size per sequence."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_bytes_per_value: int = 4  # `mamba_ssm_dtype`: fp32

    kind: ClassVar[str] = "linear"

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def num_heads(self) -> int:
        return self.num_key_heads

    @property
    def state_bytes_per_sequence(self) -> float:
        """Return the bytes of one layer: the recurrent state, and the convolution's last inputs at 16 bit."""
        values = self.num_value_heads * self.key_head_dim * self.value_head_dim
        recurrent = values * self.state_bytes_per_value
        convolution = (2 * self.key_dim + self.value_dim) * (self.conv_kernel - 1) * 2
        return recurrent + convolution

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return the parameters of these layers: h(2K+2V) + 2h·H_v + (2K+V)·conv + 2H_v + d_v + V·h per layer.

        h: hidden size; K and V: width of all key and all value heads; H_v: value heads; d_v: their size; conv: kernel
        size.
        """
        h, k, v, heads = hidden_size, self.key_dim, self.value_dim, self.num_value_heads
        kind: PartKind = "linear_attention"
        return (
            matrix("linear_attn.in_proj_qkv", kind, 2 * k + v, h, layers),
            matrix("linear_attn.in_proj_z", kind, v, h, layers),
            matrix("linear_attn.in_proj_ba", kind, 2 * heads, h, layers),
            vector("linear_attn.conv1d", kind, (2 * k + v) * self.conv_kernel, layers, sharding="tensor"),
            vector("linear_attn.decay", kind, 2 * heads, layers, sharding="tensor"),
            vector("linear_attn.norm", "norm", self.value_head_dim, layers),
            matrix("linear_attn.out_proj", kind, h, v, layers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(FixedState):
    """Recurrence of Mamba, Mamba-2, Kimi Delta Attention, lightning attention or a short convolution.

    All of these have the same fields. `products`: matrices by which each token is multiplied. The state has
    `state_values` of `state_bytes_per_value` bytes each, and `convolution_values` at 16 bit (a convolution's last
    inputs). `flops_per_token`: FLOPs of one update of the state. `vector_values`: number of parameters outside of
    matrices.
    """

    kind: str
    num_heads: int  # that tensor parallelism divides
    products: tuple[Product, ...]
    vector_values: int
    state_values: int
    convolution_values: int
    flops_per_token: float
    state_bytes_per_value: int = 4

    value_head_dim: ClassVar[int] = 0

    @property
    def state_bytes_per_sequence(self) -> float:
        return float(self.state_values * self.state_bytes_per_value + 2 * self.convolution_values)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:  # noqa: ARG002
        """Return the parameters of these layers: the matrices, and one vector with all other parameters."""
        products = [part for product in self.products for part in product.parts(layers)]
        if self.vector_values:
            length = self.vector_values
            products.append(vector("mixer.others", "linear_attention", length, layers, sharding="tensor"))
        return tuple(products)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMixer(FixedState):
    """Placeholder for a layer without a token mixer, if feed-forwards count as separate layers (Nemotron-H)."""

    kind: ClassVar[str] = ""
    value_head_dim: ClassVar[int] = 0
    num_heads: ClassVar[int] = 0

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:  # noqa: ARG002
        return ()

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixer:
    """Attention and a recurrence in parallel: both read a layer's input, and their outputs are added (Falcon-H1)."""

    attention: Mixer
    recurrence: Recurrence

    softmax: ClassVar[bool] = True
    latent: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        return f"{self.attention.kind}+{self.recurrence.kind}"

    @property
    def num_heads(self) -> int:
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.attention.num_kv_heads

    @property
    def value_head_dim(self) -> int:
        return self.attention.value_head_dim

    @property
    def window_tokens(self) -> int | None:
        return self.attention.window_tokens

    @property
    def flops_per_pair(self) -> float:
        return self.attention.flops_per_pair

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        return self.attention.kv_bytes_per_token(kv)

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of the attention and of the recurrence."""
        return self.attention.kv_cache_groups(layers, kv) + self.recurrence.kv_cache_groups(layers, kv)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        return self.attention.parts(hidden_size, layers) + self.recurrence.parts(hidden_size, layers)
