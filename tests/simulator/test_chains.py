"""The beginning of a prompt that others have as well, in KV blocks."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.simulator.requests import NO_CHAIN, Chains
from capacity.workload import FixedLengths, SharedPrefixes, SteadyArrivals, Workload, synthetic


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_common_prefix_is_shared_in_whole_blocks(block_size: int) -> None:
    workload = synthetic(
        num_requests=6,
        arrivals=SteadyArrivals(1.0),
        prompt=FixedLengths(50),
        output=FixedLengths(4),
        shared_prefixes=SharedPrefixes(70),
    )
    chains = Chains(workload, block_size)
    contents = [chains.content(request) for request in range(6)]
    shared = 70 // block_size
    for index in range(workload.prompt_tokens[0] // block_size):
        assert len({content.block_key(index) for content in contents}) == (1 if index < shared else 6)


def test_without_content_nothing_is_shared() -> None:
    ones = np.ones(3, dtype=np.int64)
    chains = Chains(Workload(arrival_s=np.zeros(3), prompt_tokens=40 * ones, output_tokens=ones), 4)
    assert [chains.chain_of(request) for request in range(3)] == [NO_CHAIN] * 3
    assert len({chains.content(request).block_key(0) for request in range(3)}) == 3
