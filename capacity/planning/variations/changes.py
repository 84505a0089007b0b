"""A change to one deployment: what differs, and what is to be said of it; and what fits its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from capacity.deployment import Pool
from capacity.deployment.drafts import DRAFT_FIELDS
from capacity.hardware.pricing import Price
from capacity.model import ModelSpec
from capacity.planning.space import rounded_context
from capacity.pool.drafting import Speculation, find_speculator
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

Fields = Mapping[str, object]
Need = Literal["nothing", "a restart", "another checkpoint", "other hardware"]
NO_DRAFTS: Fields = {name: Pool.model_fields[name].default for name in DRAFT_FIELDS}


def needed_context(resolved: ResolvedPool, workload: Workload) -> int:
    """Return the context length that this traffic needs, rounded up."""
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    return min(rounded_context(longest), resolved.max_model_len)


def mean_context(workload: Workload) -> float:
    """Return the tokens that a request holds half way through its answer."""
    return float((workload.prompt_tokens + workload.output_tokens / 2).mean())


def best_drafts(resolved: ResolvedPool, name: str, in_flight: int, context: int) -> Fields:
    """Return the pool's fields for a way to draft, with the number of drafts that is best for so many requests at this
    context."""
    way = find_speculator(name, resolved.model)
    drafts = Speculation(resolved, way).best(max(in_flight, 1), max(context, 1)).draft_tokens
    return {"speculator": name, "num_speculative_tokens": max(drafts, 1)}


@dataclass(frozen=True, slots=True)
class Change:
    """A deployment that differs: fields of its pool and of what stands before it, another model, another price.

    `refused` is why it cannot be tried; `quality` and `worst_loss_fraction` replace what is published for the formats.
    """

    text: str
    pool: Fields = field(default_factory=dict)
    service: Fields = field(default_factory=dict)
    model: ModelSpec | None = None
    price: Price | None = None
    note: str = ""
    quality: str | None = None
    worst_loss_fraction: float | None = None
    refused: str | None = None

    @property
    def flags(self) -> str:
        """As the command line writes it."""
        fields = {**self.pool, **self.service}
        return " ".join(_flag(name, value) for name, value in fields.items())

    @property
    def needs(self) -> Need:
        """What it takes to make the change."""
        if self.price is not None or {"gpu", "tensor_parallel_size"} & self.pool.keys():
            return "other hardware"
        if self.model is not None or self.pool.get("speculator") in ("eagle3", "mtp"):
            return "another checkpoint"
        if self.pool.get("quantization") not in (None, "fp8"):  # engines quantize to FP8 while they load
            return "another checkpoint"
        return "a restart" if self.pool.keys() - {"replicas"} else "nothing"


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"(no --{dashed})" if value is None else f"--{dashed} {value}"
