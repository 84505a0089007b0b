"""Feed-forwards, dense and routed: exact parameter counts, as in transformers 5.23's modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from capacity.model.parts import ParameterPart, matrix, vector
from capacity.model.quantization import PartKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeedForward:
    """Gate, up and down projections (SwiGLU and its kin): 3·h·I."""

    intermediate_size: int

    def idle_params(self, hidden_size: int) -> int:  # noqa: ARG002
        """Of one layer, unused by a token: none."""
        return 0

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        return _gated_parts("mlp", "dense_ffn", hidden_size, self.intermediate_size, layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFeedForward:
    """Routed experts, `experts_per_token` of `num_experts` for each token, and experts that all tokens share."""

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0  # of all shared experts together
    shared_gate: bool = False  # a scalar gate on the shared expert (Qwen)
    expert_bias: bool = False  # gpt-oss
    router_bias: bool = False  # gpt-oss
    balanced_router: bool = (
        False  # training moves a bias on each expert's score until all are chosen alike (DeepSeek-V3)
    )

    def params_per_expert(self, hidden_size: int) -> int:
        """Of one routed expert, biases included."""
        matrices = 3 * hidden_size * self.expert_intermediate_size
        return matrices + (2 * self.expert_intermediate_size + hidden_size if self.expert_bias else 0)

    def idle_params(self, hidden_size: int) -> int:
        """Of one layer, unused by a token: the experts that it does not choose."""
        return (self.num_experts - self.experts_per_token) * self.params_per_expert(hidden_size)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        h, experts, width = hidden_size, self.num_experts, self.expert_intermediate_size
        parts = [matrix("mlp.gate", "router", experts, h, layers, sharding="replicated")]
        if self.router_bias:
            parts.append(vector("mlp.gate.bias", "router", experts, layers))
        parts += _gated_parts("mlp.experts", "experts", h, width, layers, copies=experts)
        if self.expert_bias:
            parts.append(_expert_bias(experts, 2 * width + h, layers))
        if self.shared_intermediate_size:
            parts += _gated_parts(
                "mlp.shared_expert", "shared_expert", h, self.shared_intermediate_size, layers
            )
        if self.shared_gate:
            parts.append(matrix("mlp.shared_expert_gate", "router", 1, h, layers, sharding="replicated"))
        return tuple(parts)


FeedForward: TypeAlias = DenseFeedForward | MoEFeedForward


def _gated_parts(
    prefix: str, kind: PartKind, hidden_size: int, width: int, layers: tuple[int, ...], *, copies: int = 1
) -> tuple[ParameterPart, ...]:
    shapes = (
        ("gate_proj", width, hidden_size),
        ("up_proj", width, hidden_size),
        ("down_proj", hidden_size, width),
    )
    return tuple(
        ParameterPart(
            name=f"{prefix}.{name}",
            kind=kind,
            rows=rows,
            columns=columns,
            matrices_per_layer=copies,
            layers=layers,
            sharding="experts" if kind == "experts" else "tensor",
        )
        for name, rows, columns in shapes
    )


def _expert_bias(num_experts: int, length: int, layers: tuple[int, ...]) -> ParameterPart:
    return ParameterPart(
        name="mlp.experts.bias",
        kind="experts",
        rows=length,
        matrices_per_layer=num_experts,
        layers=layers,
        sharding="experts",
        quantizable=False,
    )
