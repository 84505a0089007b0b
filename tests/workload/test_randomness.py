"""Streams of random numbers: apart from each other, and the same for the same seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from small_workloads import check_refused

from capacity.workload import (
    FixedLengths,
    GammaLengths,
    SharedPrefixes,
    SteadyArrivals,
    random_stream,
    synthetic,
)


def test_components_draw_from_streams_of_their_own() -> None:
    one = synthetic(
        num_requests=50, arrivals=SteadyArrivals(1.0), prompt=FixedLengths(5), output=FixedLengths(5), seed=3
    )
    two = synthetic(
        num_requests=50,
        arrivals=SteadyArrivals(1.0),
        prompt=GammaLengths(50.0, 1.0),
        output=GammaLengths(50.0, 1.0),
        rank_correlation=0.5,
        shared_prefixes=SharedPrefixes(100, 4),
        seed=3,
    )
    assert (one.arrival_s == two.arrival_s).all()
    faster = synthetic(
        num_requests=50,
        arrivals=SteadyArrivals(9.0, 0.3),
        prompt=GammaLengths(50.0, 1.0),
        output=GammaLengths(50.0, 1.0),
        rank_correlation=0.5,
        shared_prefixes=SharedPrefixes(100, 4),
        seed=3,
    )
    assert (faster.prompt_tokens == two.prompt_tokens).all()
    assert (faster.output_tokens == two.output_tokens).all()


_BUILD = """
from capacity.workload import *
print(conversations(num_sessions=30, arrivals=SteadyArrivals(1.0, 0.5), turns=UniformLengths(4, 0.7),
    user_tokens=LognormalLengths(90.0, 1.0), output=GammaLengths(60.0, 1.0), think_time=ThinkTime(10.0),
    system_prompt_tokens=100, seed=7).fingerprint())
print(random_requests(num_requests=30, input_len=100, output_len=9, request_rate_per_s=2, range_ratio=.5,
    prefix_len=64, seed=7).fingerprint())
"""


def test_same_seed_same_bytes_whatever_the_hash_seed() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", _BUILD],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0].split())) == 2


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: random_stream(-1, "arrivals"), "seed must be"),
        (lambda: random_stream(True, "arrivals"), "seed must be"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(build: Callable[[], object], part: str) -> None:
    check_refused(build, part)
