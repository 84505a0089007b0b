"""What client and network add: a fact of who measures, the same in every verb that has a time to first token."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Traffic, build
from capacity.deployment.client_latency import CLIENTS, MAX_S, MIN_S, USUAL_S, client_latency
from capacity.workload import random_requests

DEPLOYMENT: dict[str, Any] = {"gpu": "h100", "input_len": 300, "output_len": 20}


def test_a_client_has_seconds_a_source_and_a_date() -> None:
    assert MIN_S <= USUAL_S <= MAX_S
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)
    for client in CLIENTS:
        assert client.source
        assert client.date
        assert build(Traffic, {"client_latency_s": client.name}).client_latency_s == client.seconds


@pytest.mark.parametrize("wrong", ["nobody", "", "-1", "nan", "inf", "61", "5 apples"])
def test_what_is_no_latency_is_refused_in_a_line(wrong: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        build(Traffic, {"client_latency_s": wrong})
    assert "\n" not in str(refused.value)


def test_an_unknown_client_names_those_known() -> None:
    with pytest.raises(UnknownName, match="inference-perf"):
        client_latency("inference-prf")


def test_a_batch_waits_for_the_client_and_no_longer() -> None:
    near, far = (
        capacity.estimate("llama-3.1-8b", **DEPLOYMENT, batch_size=1, client_latency_s=s) for s in (0.0, 0.04)
    )
    assert far.ttft_s.value - near.ttft_s.value == pytest.approx(0.04)
    assert far.tpot_s is not None
    assert near.tpot_s is not None
    assert far.tpot_s.value == near.tpot_s.value


def test_an_open_loop_is_shifted_and_nothing_else() -> None:
    near, far = (
        capacity.simulate(
            "llama-3.1-8b", **DEPLOYMENT, request_rate=4, num_prompts=50, client_latency_s=seconds
        )
        for seconds in ("same-machine", "inferencex")
    )
    assert far.run.summary.ttft_ms.mean - near.run.summary.ttft_ms.mean == pytest.approx(6.5)
    assert far.run.summary.tpot_ms.mean == near.run.summary.tpot_ms.mean


def test_requests_of_ones_own_come_from_as_far() -> None:
    own = random_requests(num_requests=20, input_len=300, output_len=20, request_rate_per_s=2, seed=1)
    ttft = [
        capacity.simulate("llama-3.1-8b", gpu="h100", workload=own, **words).run.summary.ttft_ms.mean
        for words in ({"client_latency_s": 0.0}, {}, {"client_latency_s": 0.03})
    ]
    assert ttft[1] - ttft[0] == pytest.approx(USUAL_S * 1e3)
    assert ttft[2] - ttft[0] == pytest.approx(30)


def test_a_closed_loop_waits_for_each_answer_to_arrive() -> None:
    near, far = (
        capacity.simulate(
            "llama-3.1-8b", **DEPLOYMENT, concurrency=1, num_prompts=20, client_latency_s=seconds
        ).run.summary.request_throughput
        for seconds in (0.0, 0.05)
    )
    assert math.isclose(1 / far - 1 / near, 0.05, rel_tol=0.02)


LOADS: list[dict[str, Any]] = [{"batch_size": 4}, {"concurrency": 8}, {"request_rate": 5.0}]


@pytest.mark.parametrize("load", LOADS)
def test_a_time_to_first_token_is_the_sum_of_its_parts(load: dict[str, Any]) -> None:
    answer = capacity.estimate("llama-3.1-8b", **DEPLOYMENT, **load)
    assert answer.ttft_s is not None
    assert answer.ttft_parts_s is not None
    assert sum(answer.ttft_parts_s.values()) == pytest.approx(answer.ttft_s.value)
    assert answer.ttft_parts_s["client"] == USUAL_S
    assert min(answer.ttft_parts_s.values()) >= 0


@pytest.mark.parametrize("load", LOADS)
def test_an_unknown_client_widens_the_interval_and_a_known_one_does_not(load: dict[str, Any]) -> None:
    """Of a server that is found; a deployment that is launched has the client that is printed."""
    open_end, known = (
        (capacity.estimate("llama-3.1-8b", **DEPLOYMENT, **load, **client).as_found or {}).get("ttft_s")
        for client in ({}, {"client_latency_s": USUAL_S})
    )
    assert open_end is not None
    assert known is not None
    assert open_end.value == known.value
    assert open_end.low is not None
    assert open_end.high is not None
    assert known.low is not None
    assert known.high is not None
    assert open_end.low < known.low
    assert known.high < open_end.high
    assert open_end.high - open_end.value > MAX_S - USUAL_S
