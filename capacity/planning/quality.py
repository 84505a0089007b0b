"""What a narrower format costs in answers: published changes of task scores, each with its source.

The figures stand in `capacity.techniques.quantization_methods`; here is which of them
speak for a format. Scores differ between models, tasks and recipes: these are other people's measurements of some
models, not predictions for yours. A format without a published score is unknown, never free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from capacity.model.quantization import QuantizationScheme
from capacity.techniques.quantization_methods import Quality, find_method

METHODS = {
    "fp8": ("fp8-tensor", "fp8-channel"),
    "int8": ("smoothquant",),
    "w8a16": ("gptq-int8",),
    "int4": ("gptq-int4", "awq-int4"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
    "kv-fp8": ("kv-fp8",),
    "kv-int8": ("kv-int8",),
}  # what is published of each family of formats; `kv-`: of the KV cache
# share of the scores: the standard error of one OpenLLM v1 average, by the numbers of questions of its six tasks
# (ARC-C 1,172, HellaSwag 10,042, MMLU 14,042, TruthfulQA 817, Winogrande 1,267, GSM8K 1,319) at about 80 of 100 points:
# 0.4 points. Two runs differ by more than that by chance.
EVALUATION_NOISE = 0.005
SIXTEEN_BIT = ("bf16", "fp16", "fp32", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChange:
    """Share of a benchmark's score that is lost, at the median and at worst of what was published; None: unknown."""

    typical_loss_fraction: float | None
    worst_loss_fraction: float | None
    what: str
    source: str

    @property
    def lossless(self) -> bool:
        """Whether even the worst published loss is within the noise of an evaluation."""
        return self.within(EVALUATION_NOISE)

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
    return {family: _published(family, names) for family, names in METHODS.items()}


def _published(family: str, names: Iterable[str]) -> QualityChange:
    figures = [figure for name in names for figure in find_method(name).quality if figure.loss_fractions]
    losses = [loss for figure in figures for loss in figure.loss_fractions]
    worst = max(figures, key=lambda figure: max(figure.loss_fractions))
    return QualityChange(
        typical_loss_fraction=median(losses),
        worst_loss_fraction=max(losses),
        what=f"{family}, the worst of {len(losses)} published: {_figure(worst)}",
        source="; ".join(dict.fromkeys(f"{figure.source}, {figure.date}" for figure in figures)),
    )


def _figure(figure: Quality) -> str:
    return figure.text if figure.model in figure.text else f"{figure.text} ({figure.model})"


def quality_change(
    scheme: QuantizationScheme,
    checkpoint: QuantizationScheme,
    kv_cache_dtype: str,
    kv_eviction: str | None = None,
) -> QualityChange:
    """The loss of serving `checkpoint` as `scheme` with that KV cache; losses of weights and cache add up.

    What dropping tokens loses depends on task and budget: no score stands for it.
    """
    changes = [_of_weights(scheme, checkpoint), _of_cache(kv_cache_dtype, checkpoint)]
    if kv_eviction is not None:
        changes.append(_known("", f"KV eviction by {kv_eviction} at this budget"))
    parts = [change for change in changes if change is not AS_PUBLISHED]
    if len(parts) < 2:
        return parts[0] if parts else AS_PUBLISHED
    return QualityChange(
        typical_loss_fraction=_sum(part.typical_loss_fraction for part in parts),
        worst_loss_fraction=_sum(part.worst_loss_fraction for part in parts),
        what="; ".join(part.what for part in parts),
        source="; ".join(part.source for part in parts),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    losses = list(values)
    known = [value for value in losses if value is not None]
    return sum(known) if len(known) == len(losses) else None


def _of_weights(scheme: QuantizationScheme, checkpoint: QuantizationScheme) -> QualityChange:
    if scheme.name == checkpoint.name or not scheme.quantized:
        return AS_PUBLISHED
    weights = scheme.format_of("dense_ffn")
    return _known(weights.quality, f"{weights.name} weights")


def _of_cache(kv_cache_dtype: str, checkpoint: QuantizationScheme) -> QualityChange:
    if kv_cache_dtype in SIXTEEN_BIT or kv_cache_dtype == checkpoint.kv_cache_dtype:
        return AS_PUBLISHED
    family = next((name for name in ("fp8", "int8") if kv_cache_dtype.startswith(name)), "")
    return _known(f"kv-{family}", f"{kv_cache_dtype} KV cache")


def _known(family: str, what: str) -> QualityChange:
    unknown = QualityChange(
        typical_loss_fraction=None,
        worst_loss_fraction=None,
        what=f"no published figure for {what}",
        source="none",
    )
    return quality_table().get(family, unknown)
