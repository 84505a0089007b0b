"""The figures that variants of a deployment are compared by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment import Cost, Pool
from capacity.hardware.pricing import find_price_for_cost
from capacity.planning.variations.outcome import block_indices, measure, outcome, relative_change
from capacity.pool.resolve import resolve
from capacity.workload import random_requests


def test_relative_changes_need_both_ends() -> None:
    assert relative_change(2.0, 3.0) == 0.5
    assert relative_change(2.0, 2.0) == 0.0
    assert relative_change(0.0, 1.0) is None
    assert relative_change(None, 1.0) is None
    assert relative_change(1.0, None) is None


@given(count=st.integers(1, 200), blocks=st.integers(1, 30), seed=st.integers(0, 5))
def test_resamples_are_made_of_whole_blocks(count: int, blocks: int, seed: int) -> None:
    whole = {tuple(part) for part in np.array_split(np.arange(count), blocks) if len(part)}
    (drawn,) = block_indices(count, blocks, 1, seed)
    rest = list(drawn)
    while rest:
        block = next(block for block in whole if block[0] == rest[0])
        assert tuple(rest[: len(block)]) == block
        rest = rest[len(block) :]


def test_an_outcome_is_what_was_measured_and_its_bill() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", replicas=2))
    requests = random_requests(num_requests=40, input_len=200, output_len=20, request_rate_per_s=10.0)
    run = measure(resolved, requests)
    priced = outcome(resolved, run, find_price_for_cost("h100", Cost(price="3")))
    assert priced.ttft_p95_s == pytest.approx(float(np.percentile(run.ttft_s, 95)))
    assert priced.failed == 0
    assert priced.usd_per_hour == 6.0
    assert priced.usd_per_request_served == pytest.approx(6.0 / 3600 / run.requests_per_s)
    free = outcome(resolved, run)
    assert (free.usd_per_hour, free.usd_per_request_served, free.usd_per_request_full) == (None, None, None)
