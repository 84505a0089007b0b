"""What all answers about one pool share: the fields model, GPU and engine, and a check for one data-parallel rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from capacity.answers.fit import gpu_summary
from capacity.answers.records import GpuSummary
from capacity.base.errors import InvalidInput
from capacity.base.flags import Flag
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool

InputLen = Annotated[int, Flag("Prompt tokens per request.", "--input-len --isl")]
OutputLen = Annotated[int, Flag("Output tokens per request.", "--output-len --osl")]
Contexts = Annotated[Sequence[int], Flag("Context lengths in tokens, such as 4K,32K,128K,1M.", "--contexts")]
TensorParallel = Annotated[
    int, Flag("Number of GPUs that share every layer.", "--tensor-parallel-size -tp", least=1)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer(AnswerRecord):
    """Fields at the start of every answer about one pool: its model, GPU and engine."""

    model: str
    gpu: GpuSummary
    engine: str


def shared_fields(resolved: ResolvedPool) -> Mapping[str, Any]:
    """Return the values of the fields of `PoolAnswer` for this pool."""
    return {"model": resolved.model.name, "gpu": gpu_summary(resolved), "engine": resolved.engine.label}


def pool_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return notes on the pool's configuration and on the step model's validity."""
    return (*resolved.notes, *resolved.step_model.notes)


def require_one_rank(pool: Pool, verb: str) -> Pool:
    """Return the pool. Raises InvalidInput for several data-parallel ranks, which the closed forms do not cover."""
    if pool.data_parallel_size > 1:
        raise InvalidInput(
            f"`{verb}` describes one data-parallel rank: leave out --data-parallel-size (`capacity scale --axis "
            "data` compares numbers of ranks)"
        )
    return pool
