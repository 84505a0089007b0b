"""What a narrower format costs in answers: published changes of task scores, each with its source.

Scores differ between models, tasks and recipes: these are other people's measurements of some models, not
predictions for yours. A format without a published figure is unknown, never free.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from capacity.quantization import QuantizationScheme, WeightFormat

TABLE = Path(__file__).with_name("quality.csv")
SIXTEEN_BIT = ("bf16", "fp16", "fp32", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChange:
    """Share of a benchmark's score that is lost, typically and at worst of what was published; None: unknown."""

    typical_loss_fraction: float | None
    worst_loss_fraction: float | None
    what: str
    source: str

    def within(self, max_loss_fraction: float | None) -> bool:
        """Whether even the worst published loss is allowed; an unknown one is only where none is asked for."""
        if max_loss_fraction is None:
            return True
        return self.worst_loss_fraction is not None and self.worst_loss_fraction <= max_loss_fraction


AS_PUBLISHED = QualityChange(
    typical_loss_fraction=0.0,
    worst_loss_fraction=0.0,
    what="the checkpoint as published",
    source="definition",
)


@lru_cache(maxsize=1)
def quality_table() -> dict[str, QualityChange]:
    """Published changes by family of format; KV-cache formats begin with `kv-`."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {
            row["format"]: QualityChange(
                typical_loss_fraction=float(row["typical_loss_fraction"]),
                worst_loss_fraction=float(row["worst_loss_fraction"]),
                what=row["what"],
                source=f"{row['source']}, {row['date']}",
            )
            for row in csv.DictReader(file)
        }


def quality_change(
    scheme: QuantizationScheme, checkpoint: QuantizationScheme, kv_cache_dtype: str
) -> QualityChange:
    """The loss of serving `checkpoint` as `scheme` with that KV cache; losses of weights and cache add up."""
    changes = [_of_weights(scheme, checkpoint), _of_cache(kv_cache_dtype, checkpoint)]
    parts = [change for change in changes if change is not AS_PUBLISHED]
    if len(parts) < 2:
        return parts[0] if parts else AS_PUBLISHED
    return QualityChange(
        typical_loss_fraction=_sum(part.typical_loss_fraction for part in parts),
        worst_loss_fraction=_sum(part.worst_loss_fraction for part in parts),
        what="; ".join(part.what for part in parts),
        source="; ".join(part.source for part in parts),
    )


def _sum(values: object) -> float | None:
    found = list(values)  # type: ignore[call-overload]
    return None if None in found else sum(found)


def _of_weights(scheme: QuantizationScheme, checkpoint: QuantizationScheme) -> QualityChange:
    if scheme.name == checkpoint.name or not scheme.quantized:
        return AS_PUBLISHED
    weights = scheme.format_of("dense_ffn")
    return _known(_family(weights), f"{weights.name} weights")


def _of_cache(kv_cache_dtype: str, checkpoint: QuantizationScheme) -> QualityChange:
    if kv_cache_dtype in SIXTEEN_BIT or kv_cache_dtype == checkpoint.kv_cache_dtype:
        return AS_PUBLISHED
    return _known("kv-fp8" if kv_cache_dtype.startswith("fp8") else "", f"{kv_cache_dtype} KV cache")


def _known(family: str, what: str) -> QualityChange:
    unknown = QualityChange(
        typical_loss_fraction=None,
        worst_loss_fraction=None,
        what=f"no published figure for {what}",
        source="none",
    )
    return quality_table().get(family, unknown)


def _family(weights: WeightFormat) -> str:
    """The row of the table that speaks for a format."""
    if weights.name.startswith("fp8"):
        return "fp8"
    if weights.name == "nvfp4":
        return "nvfp4"
    if weights.name.startswith("int4"):
        return "int4"
    if weights.name == "int8":
        return "int8"
    return "w8a16" if weights.name.endswith("w8a16") else ""
