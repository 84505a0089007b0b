"""Catalogue of quantization methods with published quality; each published result has its source and date."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import UnknownName
from capacity.base.spec import Spec
from capacity.model.quantization import QuantizationScheme, scheme_for
from capacity.pool.resolve import ResolvedPool

TABLE = Path(__file__).with_name("quantization_methods.toml")

Kind = Literal["none", "weight-only", "weights and activations", "kv-cache"]


class Quality(Spec):
    """A published result: scores before and after quantization, or `losses`, the fractions of scores that were lost."""

    metric: str
    model: str
    baseline: float | None = None
    quantized: float | None = None
    losses: tuple[float, ...] = ()
    source: str
    date: str

    @property
    def loss_fractions(self) -> tuple[float, ...]:
        """Return the fractions of task scores that quantization loses; empty for perplexities."""
        if self.baseline is None or self.quantized is None or "perplexity" in self.metric:
            return self.losses
        return (max(0.0, 1 - self.quantized / self.baseline),)

    @property
    def text(self) -> str:
        """Return the published result in one line."""
        if self.baseline is None or self.quantized is None:
            return self.source.partition(": ")[2] or self.source
        return f"{self.metric} {self.baseline:g} to {self.quantized:g} ({self.model})"


class QuantizationMethod(Spec):
    """One quantization method from the catalogue: its formats, its calibration, and its published quality."""

    name: str
    title: str
    kind: Kind
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    calibration: str
    gpu_hours_per_billion: float | None = Field(default=None, gt=0)
    gpu_hours_source: str = ""
    note: str = ""
    quality: tuple[Quality, ...] = Field(default=())

    def apply(self, resolved: ResolvedPool) -> ResolvedPool:
        """Return the same pool, quantized with this method. Raises InvalidInput if the model does not support it."""
        if self.kind == "kv-cache":
            return replace(resolved, kv_cache_dtype=self.kv_cache_dtype or "auto")
        return replace(resolved, scheme=self.scheme(resolved))

    def scheme(self, resolved: ResolvedPool) -> QuantizationScheme:
        """Return the pool's weight formats with this method; embedding, LM head, router and norms stay at 16 bit."""
        return scheme_for(resolved.model, self.quantization)


@lru_cache(maxsize=1)
def quantization_methods() -> dict[str, QuantizationMethod]:
    """Return all methods of the catalogue by name. Raises MalformedFile."""
    return read_rows(TABLE, QuantizationMethod)


def find_method(name: str) -> QuantizationMethod:
    """Return the method with this name. Raises UnknownName."""
    methods = quantization_methods()
    key = name.strip().lower()
    if key not in methods:
        raise UnknownName("quantization method", name, methods)
    return methods[key]
