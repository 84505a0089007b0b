"""Changes to one deployment, and settings that match its requests."""

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
    """Return the context length that the longest request needs, rounded up; at most the engine's context length."""
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    return min(rounded_context(longest), resolved.max_model_len)


def mean_context(workload: Workload) -> float:
    """Return the mean number of tokens of a request at the time when half of its output is generated."""
    return float((workload.prompt_tokens + workload.output_tokens / 2).mean())


def best_drafts(resolved: ResolvedPool, name: str, in_flight: int, context: int) -> Fields:
    """Return the settings of a draft method, with the best number of draft tokens for this batch and context length."""
    way = find_speculator(name, resolved.model)
    drafts = Speculation(resolved, way).best_round(max(in_flight, 1), max(context, 1)).draft_tokens
    return {"speculator": name, "num_speculative_tokens": max(drafts, 1)}


@dataclass(frozen=True, slots=True)
class Change:
    """Change to a deployment: new values for fields of its pool or service, another model, or another price.

    `refused` is the reason why the change cannot be tried. `quality` and `worst_loss_fraction` replace the published
    values of the weight and KV formats.
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
        fields = {**self.pool, **self.service}
        return " ".join(_flag(name, value) for name, value in fields.items())

    @property
    def needs(self) -> Need:
        """Return what the change requires: other hardware, another checkpoint, a restart, or nothing."""
        if self.price is not None or {"gpu", "tensor_parallel_size"} & self.pool.keys():
            return "other hardware"
        if self.model is not None or self.pool.get("speculator") in ("eagle3", "mtp"):
            return "another checkpoint"
        if self.pool.get("quantization") not in (None, "fp8"):  # engines quantize to FP8 while loading
            return "another checkpoint"
        return "a restart" if self.pool.keys() - {"replicas"} else "nothing"


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"(no --{dashed})" if value is None else f"--{dashed} {value}"
