"""Collectives of a step: the engine's all-reduce kernel inside a node, NCCL between nodes, all-to-all, send and
receive.

Inside a node engines use one-shot kernels (each rank reads all buffers, one latency) for small messages and two-shot
kernels (reduce-scatter then all-gather, two latencies, (n-1)/n of the bytes twice) for large ones. The model uses the
faster of the two.
"""

import math
from dataclasses import dataclass
from typing import Literal

from capacity.hardware.coefficients import AllReduceCoefficients, CollectiveCoefficients
from capacity.step import Bound, StepShape
from capacity.step.operators import ACTIVATION_BYTES, Repeated, p_norm
from capacity.step.row_counts import RowCount, all_tokens

MAX_MEASURED_RANKS = 8  # the most that the measurements cover


def all_reduce_seconds(
    message_bytes: float,
    ranks: int,
    *,
    link_bytes_per_s: float,
    constants: AllReduceCoefficients,
    one_shot_only: bool = False,
) -> float:
    """Return the seconds of an engine's all-reduce inside a node: the faster of its one-shot and two-shot kernels."""
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    one_shot = message_bytes * (ranks - 1) / (constants.one_shot_fraction * link_bytes_per_s)
    if one_shot_only:
        return constants.per_rank_s * (ranks - 1) + (constants.one_shot_fixed_s + one_shot)
    fraction = two_shot_fraction(ranks, constants)
    two_shot = ring_all_reduce_bytes(message_bytes, ranks) / (fraction * link_bytes_per_s)
    return constants.per_rank_s * (ranks - 1) + min(
        constants.one_shot_fixed_s + one_shot,
        p_norm(constants.two_shot_fixed_s, two_shot, constants.sharpness),
    )


def two_shot_fraction(ranks: int, constants: AllReduceCoefficients) -> float:
    """Return the fraction of the link rate that two-shot all-reduce kernels reach with `ranks` GPUs."""
    gain: float = constants.two_shot_gain ** math.log2(min(ranks, MAX_MEASURED_RANKS) / 2)
    return constants.two_shot_fraction * gain


def nccl_seconds(
    sent_bytes: float, ranks: int, *, link_bytes_per_s: float, constants: CollectiveCoefficients
) -> float:
    """Return the seconds of an NCCL collective in which each rank sends `sent_bytes` over its link."""
    if ranks <= 1 or sent_bytes <= 0:
        return 0.0
    return p_norm(
        constants.fixed_s + constants.per_rank_s * (ranks - 1),
        sent_bytes / (constants.bandwidth_fraction * link_bytes_per_s),
        constants.sharpness,
    )


def ring_all_reduce_bytes(message_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce: 2(n-1)/n of the message. Source: nccl-tests."""
    return 2.0 * message_bytes * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """Link of a group of GPUs: payload bytes per second in each direction, and the latency of a message."""

    bytes_per_s: float
    latency_s: float
    direct: bool  # GPUs read each other's memory, so engines use their own kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Repeated):
    """`count` all-reduces per step, each of `values_per_row` 16-bit values per token.

    Steps of fewer than `two_shot_from_rows` rows use the one-shot kernel.
    """

    ranks: int
    values_per_row: float
    link: Interconnect
    constants: AllReduceCoefficients
    nccl: CollectiveCoefficients
    two_shot_from_rows: float = 0.0

    def seconds(self, shape: StepShape) -> float:
        rows = all_tokens(shape)
        message = rows * self.values_per_row * ACTIVATION_BYTES
        if message <= 0 or self.ranks <= 1:
            return 0.0
        if self.link.direct:
            one = all_reduce_seconds(
                message,
                self.ranks,
                link_bytes_per_s=self.link.bytes_per_s,
                constants=self.constants,
                one_shot_only=rows < self.two_shot_from_rows,
            )
        else:
            one = 2 * self.link.latency_s + nccl_seconds(
                ring_all_reduce_bytes(message, self.ranks),
                self.ranks,
                link_bytes_per_s=self.link.bytes_per_s,
                constants=self.nccl,
            )
        return self.count * one

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        message = all_tokens(shape) * self.values_per_row * ACTIVATION_BYTES
        return 0.0, ring_all_reduce_bytes(message, self.ranks), "communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Repeated):
    """`count` NCCL collectives per step, in which each rank sends `bytes_per_row` for each token (row) of the step."""

    kind: Literal["all_to_all", "all_gather", "send_recv"]
    ranks: int
    bytes_per_row: float
    link: Interconnect
    constants: CollectiveCoefficients
    rows: RowCount = all_tokens
    bound: Bound = "communication"

    def seconds(self, shape: StepShape) -> float:
        sent = self.bytes_per_row * self.rows(shape)
        if sent <= 0 or self.ranks <= 1:
            return 0.0
        link, extra = self.link, 0.0 if self.link.direct else self.link.latency_s
        one = nccl_seconds(sent, self.ranks, link_bytes_per_s=link.bytes_per_s, constants=self.constants)
        return self.count * (extra + one)

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        return 0.0, self.bytes_per_row * self.rows(shape), self.bound
