"""A change to one deployment: what differs, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.hardware.pricing import Price
from capacity.model import ModelSpec

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment that differs: fields of its pool and of what stands before it, another model, another price.

    `refused` says why it cannot be tried at all; `quality` stands in for what the formats say, and so does
    `worst_loss_fraction`, the worst that was published. `scheduling`: "static", for batches that wait for all of them.
    """

    text: str
    pool: Fields = field(default_factory=dict)
    service: Fields = field(default_factory=dict)
    model: ModelSpec | None = None
    price: Price | None = None
    note: str = ""
    quality: str | None = None
    worst_loss_fraction: float | None = None
    scheduling: str = "continuous"
    refused: str | None = None

    @property
    def flags(self) -> str:
        """As the command line writes it."""
        static = {"scheduling": self.scheduling} if self.scheduling != "continuous" else {}
        fields = {**self.pool, **self.service, **static}
        return " ".join(_flag(name, value) for name, value in fields.items())


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"(no --{dashed})" if value is None else f"--{dashed} {value}"
