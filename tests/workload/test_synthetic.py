"""Synthetic requests: vLLM's random data set, shared prefixes, conversations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from small_workloads import MANY, check_refused, tokens_of

from capacity.workload import (
    GammaLengths,
    LognormalLengths,
    SharedPrefixes,
    SteadyArrivals,
    ThinkTime,
    UniformLengths,
    conversations,
    random_requests,
    random_stream,
)


def test_random_requests_are_vllms_random_data_set() -> None:
    workload = random_requests(
        num_requests=2000,
        input_len=1000,
        output_len=100,
        request_rate_per_s=8.0,
        range_ratio=0.25,
        prefix_len=64,
    )
    assert workload.arrival_s[-1] == 250.0
    assert workload.prompt_tokens.min() >= 750 + 64
    assert workload.prompt_tokens.max() <= 1250 + 64
    assert (workload.output_tokens.min(), workload.output_tokens.max()) == (75, 125)
    blocks = workload.block_runs(16)
    assert blocks is not None
    assert {tuple(blocks.request_block_ids(row)[:4]) for row in range(50)} == {
        tuple(blocks.request_block_ids(0)[:4])
    }
    assert len({blocks.request_block_ids(row)[4] for row in range(50)}) == 50
    assert random_requests(num_requests=5, input_len=7, output_len=3).block_runs(16) is None


def test_popular_prefixes_are_picked_more_often() -> None:
    picked = SharedPrefixes(10, 3, zipf=1.0).pick(MANY, random_stream(0, "sessions"))
    weights = np.asarray([1, 1 / 2, 1 / 3]) / (11 / 6)
    np.testing.assert_allclose(np.bincount(picked) / MANY, weights, atol=5 * 0.5 / math.sqrt(MANY))


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    workload = conversations(
        num_sessions=20,
        arrivals=SteadyArrivals(0.5),
        turns=UniformLengths(5, 0.8),
        user_tokens=LognormalLengths(80.0, 1.0),
        output=GammaLengths(40.0, 1.0),
        think_time=ThinkTime(20.0, 0.5),
        system_prompt_tokens=33,
        seed=2,
    )
    assert workload.content is not None
    assert workload.after_request is not None
    assert workload.session is not None
    assert workload.think_s is not None
    assert not workload.notices
    openings = 0
    for row, before in enumerate(workload.after_request.tolist()):
        said = tokens_of(workload.content.request_segments(row))
        assert said[:33] == [(0, position) for position in range(33)]
        if before < 0:
            openings += 1
            continue
        assert workload.session[before] == workload.session[row]
        answer = (int(workload.content.answer_ids[before]), int(workload.output_tokens[before]))
        earlier = tokens_of([*workload.content.request_segments(before), answer])
        assert said[: len(earlier)] == earlier
        assert len(said) > len(earlier)
        gap_s = workload.arrival_s[row] - workload.arrival_s[before]
        assert gap_s == pytest.approx(workload.think_s[row], abs=1e-9)
    assert openings == 20


def test_think_time_has_its_mean() -> None:
    drawn_s = ThinkTime(12.0, 0.5).draw_s(MANY, random_stream(0, "thinking"))
    assert drawn_s.mean() == pytest.approx(12.0, rel=5 * 0.5 / math.sqrt(MANY))
    assert ThinkTime(3.0, 0.0).draw_s(2, random_stream(0, "thinking")).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: SharedPrefixes(10, 0), "shared prefixes must be at least 1"),
        (lambda: ThinkTime(-1.0), "think time"),
        (lambda: random_requests(num_requests=0, input_len=1, output_len=1), "number of requests"),
        (lambda: random_requests(num_requests=1, input_len=0, output_len=1), "is below 1"),
        (lambda: random_requests(num_requests=1, input_len=1, output_len=1, prefix_len=-1), "prefix length"),
        (
            lambda: random_requests(num_requests=1, input_len=1, output_len=1, concurrency=0),
            "concurrency must be",
        ),
        (lambda: random_requests(num_requests=10**9, input_len=1, output_len=1), "at most 20,000,000"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(build: Callable[[], object], part: str) -> None:
    check_refused(build, part)
