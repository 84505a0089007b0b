"""Which GPU serves this load, how fast and how dear: `estimate` on every GPU, each at its smallest pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.load_point import LoadField, LoadPoint, in_order, load_of, smallest_pool
from capacity.answers.phases import estimate_fields
from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, deployment_of
from capacity.hardware import profile_names
from capacity.model import ModelSpec, load_model

EVERY_GPU = "all"  # in place of a GPU's name


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuComparison(AnswerRecord):
    """`estimate` on every GPU, in `order`, each at the least tensor-parallel size that takes the load (or at that of
    the question); those that do not fit stand at the end with the reason of their largest pool."""

    SCHEMA: ClassVar[str] = "capacity/gpu-comparison/v1"

    model: str
    load_field: LoadField
    load: float
    input_len: int
    output_len: int
    order: str
    rows: tuple[LoadPoint, ...]


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
    if asked.input_len is None or asked.output_len is None:
        raise InvalidInput("no lengths: give --input-len and --output-len, the tokens of a typical request")
    named = deployment.model
    spec = named if isinstance(named, ModelSpec) else load_model(named)
    folder = None if profiles is None else str(profiles)
    names = profile_names([folder] if folder else []) if gpus is None else gpus
    sized = [
        smallest_pool(spec, first.model_copy(update={"gpu": gpu}), asked, deployment.cost, profiles=folder)
        for gpu in names
    ]
    refused = [each.refused for each in sized]
    if refused and refused[0] is not None and len({str(error) for error in refused}) == 1:
        raise refused[0]  # of the question, not of a GPU
    if order is None:
        order = "price" if deployment.cost.model_fields_set else "throughput-per-gpu"
    return GpuComparison(
        model=spec.name,
        load_field=load_field,
        load=float(load),
        input_len=asked.input_len,
        output_len=asked.output_len,
        order=order,
        rows=in_order((each.point for each in sized), order),
    )
