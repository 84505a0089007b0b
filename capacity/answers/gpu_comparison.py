"""Which GPU serves this load, how fast and how dear: `estimate` on every GPU, each at its smallest pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.against_datasheet import Timed, slower_though_better
from capacity.answers.load_point import (
    LoadField,
    LoadPoint,
    in_order,
    lengths_of,
    load_of,
    smallest_pools,
)
from capacity.answers.phases import estimate_fields
from capacity.base.checked import checked
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, deployment_of
from capacity.hardware import profile_names
from capacity.model import ModelSpec, load_model
from capacity.pool.resolve import ResolvedPool

EVERY_GPU = "all"  # in place of a GPU's name


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuComparison(AnswerRecord):
    """`estimate` on every GPU, in `order`, each at the least tensor-parallel size that takes the load, at its largest
    where none does (or at that of the question); those that do not fit stand at the end with the reason of their
    largest pool."""

    SCHEMA: ClassVar[str] = "capacity/gpu-comparison/v1"

    model: str
    load_field: LoadField
    load: float
    input_len: int
    output_len: int
    order: str
    rows: tuple[LoadPoint, ...]
    notes: tuple[str, ...] = ()


@documented(Pool, Traffic, Cost)
@checked
def compare_gpus(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    gpus: Sequence[str] | None = None,
    order: str | None = None,
    profiles: str | Path | None = None,
    **options: Any,
) -> GpuComparison:
    """`estimate` on `gpus` (None: every profile), the best in `order` first; `gpu` in `options` does not count.

    `order`: price, month, ttft, tpot, throughput, throughput-per-gpu or gpus; None: price, or throughput-per-gpu where
    no price was asked for. What cannot be on a GPU is a row with
    its reason. Raises InvalidInput for an order or a load that cannot be, and what no GPU can be asked.
    """
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    if not isinstance(model, DeploymentFile):
        pool = {**pool, "gpu": EVERY_GPU}
    deployment = deployment_of(
        model, pool=pool, traffic=estimate_fields(traffic), cost=cost, question="estimate"
    )
    asked, first = deployment.traffic, deployment.pools[0]
    load_field, load = load_of(asked)
    input_len, output_len = lengths_of(asked)
    named = deployment.model
    spec = named if isinstance(named, ModelSpec) else load_model(named)
    folder = None if profiles is None else str(profiles)
    names = profile_names([folder] if folder else []) if gpus is None else gpus
    pools = [first.model_copy(update={"gpu": gpu}) for gpu in names]
    sized = smallest_pools(spec, pools, asked, deployment.cost, profiles=folder)
    if order is None:
        order = "price" if deployment.cost.model_fields_set else "throughput-per-gpu"
    return GpuComparison(
        model=spec.name,
        load_field=load_field,
        load=float(load),
        input_len=input_len,
        output_len=output_len,
        order=order,
        rows=in_order((each.point for each in sized), order),
        notes=slower_though_better(
            [_timed(each.pool, each.point) for each in sized if each.pool is not None]
        ),
    )


def _timed(pool: ResolvedPool, point: LoadPoint) -> Timed:
    each = {"TTFT": point.ttft_s, "TPOT": point.tpot_s}
    return Timed(
        model=pool.model.name,
        profile=pool.profile,
        pool=pool.pool,
        seconds={name: quantity.value for name, quantity in each.items() if quantity is not None},
    )
