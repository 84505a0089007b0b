"""Operators of one step: FLOPs, bytes and seconds, with formulas that were fitted to measured kernels.

A kernel's time is `norm(compute, memory) + fixed`: the p-norm of the two roofline times, each divided by the fraction
of its peak that such kernels reach, plus the fixed latency of every launch. The fixed latency is important: the decode
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
)
from capacity.step import Bound, OpCost, StepShape
from capacity.step.row_counts import RowCount, all_tokens

SPLIT_TOKENS = 64.0  # KV tokens per block of a split-KV kernel
ACTIVATION_BYTES = 2.0  # activations between kernels have 16 bits


class Operator(Protocol):
    """Interface of one operator: one row of a step's cost table.

    Operators with the same `key` are the same kernel in several layers of the model; `add` merges two of them into one
    row. `Repeated` implements both methods for operators that differ only in `count`.
    """

    @property
    def name(self) -> str: ...

    def seconds(self, shape: StepShape) -> float: ...

    def cost(self, shape: StepShape) -> OpCost: ...

    def key(self) -> Hashable: ...

    def add(self, other: Self) -> Self: ...


def p_norm(first: float, second: float, sharpness: float) -> float:
    """Return `(first**p + second**p)**(1/p)` with p = `sharpness`: the sum at p = 1, nearly the maximum at p = 16.

    It is never below either of them.
    """
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
    """Return the seconds of one GEMM of [m, k] activations and [k, n] weights; `GemmCoefficients` has the formula."""
    if m <= 0:
        return 0.0
    moved = weight_bytes + m * (k * activation_bits / 8 + n * ACTIVATION_BYTES)
    seconds = p_norm(
        2.0 * m * n * k / (constants.compute_fraction * flops_per_s),
        moved / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    if constants.quantize_fraction is not None:
        seconds += quantize_bytes(m, k, activation_bits) / (constants.quantize_fraction * hbm_bytes_per_s)
    return seconds + constants.fixed_s + constants.per_k_s * k


def quantize_bytes(m: float, k: float, activation_bits: float) -> float:
    """Return the bytes moved to quantize activations: read in 16 bits, written in `activation_bits`."""
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
    """Return the seconds of attention in one layer; `AttentionCoefficients` has the formula.

    `kv_head_rows`: requests times KV heads; `mean_context`: mean context tokens of decode, 0 in prefill.
    """
    work = p_norm(
        flops / (constants.compute_fraction * flops_per_s),
        moved_bytes / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    if constants.occupancy_s:
        work = p_norm(work, constants.occupancy_s * kv_head_rows / sm_count, constants.sharpness)
    if constants.per_token_s:
        work = p_norm(work, constants.per_token_s * mean_context, constants.sharpness)
    if constants.per_doubling_s:
        work += constants.per_doubling_s * math.log2(1.0 + mean_context / SPLIT_TOKENS)
    return work + constants.fixed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Rates and sizes of a GPU that operators need."""

    hbm_bytes_per_s: float
    sm_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(ABC):
    """Base class of operators that run `count` times per step."""

    name: str
    count: int

    def key(self) -> Self:
        """Return the merge key: the operator without its count."""
        return replace(self, count=0)

    def add(self, other: Self) -> Self:
        return replace(self, count=self.count + other.count)

    @abstractmethod
    def seconds(self, shape: StepShape) -> float: ...

    @abstractmethod
    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        """Return the FLOPs, the bytes and the bound of one execution, for a step in which the operator is executed."""

    def cost(self, shape: StepShape) -> OpCost:
        """Return the operator's row of the cost table."""
        seconds = self.seconds(shape)
        if not seconds:
            return OpCost(name=self.name, flops=0.0, bytes=0.0, seconds=0.0, bound="launch")
        flops, moved, bound = self.counts(shape)
        return OpCost(
            name=self.name, flops=self.count * flops, bytes=self.count * moved, seconds=seconds, bound=bound
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Repeated):
    """`count` equal matrix multiplications per step, with weights in any format.

    It runs in steps with `from_rows` <= rows < `below_rows`, because an engine may use another kernel for more rows.
    With `n` = `k` = 0 it only reads and writes the weights, for example to convert them to 16 bits. `weight_slowdown`:
    time to read the weights relative to HBM, above 1 for weights in host memory.
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
        bound = largest_bound(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=(moved + self.weight_bytes * (self.weight_slowdown - 1.0))
            / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
            + quantized / ((constants.quantize_fraction or 1.0) * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s + constants.per_k_s * self.k,
        )
        return flops, moved + quantized, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Repeated):
    """`count` layers of attention in one phase.

    `work(shape)` returns, for one layer: FLOPs, bytes, requests times KV heads, and the mean context of decode.
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
        bound = largest_bound(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=moved / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s
            + split
            + constants.occupancy_s * rows / self.device.sm_count
            + constants.per_token_s * context,
        )
        return flops, moved, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Repeated):
    """`kernels` memory-bound kernels per step that move `bytes_per_row` bytes for each row."""

    count: int = 1
    kernels: float
    bytes_per_row: float
    device: Device
    constants: ElementwiseCoefficients
    rows: RowCount = all_tokens
    flops_per_row: float = 0.0

    def key(self) -> Hashable:  # type: ignore[override]
        """Return the merge key: `Traffic` operators with the same name and row count are one row of the cost table."""
        return Traffic, self.name, self.rows

    def add(self, other: Self) -> Self:
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
        bound = largest_bound(memory=streaming, launch=self.kernels * self.constants.fixed_s)
        return self.flops_per_row * self.rows(shape), moved, bound


def largest_bound(*, compute: float = 0.0, memory: float = 0.0, launch: float = 0.0) -> Bound:
    """Return which time of an operator is the longest: "compute", "memory" or "launch"."""
    if launch > compute and launch > memory:
        return "launch"
    return "compute" if compute >= memory else "memory"
