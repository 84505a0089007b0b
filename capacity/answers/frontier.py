"""Trade-off between tokens/s per user and tokens/s per GPU, for deployments with several GPUs, weight formats and
engines at several concurrencies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.load_point import (
    LOAD_FIELDS,
    LoadPoint,
    Progress,
    SizedPool,
    lengths_of,
    load_point,
    price_or_reason,
    smallest_pools,
)
from capacity.answers.load_sweep import REQUESTS
from capacity.answers.phases import estimate_fields
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, Pool, Traffic, build, make_deployment
from capacity.deployment.engines import find_engine
from capacity.deployment.engines.engine_spec import ranking_notes
from capacity.model import ModelSpec, load_model

MAX_LINES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierLine:
    """One deployment at increasing concurrency, up to the maximum number of requests that it runs at once.

    `quantization` and `engine` are as the user gave them. `reason` explains why there are no points.
    """

    gpu: str
    num_gpus: int | None
    tensor_parallel_size: int | None
    quantization: str | None
    engine: str
    points: tuple[LoadPoint, ...]
    reason: str | None

    @property
    def label(self) -> str:
        """Return a label such as `2 x h200-sxm-141gb, fp8, vllm`."""
        place = self.gpu if self.num_gpus is None else f"{self.num_gpus} x {self.gpu}"
        return f"{place}, {self.quantization or 'as published'}, {self.engine}"

    def best(self, tpot_s: float) -> LoadPoint | None:
        """Return the point with the most output tokens/s per GPU whose TPOT is at most `tpot_s`, or None."""
        within = [p for p in self.points if p.tpot_s is not None and p.tpot_s.value <= tpot_s]
        return max(within, key=_per_gpu, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier(AnswerRecord):
    """Deployments of one model at increasing concurrency, each with the given tensor-parallel size, else the smallest
    size that holds the model."""

    SCHEMA: ClassVar[str] = "capacity/frontier/v1"
    ROWS: ClassVar[str] = "lines"

    model: str
    input_len: int
    output_len: int
    lines: tuple[FrontierLine, ...]
    notes: tuple[str, ...] = ()

    def best(self, tpot_s: float) -> list[tuple[FrontierLine, LoadPoint]]:
        """Return each deployment (line) with its best load (point): the most output tokens/s per GPU with a TPOT of at
        most `tpot_s`. The best deployment is first; those without such a load are left out."""
        found = [(line, point) for line in self.lines if (point := line.best(tpot_s)) is not None]
        return sorted(found, key=lambda pair: -_per_gpu(pair[1]))

    def pareto_points(self) -> set[tuple[int, int]]:
        """Return the indices (line, point) of the points that no point exceeds in both speed per user and per GPU."""
        places = [
            (point.tpot_s.value, -_per_gpu(point), number, place)
            for number, line in enumerate(self.lines)
            for place, point in enumerate(line.points)
            if point.tpot_s is not None and point.output_tokens_per_s_per_gpu is not None
        ]
        least, front = 1.0, set()
        for _, rate, number, place in sorted(places):
            if rate < least:
                least = rate
                front.add((number, place))
        return front


@document_options(Pool, Traffic, Cost)
@validate_arguments
def frontier(
    model: str | Path | ModelSpec,
    *,
    gpus: Sequence[str],
    quantizations: Sequence[str | None] = (None,),
    engines: Sequence[str] = ("vllm",),
    tensor_parallel_sizes: Sequence[int | None] = (None,),
    loads: Sequence[int] = REQUESTS,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Frontier:
    """Run `estimate` for every combination of GPU, weight format (None: the checkpoint's), engine and tensor-parallel
    size (None: the smallest that holds the model), at each number of concurrent requests in `loads`. Combinations that
    give the same deployment are one line.

    `gpu`, `quantization` and `engine` in `options` are ignored. An impossible combination is included with a reason.
    Raises InvalidInput for more than 24 lines, and for options that no combination accepts.
    """
    places = list(product(gpus, quantizations, engines, tensor_parallel_sizes))
    if not 0 < len(places) <= MAX_LINES:
        raise InvalidInput(
            f"{len(places)} deployments (GPUs x formats x engines x sizes): must be from 1 to {MAX_LINES}"
        )
    pool, fields, prices = split(options, Pool, Traffic, Cost)
    if given := [name for name in (*LOAD_FIELDS, "requests_per_day") if name in fields]:
        raise InvalidInput(f"{given[0]} sets a single load: leave it out, or give `loads`")
    if not len(loads) or min(loads) < 1:
        raise InvalidInput(
            "loads must contain at least one number of requests; each must be whole and at least 1"
        )
    deployment = make_deployment(
        model,
        pool={**pool, "gpu": gpus[0]},
        traffic={**estimate_fields(fields), "concurrency": 1},
        cost=prices,
        question="frontier",
    )
    traffic = deployment.traffic
    input_len, output_len = lengths_of(traffic)
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    folder = None if profiles is None else str(profiles)
    pools = [_pool_at(pool, *place) for place in places]
    sized = smallest_pools(spec, pools, traffic, deployment.cost, profiles=folder, progress=progress)
    lines: dict[tuple[object, ...], FrontierLine] = {}
    for each, (_, quantization, engine, _) in zip(sized, places, strict=True):
        # the fewest GPUs and an equal explicit size are one deployment, at the position of the first
        own = each.point.gpu, each.point.tensor_parallel_size, quantization, engine
        if own not in lines:
            lines[own] = _line(each, traffic, deployment.cost, loads, quantization, engine)
    ranked = [line.engine for line in lines.values() if line.points]
    return Frontier(
        model=spec.name,
        input_len=input_len,
        output_len=output_len,
        lines=tuple(lines.values()),
        notes=ranking_notes(find_engine(name) for name in ranked),
    )


def _pool_at(
    fields: Mapping[str, object], gpu: str, quantization: str | None, engine: str, size: int | None
) -> Pool:
    own_size = {} if size is None else {"tensor_parallel_size": size}
    return build(Pool, {**fields, "gpu": gpu, "quantization": quantization, "engine": engine, **own_size})


def _line(
    sized: SizedPool,
    traffic: Traffic,
    cost: Cost,
    loads: Sequence[int],
    quantization: str | None,
    engine: str,
) -> FrontierLine:
    """Return one deployment with a point for each of `loads` up to the number of requests that it runs at once."""
    first = sized.point
    points: tuple[LoadPoint, ...] = ()
    if sized.pool is not None:
        price, note = price_or_reason(first.gpu, cost)
        at_once = min(first.kv_requests or 0, first.seats or 0)
        points = tuple(
            load_point(sized.pool, traffic.model_copy(update={"concurrency": load}), price, price_note=note)
            for load in sorted(set(loads))
            if load <= at_once
        )
    return make_from(FrontierLine, first, quantization=quantization, engine=engine, points=points)


def _per_gpu(point: LoadPoint) -> float:
    quantity = point.output_tokens_per_s_per_gpu
    return 0.0 if quantity is None else quantity.value
