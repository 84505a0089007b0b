"""What every drafter says of itself: the work of a round in, its time and memory out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from capacity.deployment.engines import EngineSpec
from capacity.step import Bound, OpCost, StepCost, StepShape
from capacity.step.closed_form import NOTHING


class DraftWork(NamedTuple):
    """The drafting of one round: requests, their context, drafts in depth, nodes in all, and what was accepted last.

    `last_round_tokens`: tokens of a request that the round before yielded, on average. `beside`: the target's step,
    whose prompt tokens a drafter with a KV cache of its own computes as well.
    """

    batch_size: int
    context_tokens: int
    draft_tokens: int
    nodes: int
    last_round_tokens: float
    beside: StepShape = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """What drafts: its time beside the target's steps (seconds), and what it keeps on the target's GPUs (bytes).

    Each GPU holds `gpu_weights_bytes` of them and `gpu_kv_bytes_per_token`, KV heads that are too few to share
    included. `reads_prompts`: it computes every prompt too.
    """

    weights_bytes: float = 0.0
    gpu_weights_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0
    gpu_kv_bytes_per_token: float = 0.0
    reads_prompts: ClassVar[bool] = False

    def seconds(self, work: DraftWork) -> float:
        """Time to draft one round."""
        raise NotImplementedError

    def joint_seconds(self, works: Sequence[DraftWork]) -> float:
        """The same of data-parallel ranks that take every step together, a round each."""
        return max(map(self.seconds, works))

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        """What `seconds` are made of, as rows of the step's table."""
        return (OpCost(name="drafting", flops=0.0, bytes=0.0, seconds=self.seconds(work), bound="host"),)

    def prefill_s(self, input_len: int) -> float:  # noqa: ARG002
        """Time that a prompt takes before it can draft, beside the target's own prefill."""
        return 0.0

    def prompts_s(self, shape: StepShape) -> float:  # noqa: ARG002
        """The same of the prompt tokens of one step."""
        return 0.0


def by_bound(tables: Sequence[tuple[StepCost, int]]) -> tuple[OpCost, ...]:
    """Several steps, each so many times, added up by what bounds their operators."""
    rows: dict[Bound, OpCost] = {}
    for table, times in tables:
        for op in table.operators if times else ():
            row = rows.get(op.bound) or OpCost(
                name=f"drafting, {op.bound}", flops=0.0, bytes=0.0, seconds=0.0, bound=op.bound
            )
            rows[op.bound] = replace(
                row,
                flops=row.flops + times * op.flops,
                bytes=row.bytes + times * op.bytes,
                seconds=row.seconds + times * op.seconds,
            )
    return tuple(rows.values())


def in_a_round(engine: EngineSpec) -> EngineSpec:
    """The engine as it drafts: no outputs to process, and an asynchronous one schedules nothing between the steps."""
    base_s = 0.0 if engine.host_overlapped else engine.host_base_s
    return engine.model_copy(update={"host_base_s": base_s, "host_per_sequence_s": 0.0})
