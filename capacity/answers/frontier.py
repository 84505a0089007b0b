"""Speed for a user against use of a GPU: deployments over concurrency, several GPUs, formats and engines at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.load_point import (
    LOAD_FIELDS,
    LoadPoint,
    Sized,
    load_point,
    price_or_why_not,
    smallest_pool,
)
from capacity.answers.load_sweep import REQUESTS
from capacity.answers.phases import estimate_fields
from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, Pool, Traffic, build, deployment_of
from capacity.model import ModelSpec, load_model

MOST_LINES = 24
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierLine:
    """One deployment over concurrency, up to what it runs at once. `quantization` and `engine` as they were asked for.

    `reason` says why there is no point.
    """

    gpu: str
    num_gpus: int | None
    tensor_parallel_size: int | None
    quantization: str | None
    engine: str
    points: tuple[LoadPoint, ...]
    reason: str | None

    def best(self, tpot_s: float) -> LoadPoint | None:
        """The most output tokens/s per GPU among the points whose TPOT (s) is at most this; None where none is."""
        within = [p for p in self.points if p.tpot_s is not None and p.tpot_s.value <= tpot_s]
        return max(within, key=_per_gpu, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier(AnswerRecord):
    """Deployments of one model over concurrency, each at the fewest GPUs that hold it by tensor parallelism (or at the
    size of the question)."""

    SCHEMA: ClassVar[str] = "capacity/frontier/v1"
    ROWS: ClassVar[str] = "lines"

    model: str
    input_len: int
    output_len: int
    lines: tuple[FrontierLine, ...]


@documented(Pool, Traffic, Cost)
@checked
def frontier(
    model: str | Path | ModelSpec,
    *,
    gpus: Sequence[str],
    quantizations: Sequence[str | None] = (None,),
    engines: Sequence[str] = ("vllm",),
    loads: Sequence[int] = REQUESTS,
    profiles: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Frontier:
    """`estimate` of every GPU with every weight format (None: as published) and engine, over closed loops of `loads`.

    `gpu`, `quantization` and `engine` in `options` do not count. What cannot be is a line with its reason. Raises
    InvalidInput for more than 24 lines, and for what cannot be asked of any.
    """
    places = list(product(gpus, quantizations, engines))
    if not 0 < len(places) <= MOST_LINES:
        raise InvalidInput(f"{len(places)} deployments: give from 1 to {MOST_LINES} of GPU x format x engine")
    pool, fields, prices = split(options, Pool, Traffic, Cost)
    if given := [name for name in LOAD_FIELDS if name in fields]:
        raise InvalidInput(f"{given[0]} is a load of its own: leave it out, or give `loads`")
    if not len(loads) or min(loads) < 1:
        raise InvalidInput("loads must be whole numbers of requests, at least one, from 1")
    deployment = deployment_of(
        model,
        pool={**pool, "gpu": gpus[0]},
        traffic={**estimate_fields(fields), "concurrency": 1},
        cost=prices,
        question="estimate",
    )
    traffic = deployment.traffic
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("no lengths: give input_len and output_len, the tokens of a typical request")
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    folder = None if profiles is None else str(profiles)
    lines, refused = [], []
    for done, (gpu, quantization, engine) in enumerate(places):
        if progress is not None:
            progress(done, len(places))
        own = {**pool, "gpu": gpu, "engine": engine, "quantization": quantization}
        sized = smallest_pool(spec, build(Pool, own), traffic, deployment.cost, profiles=folder)
        refused.append(sized.refused)
        lines.append(_line(sized, traffic, deployment.cost, loads, quantization=quantization, engine=engine))
    if refused[0] is not None and len({str(error) for error in refused}) == 1:
        raise refused[0]  # of the question, not of a deployment
    return Frontier(
        model=spec.name, input_len=traffic.input_len, output_len=traffic.output_len, lines=tuple(lines)
    )


def _line(
    sized: Sized, traffic: Traffic, cost: Cost, loads: Sequence[int], *, quantization: str | None, engine: str
) -> FrontierLine:
    """A deployment at the loads that it runs at once."""
    first = sized.point
    points: tuple[LoadPoint, ...] = ()
    if sized.pool is not None:
        price, note = price_or_why_not(first.gpu, cost)
        at_once = min(first.kv_requests or 0, first.seats or 0)
        points = tuple(
            load_point(sized.pool, traffic.model_copy(update={"concurrency": load}), price, price_note=note)
            for load in sorted(set(loads))
            if load <= at_once
        )
    return FrontierLine(
        gpu=first.gpu,
        num_gpus=first.num_gpus,
        tensor_parallel_size=first.tensor_parallel_size,
        quantization=quantization,
        engine=engine,
        points=points,
        reason=first.reason,
    )


def _per_gpu(point: LoadPoint) -> float:
    quantity = point.output_tokens_per_s_per_gpu
    return 0.0 if quantity is None else quantity.value
