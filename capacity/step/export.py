"""Step models as data, so that the compiled simulator computes step times without a Python call for each step.

A class that computes step times may have a method `step_data()` that returns one of these records, or None if the
simulator must call Python for each step. The compiled code does the same operations as `capacity.step.model`, in the
same order. A model with an operator for which this module has no formula has no data, so the simulator calls Python
instead of computing wrong times.
"""

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, TypeAlias, cast

from capacity.step.collectives import AllReduce, Transfer, two_shot_fraction
from capacity.step.expert_load import Experts, expected_max_z_squared, largest_roofline_fraction
from capacity.step.layers import grouped, latent, linear
from capacity.step.operators import (
    ACTIVATION_BYTES,
    Attention,
    Gemm,
    Operator,
    Traffic,
)
from capacity.step.row_counts import RowCount, all_tokens, expanded_tokens
from capacity.step.setting import HostTime
from capacity.step.shape import AffineStepTimes, SlowestRank, StepTimes


class OperatorKind(IntEnum):
    """Formulas of operators: members before EXPANSION depend on the contexts of a step, the others only on its rows."""

    GROUPED_PREFILL = 0
    GROUPED_DECODE = 1
    LATENT_PREFILL = 2
    LATENT_DECODE = 3
    SPARSE_INDEXER = 4
    RECURRENCE = 5
    SPARSE_PREFILL = 6
    EXPANSION = 7
    PRODUCT = 8
    TRAFFIC = 9
    ALL_REDUCE = 10
    COLLECTIVE = 11
    EXPERTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorData:
    """Formula and constants of one operator of a step.

    Each rate is the datasheet value times the fraction that kernels of this kind reach. For a recurrence,
    `context_bytes` is the size of one sequence's state. For kind `OperatorKind.TRAFFIC`, operators
    that only read and write memory, `fixed_s` is the sum over all kernels.
    """

    kind: OperatorKind
    count: float
    memory_rate: float
    fixed_s: float
    compute_rate: float = 1.0
    sharpness: float = 1.0
    windowed: bool = False
    top_k: int = -1  # -1: no top-k
    fills: bool = False
    short_dense: bool = True
    heads: float = 0.0
    flops_per_pair: float = 0.0
    context_bytes: float = 0.0
    row_bytes: float = 0.0
    occupancy_s: float = 0.0
    sm_count: float = 1.0
    per_doubling_s: float = 0.0
    per_token_s: float = 0.0
    n: float = 0.0
    k: float = 0.0
    weight_bytes: float = 0.0
    quantize_bytes: float = 0.0  # per activation value
    quantize_rate: float = 0.0  # 0: activations are not quantized
    walk_s: float = 0.0
    from_rows: float = 0.0  # all-reduce: rows from which two shots are allowed
    below_rows: float = math.inf
    # collectives
    ranks: float = 1.0
    latency_s: float = 0.0  # of the link, where it is not included elsewhere
    one_shot_rate: float = 0.0  # 0: NCCL kernels
    one_shot_fixed_s: float = 0.0
    per_rank_s: float = 0.0  # times (ranks - 1)
    # experts
    token_groups: float = 1.0
    experts_per_token: float = 0.0
    num_experts: float = 1.0
    local_routing: bool = False
    matrices: float = 0.0
    hidden: float = 0.0
    intermediate: float = 0.0
    weight_bits: float = 0.0
    value_bytes: float = 0.0  # bytes per value of the hidden state, to and from an expert
    routed_rate: float = 1.0
    tile_rows: float = 1.0
    crowding: float = 0.0  # squared expected maximum, for the busiest rank
    evenness: float = 1.0
    tilt: float = 0.0  # exponent of the tokens
    tilted_least: float = 0.0  # lower bound of that factor


Forms: TypeAlias = tuple[OperatorData, ...]


@dataclass(frozen=True, slots=True)
class AffineData:
    """Affine step time: `base_ps + row_ps · rows + context_ps · context tokens of decode`."""

    base_ps: int
    row_ps: int
    context_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelData:
    """A step model, with operators grouped by what their time depends on.

    `context_operators`: contexts; `row_operators`: rows; `sample_operators`: sampled rows; `shared_operators`: mean
    rows of all ranks. If one of these tuples is None, the engine calls the model's `row_seconds`, `sample_seconds` or
    `shared_seconds` for each number of rows.
    """

    host: HostTime
    graph_rows: tuple[int, ...]  # entry r: rows of the CUDA graph that a step of r rows replays
    ranks: int
    has_shared: bool  # whether ranks have shared operators
    context_operators: Forms
    row_operators: Forms | None
    sample_operators: Forms | None
    shared_operators: Forms | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledData:
    """The `inner` step times, multiplied by `prefill` in steps with prefill tokens and by `decode` in all others.

    If `inner` has no affine function for a decode step, its time is interpolated between fixed context lengths.
    """

    inner: StepTimes
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedData:
    """The `inner` step times plus a constant."""

    inner: StepTimes
    added_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestData:
    """The `inner` step times of independent ranks; a joint step of all ranks takes as long as its slowest rank."""

    inner: StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedData:
    """The `inner` step times plus, in every step with drafts, the time to draft them.

    The drafting time is either `batch_seconds(decode requests)`, or the time of `draft_steps` decode steps of a `draft`
    model at the mean context. Each of these steps has one row per decode request. In addition, the first step has
    `first_drafts` rows per decode request, and each later step `level_drafts`.
    """

    inner: StepTimes
    batch_seconds: Callable[[int], float] | None = None
    draft: StepTimes | None = None
    draft_window_tokens: int | None = None
    draft_steps: int = 0
    first_drafts: float = 0.0
    level_drafts: float = 0.0


StepData: TypeAlias = AffineData | ModelData | ScaledData | DelayedData | SlowestData | DraftedData


def step_data(step_times: object) -> StepData | None:
    """Return the data record of `step_times`, or None if it has none.

    An inherited `step_data` does not count, because a subclass may compute step times differently.
    """
    if not {"step_ps", "joint_ps", "decode_piece"}.isdisjoint(getattr(step_times, "__dict__", ())):
        return None
    if type(step_times) is AffineStepTimes:
        own_ps = (step_times.base_ps, step_times.per_token_ps, step_times.per_context_token_ps)
        return AffineData(*own_ps) if min(own_ps) >= 0 else None
    if type(step_times) is SlowestRank:
        return SlowestData(inner=step_times.step_times)
    own = vars(type(step_times)).get("step_data")
    return None if own is None else cast("StepData | None", own(step_times))


def graph_rows(sizes: tuple[int, ...], *, padding: bool = True) -> tuple[int, ...]:
    """Return a table of CUDA graph sizes: entry r is the number of rows of the graph that a step of r rows replays, or
    -1 if the step runs eagerly."""
    padded = [sizes[bisect.bisect_left(sizes, rows)] for rows in range(sizes[-1] + 1)] if sizes else []
    return tuple(size if padding or size == rows else -1 for rows, size in enumerate(padded))


def operators_data(operators: Iterable[Operator], rows: RowCount | None) -> Forms | None:
    """Return the data of operators that all depend on the row count `rows`, or on contexts if that is None. Returns
    None if an operator depends on something else or has no formula."""
    forms = []
    for operator in operators:
        form = operator_data(operator)
        if form is None or (form.kind in BY_ROWS) is (rows is None):
            return None
        if rows is not None and getattr(operator, "rows", all_tokens) is not rows:
            return None
        forms.append(form)
    return tuple(forms)


def operator_data(operator: Operator) -> OperatorData | None:
    """Return the formula and constants of one operator; None if `OperatorKind` has no formula for it. A subclass of an
    operator has none, because its formula may differ."""
    form = _FORMS.get(type(operator))
    return None if form is None else form(operator)


_WORKS: dict[type, OperatorKind] = {
    grouped.PrefillWork: OperatorKind.GROUPED_PREFILL,
    grouped.DecodeWork: OperatorKind.GROUPED_DECODE,
    latent.PrefillWork: OperatorKind.LATENT_PREFILL,
    latent.DecodeWork: OperatorKind.LATENT_DECODE,
    latent.SparsePrefillWork: OperatorKind.SPARSE_PREFILL,
    latent.IndexerWork: OperatorKind.SPARSE_INDEXER,
    linear.RecurrenceWork: OperatorKind.RECURRENCE,
}
"""Formula of an attention operator by the class of its `work`; `OperatorData` has all fields of these classes."""


def _attention(operator: Attention) -> OperatorData | None:
    work, constants = operator.work, operator.constants
    kind = _WORKS.get(type(work))
    if kind is None:
        return None
    own = {field.name: getattr(work, field.name) for field in fields(work)}  # type: ignore[arg-type]
    return OperatorData(
        kind=kind,
        **_rates(operator),
        occupancy_s=constants.occupancy_s,
        sm_count=operator.device.sm_count,
        per_doubling_s=constants.per_doubling_s,
        per_token_s=constants.per_token_s,
        **{name: value for name, value in own.items() if value is not None},
    )


def _rates(operator: Attention | Gemm | Experts) -> Any:
    constants = operator.constants
    return {
        "count": operator.count,
        "compute_rate": constants.compute_fraction * operator.flops_per_s,
        "memory_rate": constants.bandwidth_fraction * operator.device.hbm_bytes_per_s,
        "sharpness": constants.sharpness,
        "fixed_s": constants.fixed_s,
    }


def _product(operator: Gemm) -> OperatorData:
    constants, bandwidth, bits = operator.constants, operator.device.hbm_bytes_per_s, operator.activation_bits
    quantized = constants.quantize_fraction
    return OperatorData(
        kind=OperatorKind.EXPANSION if operator.rows is expanded_tokens else OperatorKind.PRODUCT,
        **_rates(operator),
        row_bytes=operator.k * bits / 8 + operator.n * ACTIVATION_BYTES,
        n=operator.n,
        k=operator.k,
        weight_bytes=operator.weight_bytes * operator.weight_slowdown,
        quantize_bytes=ACTIVATION_BYTES + bits / 8,
        quantize_rate=0.0 if quantized is None else quantized * bandwidth,
        walk_s=constants.per_k_s * operator.k,
        from_rows=operator.from_rows,
        below_rows=operator.below_rows,
    )


def _traffic(operator: Traffic) -> OperatorData:
    return OperatorData(
        kind=OperatorKind.TRAFFIC,
        count=1.0,
        memory_rate=operator.constants.bandwidth_fraction * operator.device.hbm_bytes_per_s,
        fixed_s=operator.kernels * operator.constants.fixed_s,
        row_bytes=operator.bytes_per_row,
    )


def _all_reduce(operator: AllReduce) -> OperatorData | None:
    """Return the data of an all-reduce: with the engine's kernels if the GPUs have direct links, else with NCCL."""
    ranks, link, constants, nccl = operator.ranks, operator.link, operator.constants, operator.nccl
    if ranks <= 1:
        return None
    nccl_data = OperatorData(
        kind=OperatorKind.ALL_REDUCE,
        count=operator.count,
        memory_rate=nccl.bandwidth_fraction * link.bytes_per_s,
        sharpness=nccl.sharpness,
        fixed_s=nccl.fixed_s + nccl.per_rank_s * (ranks - 1),
        row_bytes=operator.values_per_row * ACTIVATION_BYTES,
        ranks=ranks,
        latency_s=2 * link.latency_s,
    )
    if not link.direct:
        return nccl_data
    return replace(
        nccl_data,
        memory_rate=two_shot_fraction(ranks, constants) * link.bytes_per_s,
        sharpness=constants.sharpness,
        fixed_s=constants.two_shot_fixed_s,
        latency_s=0.0,
        one_shot_rate=constants.one_shot_fraction * link.bytes_per_s,
        one_shot_fixed_s=constants.one_shot_fixed_s,
        per_rank_s=constants.per_rank_s * (ranks - 1),
        from_rows=operator.two_shot_from_rows,
    )


def _collective(operator: Transfer) -> OperatorData | None:
    ranks, link, constants = operator.ranks, operator.link, operator.constants
    if ranks <= 1:
        return None
    return OperatorData(
        kind=OperatorKind.COLLECTIVE,
        count=operator.count,
        memory_rate=constants.bandwidth_fraction * link.bytes_per_s,
        sharpness=constants.sharpness,
        fixed_s=constants.fixed_s + constants.per_rank_s * (ranks - 1),
        row_bytes=operator.bytes_per_row,
        ranks=ranks,
        latency_s=0.0 if link.direct else link.latency_s,
    )


def _experts(operator: Experts) -> OperatorData:
    constants, bandwidth, ranks = operator.constants, operator.device.hbm_bytes_per_s, operator.expert_ranks
    return OperatorData(
        kind=OperatorKind.EXPERTS,
        **_rates(operator),
        ranks=ranks,
        token_groups=operator.token_groups,
        experts_per_token=operator.experts_per_token,
        num_experts=operator.num_experts,
        local_routing=constants.local_routing,
        matrices=operator.matrices,
        hidden=operator.hidden,
        intermediate=operator.intermediate,
        weight_bits=operator.weight_bits * operator.weight_slowdown,
        value_bytes=operator.activation_bits / 8 + ACTIVATION_BYTES,
        routed_rate=constants.routed_fraction * bandwidth,
        tile_rows=constants.tile_rows,
        crowding=expected_max_z_squared(ranks),
        evenness=operator.evenness,
        tilt=constants.tilt,
        tilted_least=largest_roofline_fraction(constants),
    )


BY_ROWS = frozenset(kind for kind in OperatorKind if kind > OperatorKind.EXPANSION)
_FORMS: dict[type, Callable[[Any], OperatorData | None]] = {
    Attention: _attention,
    Gemm: _product,
    Traffic: _traffic,
    AllReduce: _all_reduce,
    Transfer: _collective,
    Experts: _experts,
}
