"""A change to one deployment: what differs, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from capacity.hardware.pricing import Price
from capacity.model import ModelSpec

Fields = Mapping[str, object]
Need = Literal["nothing", "a restart", "another checkpoint", "other hardware"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
