"""Fit grid: one model on every GPU type at every tensor-parallel size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.fit import fit
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Pool
from capacity.hardware import profile_names
from capacity.model import ModelSpec, load_model

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One GPU type at one tensor-parallel size. `reason`: why the model does not fit; capacities are then None."""

    gpu: str
    tensor_parallel_size: int
    fits: bool
    reason: str | None = None
    kv_capacity_tokens: int | None = None
    max_context_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGrid(AnswerRecord):
    """`fit` on every GPU type at every tensor-parallel size. `max_concurrency` is for `max_model_len` tokens."""

    SCHEMA: ClassVar[str] = "capacity/fit-grid/v1"
    ROWS: ClassVar[str] = "cells"

    model: str
    cells: tuple[GridCell, ...]


@document_options(Pool)
def fit_grid(
    model: str | Path | ModelSpec,
    *,
    gpus: Sequence[str] | None = None,
    tensor_parallel_sizes: Sequence[int] = SIZES,
    profiles: str | Path | None = None,
    **options: Any,
) -> FitGrid:
    """Return `fit` on `gpus` (None: every profile) at each tensor-parallel size; these override `options`.

    A combination that a GPU cannot run (an unsupported format, an uneven split) is a `GridCell` with a reason. Raises
    UnknownName or MalformedFile for the model.
    """
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    names = profile_names([profiles] if profiles else []) if gpus is None else gpus
    places = ((gpu, size) for gpu in names for size in tensor_parallel_sizes)
    return FitGrid(
        model=spec.name, cells=tuple(_cell(spec, gpu, size, options, profiles) for gpu, size in places)
    )


def _cell(
    spec: ModelSpec, gpu: str, size: int, options: Mapping[str, Any], profiles: str | Path | None
) -> GridCell:
    place: Mapping[str, Any] = {"gpu": gpu, "tensor_parallel_size": size}
    try:
        answer = fit(spec, profiles=profiles, **{**options, **place})
    except InvalidInput as error:
        return GridCell(**place, fits=False, reason=str(error))
    if not answer.fits:
        return GridCell(**place, fits=False, reason=answer.reason)
    return make_from(GridCell, answer, **place)
