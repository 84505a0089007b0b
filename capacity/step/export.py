"""Step times as data: what a compiled engine needs to time its steps without asking Python for each.

A class of step times may have a method `step_data()` that gives one of these records; None: ask for each step.
What evaluates them does the very operations of `capacity.step.model`, in the same order. An operator without a form
here leaves its model without data: a step is asked for rather than wrong.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, cast

from capacity.step.layers import Operators, grouped, latent, linear
from capacity.step.operators import ACTIVATION_BYTES, Attention, Gemm, Operator, expanded_tokens
from capacity.step.setting import HostTime
from capacity.step.shape import AffineStepTimes, SlowestRank, StepTimes


class ContextKind(IntEnum):
    """Formulas of operators that depend on contexts."""

    GROUPED_PREFILL = 0
    GROUPED_DECODE = 1
    LATENT_PREFILL = 2
    LATENT_DECODE = 3
    SPARSE_INDEXER = 4
    RECURRENCE = 5
    EXPANSION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOperator:
    """One operator of `Operators.per_context`: its formula and its constants.

    A rate is the datasheet's times the fraction that such kernels reach. `context_bytes` are a sequence's state where
    the kind is a recurrence.
    """

    kind: ContextKind
    count: float
    compute_rate: float
    memory_rate: float
    sharpness: float
    fixed_s: float
    windowed: bool = False
    top_k: int = -1  # none
    heads: float = 0.0
    flops_per_pair: float = 0.0
    context_bytes: float = 0.0
    row_bytes: float = 0.0
    occupancy_s: float = 0.0
    sm_count: float = 1.0
    per_doubling_s: float = 0.0
    n: float = 0.0
    k: float = 0.0
    weight_bytes: float = 0.0
    quantize_bytes: float = 0.0  # of a value of the activations
    quantize_rate: float = 0.0  # 0: they are not quantized
    walk_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineData:
    """`base_ps + row_ps · rows + context_ps · decode contexts`."""

    base_ps: int
    row_ps: int
    context_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelData:
    """A step model, whose seconds by rows, by sampled rows and by the mean rows of all ranks are asked for as needed."""

    host: HostTime
    graph_rows: tuple[int, ...]  # entry r: rows of the CUDA graph that r rows replay
    ranks: int
    has_shared: bool  # whether ranks do something together
    operators: tuple[ContextOperator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledData:
    """Others' times by a factor; decode steps that have no piece lie on lines between knots."""

    inner: StepTimes
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedData:
    """Others' times and a constant."""

    inner: StepTimes
    added_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestData:
    """Others' times; a joint step takes as long as its slowest rank's."""

    inner: StepTimes


StepData: TypeAlias = AffineData | ModelData | ScaledData | DelayedData | SlowestData


def step_data(step_times: object) -> StepData | None:
    """What step times say of themselves. A subclass speaks for itself alone: it may time steps anew."""
    if not {"step_ps", "joint_ps", "decode_piece"}.isdisjoint(getattr(step_times, "__dict__", ())):
        return None
    if type(step_times) is AffineStepTimes:
        return _affine(step_times)
    if type(step_times) is SlowestRank:
        return SlowestData(inner=step_times.step_times)
    own = vars(type(step_times)).get("step_data")
    return None if own is None else cast("StepData | None", own(step_times))


def _affine(times: AffineStepTimes) -> AffineData | None:
    data = AffineData(base_ps=times.base_ps, row_ps=times.per_token_ps, context_ps=times.per_context_token_ps)
    return data if min(data.base_ps, data.row_ps, data.context_ps) >= 0 else None


def graph_rows(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Rows of the graph that each number of rows replays, up to the largest."""
    return tuple(sizes[bisect.bisect_left(sizes, rows)] for rows in range(sizes[-1] + 1)) if sizes else ()


def context_operators(operators: Operators) -> tuple[ContextOperator, ...] | None:
    """The operators of a step that depend on contexts, in order; None where one of them has no form here."""
    forms = tuple(context_operator(operator) for operator in operators.per_context)
    known = tuple(form for form in forms if form is not None)
    return known if len(known) == len(forms) else None


def context_operator(operator: Operator) -> ContextOperator | None:
    """One of them as its formula and constants."""
    if type(operator) is Attention:
        return _attention(operator)
    if type(operator) is Gemm and operator.rows is expanded_tokens:
        return _expansion(operator)
    return None


def _attention(operator: Attention) -> ContextOperator | None:
    work, constants, device = operator.work, operator.constants, operator.device
    form = _work(work)
    if form is None:
        return None
    kind, own = form
    return ContextOperator(
        kind=kind,
        count=operator.count,
        compute_rate=constants.compute_fraction * operator.flops_per_s,
        memory_rate=constants.bandwidth_fraction * device.hbm_bytes_per_s,
        sharpness=constants.sharpness,
        fixed_s=constants.fixed_s,
        occupancy_s=constants.occupancy_s,
        sm_count=device.sm_count,
        per_doubling_s=constants.per_doubling_s,
        windowed=bool(own.get("windowed", False)),
        top_k=int(own.get("top_k", -1)),
        heads=own.get("heads", 0.0),
        flops_per_pair=own["flops_per_pair"],
        context_bytes=own["context_bytes"],
        row_bytes=own.get("row_bytes", 0.0),
    )


def _work(work: object) -> tuple[ContextKind, dict[str, float]] | None:
    """Kind and constants of the work of one layer."""
    if type(work) is grouped.PrefillWork or type(work) is grouped.DecodeWork:
        own = {
            "windowed": work.windowed,
            "heads": work.kv_heads,
            "flops_per_pair": work.flops_per_pair,
            "context_bytes": work.kv_bytes,
            "row_bytes": work.row_bytes,
        }
        prefill = type(work) is grouped.PrefillWork
        return (ContextKind.GROUPED_PREFILL if prefill else ContextKind.GROUPED_DECODE), own
    if type(work) is latent.PrefillWork or type(work) is latent.DecodeWork:
        own = {
            "top_k": -1 if work.top_k is None else work.top_k,
            "flops_per_pair": work.flops_per_pair,
            "context_bytes": work.context_bytes,
            "row_bytes": work.row_bytes,
        }
        prefill = type(work) is latent.PrefillWork
        return (ContextKind.LATENT_PREFILL if prefill else ContextKind.LATENT_DECODE), own
    if type(work) is latent.IndexerWork:
        return ContextKind.SPARSE_INDEXER, {
            "flops_per_pair": work.flops_per_pair,
            "context_bytes": work.key_bytes,
        }
    if type(work) is linear.RecurrenceWork:
        return ContextKind.RECURRENCE, {
            "flops_per_pair": work.flops_per_token,
            "context_bytes": work.state_bytes,
            "row_bytes": work.row_bytes,
        }
    return None


def _expansion(operator: Gemm) -> ContextOperator:
    """MLA's expansion of the latent: a product."""
    constants, bandwidth, bits = operator.constants, operator.device.hbm_bytes_per_s, operator.activation_bits
    quantized = constants.quantize_fraction
    return ContextOperator(
        kind=ContextKind.EXPANSION,
        count=operator.count,
        compute_rate=constants.compute_fraction * operator.flops_per_s,
        memory_rate=constants.bandwidth_fraction * bandwidth,
        sharpness=constants.sharpness,
        fixed_s=constants.fixed_s,
        row_bytes=operator.k * bits / 8 + operator.n * ACTIVATION_BYTES,
        n=operator.n,
        k=operator.k,
        weight_bytes=operator.weight_bytes,
        quantize_bytes=ACTIVATION_BYTES + bits / 8,
        quantize_rate=0.0 if quantized is None else quantized * bandwidth,
        walk_s=constants.per_k_s * operator.k,
    )
