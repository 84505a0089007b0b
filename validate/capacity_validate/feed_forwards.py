"""Feed-forward layers of the harness's transformer: dense, and mixtures of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from capacity.model.feed_forward import MoEFeedForward
from capacity_validate.kernels.experts import (
    ExpertWeights,
    grouped_experts,
    grouped_in_one_kernel,
    looped_experts,
)
from capacity_validate.kernels.fused import gated
from capacity_validate.step_inputs import Storage


class DenseMlp:
    capturable = True  # in a CUDA graph

    def __init__(self, owner: Storage, width: int) -> None:
        hidden = owner.model.hidden_size
        self.gate_up = owner.random(2 * width, hidden, scale=hidden**-0.5)
        self.down = owner.random(hidden, width, scale=width**-0.5)

    @property
    def weights(self) -> list[Any]:
        return [self.gate_up, self.down]

    def __call__(self, x: Any) -> Any:
        return functional.linear(gated(functional.linear(x, self.gate_up)), self.down)


class ExpertMlp:
    """Routed experts with softmax over the chosen, and a dense shared expert where the model has one."""

    def __init__(self, owner: Storage, spec: MoEFeedForward) -> None:
        hidden, width = owner.model.hidden_size, spec.expert_intermediate_size
        self.spec = spec
        self.router = owner.random(spec.num_experts, hidden, scale=hidden**-0.5)
        self.router_bias = owner.random(spec.num_experts, scale=0.1) if spec.router_bias else None
        biased = spec.expert_bias
        self.experts = ExpertWeights(
            gate_up=owner.random(spec.num_experts, 2 * width, hidden, scale=hidden**-0.5),
            down=owner.random(spec.num_experts, hidden, width, scale=width**-0.5),
            gate_up_bias=owner.random(spec.num_experts, 2 * width, scale=0.1) if biased else None,
            down_bias=owner.random(spec.num_experts, hidden, scale=0.1) if biased else None,
        )
        self.shared = (
            DenseMlp(owner, spec.shared_intermediate_size) if spec.shared_intermediate_size else None
        )
        self.shared_gate = owner.random(1, hidden, scale=hidden**-0.5) if spec.shared_gate else None
        self.capturable = grouped_in_one_kernel(torch, owner.device, owner.dtype)
        self.run = grouped_experts if self.capturable else looped_experts

    @property
    def weights(self) -> list[Any]:
        shared = self.shared.weights if self.shared else []
        optional = (self.router_bias, self.shared_gate)
        return [self.router, *self.experts.tensors, *shared, *(part for part in optional if part is not None)]

    def __call__(self, x: Any) -> Any:
        routed = functional.linear(x, self.router, self.router_bias).float()
        scores, chosen = torch.topk(routed, self.spec.experts_per_token)
        out = self.run(torch, self.experts, x, torch.softmax(scores, dim=-1).to(x.dtype), chosen)
        if self.shared is None:
            return out
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(functional.linear(x, self.shared_gate))
        return out + shared
