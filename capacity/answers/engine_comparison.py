"""Compare engines on one GPU: `estimate` of one load under every engine, and the features that each engine lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.fit_comparison import memory_without_suggestions
from capacity.answers.load_point import (
    LoadField,
    LoadPoint,
    Profiles,
    lengths_of,
    load_of,
    raise_common_refusal,
    smallest_pool,
    sort_points,
)
from capacity.answers.phases import estimate_fields
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, make_deployment
from capacity.deployment.engines import find_engine
from capacity.deployment.engines.engine_spec import EngineSpec, ranking_notes
from capacity.model import ModelSpec, load_model

DEFAULT_ENGINES = ("vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "hf-transformers")
MISSING_FEATURES: dict[str, Callable[[EngineSpec], bool]] = {  # what an engine does not do by default
    "paged KV": lambda engine: not engine.paged,
    "chunked prefill": lambda engine: not engine.chunked_prefill,
    "mixed prefill and decode": lambda engine: not engine.mixes_prefill_with_decode,
    "prefix caching": lambda engine: not engine.prefix_caching,
    "CUDA graphs": lambda engine: not engine.cuda_graphs,
    "asynchronous scheduling": lambda engine: not engine.async_scheduling,
    "FP8 weights": lambda engine: "fp8" not in engine.weight_formats,
    "FP8 KV cache": lambda engine: "fp8" not in engine.kv_cache_formats,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOnLoad:
    """Results of one engine at the load: metrics, memory of the fullest GPU, and features that the engine lacks.

    The memory fields are None if the engine cannot run the pool (`point.reason` explains why). `sourced_fraction`:
    fraction of the engine's constants that are not assumed. `notes`: values assumed for unknown constants.
    """

    engine: str
    point: LoadPoint
    weights_bytes: int | None = None
    kv_capacity_tokens: int | None = None
    max_num_seqs: int | None = None
    lacks: tuple[str, ...]
    sourced_fraction: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineComparison(AnswerRecord):
    """`estimate` under several engines (their newest releases by default), highest tokens/s first.

    If the intervals of two rows overlap, it is not known which engine is faster.
    """

    SCHEMA: ClassVar[str] = "capacity/engine-comparison/v1"

    model: str
    gpu: str
    load_field: LoadField
    load: float
    input_len: int
    output_len: int
    rows: tuple[EngineOnLoad, ...]
    notes: tuple[str, ...] = ()


@document_options(Pool, Traffic, Cost)
@validate_arguments
def compare_engines(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    engines: Sequence[str] = DEFAULT_ENGINES,
    profiles: str | Path | None = None,
    **options: Any,
) -> EngineComparison:
    """Estimate one load on one GPU under each of `engines`; `engine` in `options` is ignored.

    Each engine has the given tensor-parallel size, else the smallest size that serves the load. Engines that cannot run
    the load are included with a reason. Raises InvalidInput for an impossible load, or options that no engine accepts.
    """
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    deployment = make_deployment(
        model, pool=pool, traffic=estimate_fields(traffic), cost=cost, question="estimate"
    )
    asked, first = deployment.traffic, deployment.pools[0]
    load_field, load = load_of(asked)
    input_len, output_len = lengths_of(asked)
    if not engines:
        raise InvalidInput("no engines to compare: name at least one, or leave --engines out")
    named = deployment.model
    spec = named if isinstance(named, ModelSpec) else load_model(named)
    folder = None if profiles is None else str(profiles)
    tried = [
        _row(spec, first.model_copy(update={"engine": name}), asked, deployment.cost, profiles=folder)
        for name in engines
    ]
    raise_common_refusal([refused for _, refused in tried])
    by_point = {id(row.point): row for row, _ in tried}
    rows = tuple(by_point[id(point)] for point in sort_points((row.point for row, _ in tried), "throughput"))
    return EngineComparison(
        model=spec.name,
        gpu=rows[0].point.gpu,
        load_field=load_field,
        load=float(load),
        input_len=input_len,
        output_len=output_len,
        rows=rows,
        notes=ranking_notes(find_engine(row.engine) for row in rows if row.point.fits),
    )


def _row(
    model: ModelSpec, pool: Pool, traffic: Traffic, cost: Cost, *, profiles: Profiles
) -> tuple[EngineOnLoad, InvalidInput | None]:
    """Return the results of one engine at the load, and the error if the engine rejects the options."""
    engine = find_engine(pool.engine)
    sized = smallest_pool(model, pool, traffic, cost, profiles=profiles)
    origins = engine.origins.values()
    row = EngineOnLoad(
        engine=engine.label,
        point=sized.point,
        lacks=tuple(what for what, absent in MISSING_FEATURES.items() if absent(engine)),
        sourced_fraction=sum(each.basis != "assumed" for each in origins) / max(1, len(origins)),
    )
    if (resolved := sized.pool) is not None:
        plan = memory_without_suggestions(resolved)
        row = replace(
            row,
            weights_bytes=plan.weights_bytes,
            kv_capacity_tokens=plan.kv_capacity_tokens,
            max_num_seqs=resolved.max_num_seqs,
            notes=(*resolved.notes, *resolved.step_model.notes),
        )
    return row, sized.refused
