"""Quality loss of lower-precision formats: published changes of benchmark scores, each with its source.

The values are in `capacity.techniques.quantization_methods`; this module selects those that apply to a format. Scores
differ between models, tasks and quantization recipes: they are third-party measurements of a few models, not
predictions for yours. A format without a published score has an unknown loss, never zero.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from capacity.base.quantity import sum_if_known
from capacity.model.quantization import QuantizationScheme
from capacity.techniques.quantization_methods import Quality, find_method

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.pool.resolve import ResolvedPool

METHODS = {
    "fp8": ("fp8-tensor", "fp8-channel"),
    "int8": ("smoothquant",),
    "w8a16": ("gptq-int8",),
    "int4": ("gptq-int4", "awq-int4"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
    "kv-fp8": ("kv-fp8",),
    "kv-int8": ("kv-int8",),
}  # published methods of each family of formats; `kv-`: of the KV cache
# fraction of a score: standard error of one OpenLLM v1 average, from the number of questions of its six tasks
# (ARC-C 1,172, HellaSwag 10,042, MMLU 14,042, TruthfulQA 817, Winogrande 1,267, GSM8K 1,319) at about 80 of 100 points:
# 0.4 points. Two runs differ by more than that by chance.
EVALUATION_NOISE = 0.005
SIMILAR_SIZE = 3.0  # size ratio up to which values of one model apply to another; assumed
SIZE = re.compile(r"(\d+(?:\.\d+)?)B\b")  # size in a model's name
SIXTEEN_BIT = ("bf16", "fp16", "fp32", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChange:
    """Loss of a benchmark score as a fraction: median and worst of the published values; None: unknown."""

    typical_loss_fraction: float | None
    worst_loss_fraction: float | None
    what: str
    source: str

    @property
    def lossless(self) -> bool:
        """Return whether even the worst published loss is within the noise of an evaluation."""
        return self.is_within(EVALUATION_NOISE)

    def is_within(self, max_loss_fraction: float | None) -> bool:
        """Return whether the worst published loss is known and within the limit; True without a limit (None)."""
        if max_loss_fraction is None:
            return True
        return self.worst_loss_fraction is not None and self.worst_loss_fraction <= max_loss_fraction


AS_PUBLISHED = QualityChange(
    typical_loss_fraction=0.0,
    worst_loss_fraction=0.0,
    what="the checkpoint as published",
    source="definition",
)


def published_quality(family: str, params: float) -> QualityChange | None:
    """Return the published loss of a family of formats for a model of `params` parameters; None if none is published.

    Values measured on models more than SIMILAR_SIZE times smaller or larger count only if there are no other values,
    because the same format loses more on a 7B than on a 70B model. Values without a model size always count.
    """
    figures = [
        each for name in METHODS.get(family, ()) for each in find_method(name).quality if each.loss_fractions
    ]
    sizes = [SIZE.search(figure.model) for figure in figures]
    similar = tuple(
        figure
        for figure, size in zip(figures, sizes, strict=True)
        if size is None or 1 / SIMILAR_SIZE <= params / (float(size[1]) * 1e9) <= SIMILAR_SIZE
    )
    return _summary(family, similar or tuple(figures)) if figures else None


@lru_cache(maxsize=64)
def _summary(family: str, figures: tuple[Quality, ...]) -> QualityChange:
    losses = [loss for figure in figures for loss in figure.loss_fractions]
    worst = max(figures, key=lambda figure: max(figure.loss_fractions))
    text = worst.text if worst.model in worst.text else f"{worst.text} ({worst.model})"
    return QualityChange(
        typical_loss_fraction=median(losses),
        worst_loss_fraction=max(losses),
        what=f"{family}, worst of {len(losses)} published results: {text}",
        source="; ".join(dict.fromkeys(f"{figure.source}, {figure.date}" for figure in figures)),
    )


def quality_change(
    scheme: QuantizationScheme,
    checkpoint: QuantizationScheme,
    kv_cache_dtype: str,
    kv_eviction: str | None = None,
    *,
    params: float,
) -> QualityChange:
    """Return the quality loss of serving `checkpoint` with weights in `scheme` and this KV dtype: the sum of both.

    `params` is the model's number of parameters. The loss from KV eviction is unknown because it depends on task and
    budget.
    """
    parts = []
    if scheme.name != checkpoint.name and scheme.quantized:
        weights = scheme.format_of("dense_ffn")
        parts.append(_published_or_unknown(weights.quality, f"{weights.name} weights", params))
    if kv_cache_dtype not in (*SIXTEEN_BIT, checkpoint.kv_cache_dtype):
        family = next((name for name in ("fp8", "int8") if kv_cache_dtype.startswith(name)), "")
        parts.append(_published_or_unknown(f"kv-{family}", f"{kv_cache_dtype} KV cache", params))
    if kv_eviction is not None:
        parts.append(_published_or_unknown("", f"KV eviction by {kv_eviction} at this budget", params))
    if len(parts) < 2:
        return parts[0] if parts else AS_PUBLISHED
    return QualityChange(
        typical_loss_fraction=sum_if_known([part.typical_loss_fraction for part in parts]),
        worst_loss_fraction=sum_if_known([part.worst_loss_fraction for part in parts]),
        what="; ".join(part.what for part in parts),
        source="; ".join(part.source for part in parts),
    )


def quality_of(resolved: "ResolvedPool", model: "ModelSpec") -> QualityChange:
    """Return the quality loss of serving the checkpoint of `model` in the formats of the pool."""
    own = resolved.pool.kv_eviction
    return quality_change(
        resolved.scheme, model.checkpoint, resolved.kv_cache_dtype, own, params=model.total_params
    )


def _published_or_unknown(family: str, what: str, params: float) -> QualityChange:
    unknown = QualityChange(
        typical_loss_fraction=None,
        worst_loss_fraction=None,
        what=f"no published quality result for {what}",
        source="none",
    )
    return published_quality(family, params) or unknown
