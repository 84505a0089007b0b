"""Collectives: none among one, latency for little, bandwidth for much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.hardware.coefficients import AllReduceCoefficients, universal, universal_family
from capacity.step import decode_shape
from capacity.step.collectives import (
    AllReduce,
    Interconnect,
    Transfer,
    all_reduce_seconds,
    nccl_seconds,
    ring_all_reduce_bytes,
)

LINK = 450e9
CONSTANTS = universal_family().all_reduce
assert CONSTANTS is not None
messages = st.floats(1, 1e10)
group_sizes = st.integers(2, 16)


def all_reduce(message: float, ranks: int) -> float:
    return all_reduce_seconds(message, ranks, link_bytes_per_s=LINK, constants=CONSTANTS)


def test_one_gpu_has_no_collective() -> None:
    assert all_reduce(1e6, 1) == 0.0
    assert nccl_seconds(1e6, 1, link_bytes_per_s=LINK, constants=universal().nccl["all_reduce"]) == 0.0


def test_a_small_message_costs_its_latency() -> None:
    assert all_reduce(8, 8) == pytest.approx(CONSTANTS.one_shot_fixed_s, rel=1e-3)


def test_a_large_message_costs_two_shots_of_bandwidth() -> None:
    message = 1e9
    expected = 2 * message * 7 / 8 / (CONSTANTS.two_shot_fraction * LINK)
    assert all_reduce(message, 8) == pytest.approx(expected, rel=1e-2)


@given(messages, group_sizes)
def test_all_reduce_is_above_the_link_and_monotone(message: float, ranks: int) -> None:
    seconds = all_reduce(message, ranks)
    assert seconds >= message / LINK  # every rank needs at least the others' sum
    assert all_reduce(message * 1.5, ranks) >= seconds
    assert all_reduce(message, ranks + 1) >= seconds * (1 - 1e-12)
    assert all_reduce(message * (1 + 1e-7), ranks) == pytest.approx(seconds, rel=1e-6)


def test_more_ranks_may_gain_from_the_switch_but_never_beat_the_link() -> None:
    gaining = CONSTANTS.model_copy(update={"two_shot_gain": 1.2, "sharpness": 0.6})
    plain = CONSTANTS.model_copy(update={"sharpness": 0.6})

    def of(constants: AllReduceCoefficients, ranks: int) -> float:
        return all_reduce_seconds(1e9, ranks, link_bytes_per_s=LINK, constants=constants)

    assert of(gaining, 2) == of(plain, 2)
    assert of(gaining, 8) == pytest.approx(of(plain, 8) / 1.44, rel=0.02)
    assert of(gaining, 72) >= 1e9 / LINK


def test_ring_bytes_are_those_of_nccl_tests() -> None:
    assert ring_all_reduce_bytes(100.0, 2) == 100.0
    assert ring_all_reduce_bytes(100.0, 4) == 150.0


@given(messages, group_sizes)
def test_nccl_is_above_the_link_and_monotone(sent: float, ranks: int) -> None:
    for constants in universal().nccl.values():
        seconds = nccl_seconds(sent, ranks, link_bytes_per_s=LINK, constants=constants)
        assert seconds >= sent / LINK
        assert nccl_seconds(sent * 2, ranks, link_bytes_per_s=LINK, constants=constants) >= seconds


def test_a_link_that_is_not_direct_costs_more() -> None:
    shape = decode_shape(64, 1000)
    fast = Interconnect(bytes_per_s=LINK, latency_s=4e-6, direct=True)
    slow = Interconnect(bytes_per_s=LINK / 9, latency_s=1e-5, direct=False)

    def of(link: Interconnect) -> float:
        operator = AllReduce(
            name="all-reduce",
            count=2,
            ranks=4,
            values_per_row=8192,
            link=link,
            constants=CONSTANTS,
            nccl=universal().nccl["all_reduce"],
        )
        cost = operator.cost(shape)
        assert cost.seconds == operator.seconds(shape)
        assert cost.bound == "communication"
        assert cost.bytes == 2 * ring_all_reduce_bytes(64 * 8192 * 2, 4)
        return cost.seconds

    assert of(slow) > 2 * of(fast)


def test_a_fused_kernel_takes_one_shot_up_to_its_rows_however_large_they_are() -> None:
    link = Interconnect(bytes_per_s=LINK, latency_s=4e-6, direct=True)
    quicker = AllReduce(
        name="all-reduce",
        count=1,
        ranks=8,
        values_per_row=8192,
        link=link,
        constants=CONSTANTS,
        nccl=universal().nccl["all_reduce"],
    )
    fused = replace(quicker, two_shot_from_rows=129.0)
    few, many, beyond = (decode_shape(rows, 1000) for rows in (1, 128, 129))
    assert fused.seconds(few) == quicker.seconds(few)  # one-shot is the quicker one there
    assert fused.seconds(beyond) == quicker.seconds(beyond)
    one_shot = 128 * 8192 * 2 * 7 / (CONSTANTS.one_shot_fraction * LINK)
    assert fused.seconds(many) == pytest.approx(
        7 * CONSTANTS.per_rank_s + CONSTANTS.one_shot_fixed_s + one_shot
    )
    assert fused.seconds(many) > 1.2 * quicker.seconds(many)


def test_a_transfer_of_nothing_is_idle() -> None:
    transfer = Transfer(
        name="send",
        kind="send_recv",
        count=1,
        ranks=2,
        bytes_per_row=0.0,
        link=Interconnect(bytes_per_s=LINK, latency_s=0.0, direct=True),
        constants=universal().nccl["send_recv"],
    )
    assert transfer.seconds(decode_shape(4, 10)) == 0.0
    assert transfer.cost(decode_shape(4, 10)).seconds == 0.0
