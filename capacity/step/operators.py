"""Operators of one step: FLOPs, bytes and seconds, in the forms that fit measured kernels.

A kernel's time is `norm(compute, memory) + fixed`: the p-norm of the two roofline times, each divided by the fraction
of its peak that such kernels reach, plus the fixed latency of every launch. The fixed latency matters most: the decode
error is 7 % with it and 28 % without it (median over 866 served rows, aiconfigurator-core 0.12.0). Deliberately not
modelled: tile and wave quantization, because libraries choose tiles that hide it (modelling it increased held-out
errors), and the L2 cache, because the traffic of other layers evicts the KV between two uses.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from capacity.hardware.coefficients import (
    AttentionCoefficients,
    ElementwiseCoefficients,
    GemmCoefficients,
    MoeCoefficients,
)
from capacity.step import Bound, OpCost, StepShape
from capacity.step.expert_load import ROUTING_EVENNESS, busiest_pairs, busiest_touched, distinct_experts
from capacity.step.row_counts import RowCount, all_tokens

# Of a step's tokens: where a tilt of the experts' time changes nothing, and beyond how many it changes no more: there
# each expert has a full tile of 128 rows (of 256 experts, 8 a token), and more tokens are more tiles of the same.
MIDDLE_TOKENS = 32.0
TILTED_TOKENS = 4096.0
SPLIT_TOKENS = 64.0  # KV tokens that one block of a split-KV kernel takes at a time
ACTIVATION_BYTES = 2.0  # activations travel between kernels in 16 bits


class Operator(Protocol):
    """One row of a step's cost table: all that the step model asks of it.

    Operators of equal `key` are one kernel at several places of the model: `plus` makes one row of two of them.
    `Repeated` has both for operators that differ in their `count` alone.
    """

    @property
    def name(self) -> str: ...

    def seconds(self, shape: StepShape) -> float: ...

    def cost(self, shape: StepShape) -> OpCost: ...

    def key(self) -> Hashable: ...

    def plus(self, other: Self) -> Self: ...


# forms


def norm(first: float, second: float, sharpness: float) -> float:
    """`(first**p + second**p)**(1/p)`: their sum at p = 1, nearly the larger at p = 16; never below either."""
    if first < second:
        first, second = second, first
    if second <= 0.0 or sharpness == 1.0:
        return first + second
    return float(first * (1.0 + (second / first) ** sharpness) ** (1.0 / sharpness))


def gemm_seconds(
    m: float,
    n: float,
    k: float,
    *,
    weight_bytes: float,
    activation_bits: float,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    constants: GemmCoefficients,
) -> float:
    """One matrix product of [m, k] activations with [k, n] weights. See `GemmCoefficients` for the form."""
    if m <= 0:
        return 0.0
    moved = weight_bytes + m * (k * activation_bits / 8 + n * ACTIVATION_BYTES)
    seconds = norm(
        2.0 * m * n * k / (constants.compute_fraction * flops_per_s),
        moved / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    if constants.quantize_fraction is not None:
        seconds += quantize_bytes(m, k, activation_bits) / (constants.quantize_fraction * hbm_bytes_per_s)
    return seconds + constants.fixed_s + constants.per_k_s * k


def quantize_bytes(m: float, k: float, activation_bits: float) -> float:
    """Bytes moved to quantize activations before a product: read at 16 bits, written at `activation_bits`."""
    return m * k * (ACTIVATION_BYTES + activation_bits / 8)


def attention_seconds(
    flops: float,
    moved_bytes: float,
    *,
    kv_head_rows: float,
    mean_context: float,
    sm_count: float,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    constants: AttentionCoefficients,
) -> float:
    """Attention over one layer: compute, KV traffic and, in decode, the rows and contexts that an SM walks through."""
    work = norm(
        flops / (constants.compute_fraction * flops_per_s),
        moved_bytes / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    if constants.occupancy_s:
        work = norm(work, constants.occupancy_s * kv_head_rows / sm_count, constants.sharpness)
    if constants.per_token_s:
        work = norm(work, constants.per_token_s * mean_context, constants.sharpness)
    if constants.per_doubling_s:
        work += constants.per_doubling_s * math.log2(1.0 + mean_context / SPLIT_TOKENS)
    return work + constants.fixed_s


def moe_seconds(
    flops: float,
    moved_bytes: float,
    routed_bytes: float,
    *,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    constants: MoeCoefficients,
) -> float:
    """Fused experts of one layer: distinct experts' weights, their products, and moving tokens to and from them."""
    work = norm(
        flops / (constants.compute_fraction * flops_per_s),
        moved_bytes / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    return work + routed_bytes / (constants.routed_fraction * hbm_bytes_per_s) + constants.fixed_s


def tilt_of(tokens: float) -> float:
    """What a tilt of 1 does to the logarithm of the experts' time at so many tokens."""
    return math.log(min(max(tokens, 1.0), TILTED_TOKENS) / MIDDLE_TOKENS)


def roof_of(constants: MoeCoefficients) -> float:
    """Of the time by these constants, the part that no factor may take it below."""
    return max(constants.compute_fraction, constants.bandwidth_fraction, constants.routed_fraction)


# operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What an operator needs to know of a GPU."""

    hbm_bytes_per_s: float
    sm_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(ABC):
    """The base of operators that run `count` times a step."""

    name: str
    count: int

    def key(self) -> Self:
        """All but the count."""
        return replace(self, count=0)

    def plus(self, other: Self) -> Self:
        return replace(self, count=self.count + other.count)

    @abstractmethod
    def seconds(self, shape: StepShape) -> float: ...

    @abstractmethod
    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        """FLOPs and bytes of one run in a step that has any, and what bounds it."""

    def cost(self, shape: StepShape) -> OpCost:
        """The row of the table."""
        seconds = self.seconds(shape)
        if not seconds:
            return OpCost(name=self.name, flops=0.0, bytes=0.0, seconds=0.0, bound="launch")
        flops, moved, bound = self.counts(shape)
        return OpCost(
            name=self.name, flops=self.count * flops, bytes=self.count * moved, seconds=seconds, bound=bound
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Repeated):
    """`count` equal matrix products a step, with their weights in any format.

    It runs in steps of `from_rows` to below `below_rows` rows: an engine may multiply more rows by another kernel.
    Without columns (`n` and `k` 0) it is a pass over weights alone, such as writing them out at 16 bit.
    `weight_slowdown`: reading the weights takes so many times longer than from HBM (they stand in host memory).
    """

    k: float
    n: float
    weight_bytes: float
    activation_bits: float
    flops_per_s: float
    device: Device
    constants: GemmCoefficients
    rows: RowCount = all_tokens
    from_rows: float = 0.0
    below_rows: float = math.inf
    weight_slowdown: float = 1.0

    def seconds(self, shape: StepShape) -> float:
        m = self.rows(shape)
        if m <= 0 or not self.from_rows <= m < self.below_rows:
            return 0.0
        return self.count * gemm_seconds(
            m,
            self.n,
            self.k,
            weight_bytes=self.weight_bytes * self.weight_slowdown,
            activation_bits=self.activation_bits,
            flops_per_s=self.flops_per_s,
            hbm_bytes_per_s=self.device.hbm_bytes_per_s,
            constants=self.constants,
        )

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        m, constants = self.rows(shape), self.constants
        flops = 2.0 * m * self.n * self.k
        moved = self.weight_bytes + m * (self.k * self.activation_bits / 8 + self.n * ACTIVATION_BYTES)
        quantized = (
            0.0 if constants.quantize_fraction is None else quantize_bytes(m, self.k, self.activation_bits)
        )
        bound = binding(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=(moved + self.weight_bytes * (self.weight_slowdown - 1.0))
            / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
            + quantized / ((constants.quantize_fraction or 1.0) * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s + constants.per_k_s * self.k,
        )
        return flops, moved + quantized, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Repeated):
    """`count` layers of attention over one phase.

    `work(shape)` gives FLOPs, bytes, rows of KV heads, and the mean context of decode rows, of one layer.
    """

    work: Callable[[StepShape], tuple[float, float, float, float]]
    flops_per_s: float
    device: Device
    constants: AttentionCoefficients

    def seconds(self, shape: StepShape) -> float:
        flops, moved, rows, context = self.work(shape)
        if rows <= 0:
            return 0.0
        return self.count * attention_seconds(
            flops,
            moved,
            kv_head_rows=rows,
            mean_context=context,
            sm_count=self.device.sm_count,
            flops_per_s=self.flops_per_s,
            hbm_bytes_per_s=self.device.hbm_bytes_per_s,
            constants=self.constants,
        )

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        flops, moved, rows, context = self.work(shape)
        constants = self.constants
        split = constants.per_doubling_s * math.log2(1.0 + context / SPLIT_TOKENS)
        bound = binding(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=moved / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s
            + split
            + constants.occupancy_s * rows / self.device.sm_count
            + constants.per_token_s * context,
        )
        return flops, moved, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Repeated):
    """`count` layers of routed experts, whole ones spread over `expert_ranks`, or slices of all where that is 1.

    `weight_slowdown` as of `Gemm`.
    """

    hidden: float
    intermediate: float  # of one expert on one GPU
    matrices: int
    num_experts: float
    experts_per_token: float
    expert_ranks: int
    weight_bits: float
    activation_bits: float
    flops_per_s: float
    device: Device
    constants: MoeCoefficients
    token_groups: int = 1  # data-parallel ranks whose tokens meet at these experts
    evenness: float = ROUTING_EVENNESS
    weight_slowdown: float = 1.0

    def work(self, tokens: float, slowdown: float = 1.0) -> tuple[float, float, float]:
        """FLOPs, bytes (of weights so many times) and routed bytes of one layer on one GPU."""
        tokens *= self.token_groups
        held = self.num_experts / self.expert_ranks
        local_pairs = busiest_pairs(tokens * self.experts_per_token, self.expert_ranks, held, self.evenness)
        touched = distinct_experts(self.num_experts, self.experts_per_token, tokens, self.evenness)
        touched = busiest_touched(touched, self.expert_ranks, held)
        matrix = self.hidden * self.intermediate
        flops = 2.0 * local_pairs * self.matrices * matrix
        moved = (
            touched * self.matrices * matrix * (self.weight_bits * slowdown) / 8
            + local_pairs * self.hidden * (self.activation_bits / 8 + ACTIVATION_BYTES)
            + local_pairs * self.intermediate * self.matrices * ACTIVATION_BYTES
        )
        routed = local_pairs if self.constants.local_routing else tokens * self.experts_per_token
        return flops, moved, routed * self.hidden * ACTIVATION_BYTES

    def seconds(self, shape: StepShape) -> float:
        tokens = all_tokens(shape)
        if tokens <= 0:
            return 0.0
        flops, moved, routed = self.work(tokens, self.weight_slowdown)
        seconds = moe_seconds(
            flops,
            moved,
            routed,
            flops_per_s=self.flops_per_s,
            hbm_bytes_per_s=self.device.hbm_bytes_per_s,
            constants=self.constants,
        )
        if self.constants.tilt:  # never faster than a roof
            tilted = math.exp(self.constants.tilt * tilt_of(tokens * self.token_groups))
            seconds *= max(tilted, roof_of(self.constants))
        return self.count * seconds

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        tokens, constants = all_tokens(shape), self.constants
        flops, moved, routed = self.work(tokens)
        slow = self.work(tokens, self.weight_slowdown)[1]
        bound = binding(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=slow / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
            + routed / (constants.routed_fraction * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s,
        )
        return flops, moved + routed, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Repeated):
    """`kernels` memory-bound kernels a step that move `bytes_per_row` for each row."""

    count: int = 1
    kernels: float
    bytes_per_row: float
    device: Device
    constants: ElementwiseCoefficients
    rows: RowCount = all_tokens
    flops_per_row: float = 0.0

    def key(self) -> Hashable:  # type: ignore[override]
        """Traffic of one name over the same rows is one row of the table."""
        return Traffic, self.name, self.rows

    def plus(self, other: Self) -> Self:
        return replace(
            self,
            kernels=self.kernels + other.kernels,
            bytes_per_row=self.bytes_per_row + other.bytes_per_row,
            flops_per_row=self.flops_per_row + other.flops_per_row,
        )

    def seconds(self, shape: StepShape) -> float:
        if (rows := self.rows(shape)) <= 0:
            return 0.0
        moved = self.bytes_per_row * rows
        streaming = moved / (self.constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
        return streaming + self.kernels * self.constants.fixed_s

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        moved = self.bytes_per_row * self.rows(shape)
        streaming = moved / (self.constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
        bound = binding(memory=streaming, launch=self.kernels * self.constants.fixed_s)
        return self.flops_per_row * self.rows(shape), moved, bound


def binding(*, compute: float = 0.0, memory: float = 0.0, launch: float = 0.0) -> Bound:
    """What takes the most of an operator's time."""
    if launch > compute and launch > memory:
        return "launch"
    return "compute" if compute >= memory else "memory"
