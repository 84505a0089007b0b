"""Feed-forwards, dense and routed, with exact parameter counts as in the modules of transformers 5.23."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from capacity.model.parameter_part import ParameterPart, PartKind, Sharding
from capacity.model.parts import Product, matrix, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFeedForward:
    """Placeholder for a layer without a feed-forward, such as a Mamba layer."""

    def idle_params(self, hidden_size: int) -> int:  # noqa: ARG002
        """Return 0: a layer without a feed-forward has no unused parameters."""
        return 0

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeedForward:
    """Dense feed-forward with gate, up and down matrices (3·h·I parameters), or without a gate (2·h·I)."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False  # on every projection
    inner_norm: bool = False  # over the intermediate values (BitNet)

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def idle_params(self, hidden_size: int) -> int:  # noqa: ARG002
        """Return 0: each token uses all parameters of a dense feed-forward."""
        return 0

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        width = self.intermediate_size
        parts = [*_projections("mlp", "dense_ffn", hidden_size, width, layers, gated=self.gated)]
        if self.bias:
            wide = vector("mlp.up.bias", "bias", (self.matrices - 1) * width, layers, sharding="tensor")
            parts += [wide, vector("mlp.down_proj.bias", "bias", hidden_size, layers)]
        if self.inner_norm:
            parts.append(vector("mlp.inner_norm", "norm", width, layers, sharding="tensor"))
        return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFeedForward:
    """Routed experts, `experts_per_token` of `num_experts` for each token, and experts that all tokens share.

    `shared_intermediate_size`: width of all shared experts together, or of a parallel dense feed-forward.
    `balanced_router`: training adjusts a bias on each expert's score until all are chosen equally often (DeepSeek-V3).
    `router_in_fp32`: router weights and inputs are converted to 32 bits before they are multiplied (MiniMax-M2).
    `latent_size`: width of a narrower space in which the experts work, with a projection into it and one out of it
    (Nemotron 3 Super); 0: none.
    """

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False  # a scalar gate on the shared expert (Qwen)
    expert_bias: bool = False  # gpt-oss
    router_bias: bool = False  # gpt-oss, or a learned correction of each expert's score
    balanced_router: bool = False
    router_in_fp32: bool = False
    gated: bool = True  # False: two matrices per expert (Nemotron 3)
    latent_size: int = 0
    zero_experts: int = 0  # routed like experts, but compute nothing (LongCat)
    shared_bias: bool = False

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def params_per_expert(self, hidden_size: int) -> int:
        """Return the parameters of one routed expert, including biases."""
        width = self.latent_size or hidden_size
        matrices = self.matrices * width * self.expert_intermediate_size
        return matrices + (2 * self.expert_intermediate_size + hidden_size if self.expert_bias else 0)

    def idle_params(self, hidden_size: int) -> int:
        """Return the parameters of one layer that a token does not use: those of the experts not chosen for it."""
        real = self.experts_per_token * self.num_experts // (self.num_experts + self.zero_experts)
        return (self.num_experts - real) * self.params_per_expert(hidden_size)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        h, experts, width = hidden_size, self.num_experts, self.expert_intermediate_size
        scored = experts + self.zero_experts
        parts = [matrix("mlp.gate", "router", scored, h, layers, sharding="replicated")]
        if self.router_bias:
            parts.append(vector("mlp.gate.bias", "router", scored, layers))
        inner = self.latent_size or h
        parts += _projections(
            "mlp.experts", "experts", inner, width, layers, gated=self.gated, copies=experts
        )
        if self.latent_size:
            parts += [p for product in self.latent_products(h) for p in product.parts(layers)]
        if self.expert_bias:
            bias = vector("mlp.experts.bias", "experts", 2 * width + h, layers, sharding="experts")
            parts.append(replace(bias, matrices_per_layer=experts))
        if self.shared_intermediate_size:
            shared = self.shared_intermediate_size
            parts += _projections("mlp.shared_expert", "shared_expert", h, shared, layers, gated=self.gated)
            if self.shared_bias:
                length = (self.matrices - 1) * shared + h
                parts.append(vector("mlp.shared_expert.bias", "bias", length, layers))
        if self.shared_gate:
            parts.append(matrix("mlp.shared_expert_gate", "router", 1, h, layers, sharding="replicated"))
        return tuple(parts)

    def latent_products(self, hidden_size: int) -> tuple[Product, ...]:
        """Return the projections into and out of the experts' latent space; empty if there is none."""
        if not self.latent_size:
            return ()
        into, out = (self.latent_size, hidden_size), (hidden_size, self.latent_size)
        return tuple(
            Product(name=f"mlp.{name}_latent_proj", kind="shared_expert", rows=rows, columns=columns)
            for name, (rows, columns) in (("fc1", into), ("fc2", out))
        )


FeedForward: TypeAlias = DenseFeedForward | MoEFeedForward | NoFeedForward


def _projections(
    prefix: str,
    kind: PartKind,
    hidden_size: int,
    width: int,
    layers: tuple[int, ...],
    *,
    gated: bool,
    copies: int = 1,
) -> tuple[ParameterPart, ...]:
    sharding: Sharding = "experts" if kind == "experts" else "tensor"
    shapes = (
        *((("gate_proj", width, hidden_size),) if gated else ()),
        ("up_proj", width, hidden_size),
        ("down_proj", hidden_size, width),
    )
    return tuple(
        replace(
            matrix(f"{prefix}.{name}", kind, rows, columns, layers, sharding=sharding),
            matrices_per_layer=copies,
        )
        for name, rows, columns in shapes
    )
