"""The pools of data-parallel ranks, counted together."""

from __future__ import annotations

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.pool import JointPool


def test_blocks_are_those_of_all_ranks_and_taken_from_one() -> None:
    joint = JointPool([BlockPool(10, 4) for _ in range(3)])
    assert (joint.num_blocks, joint.free_blocks) == (30, 30)
    rank = joint.parts[1]
    assert isinstance(rank, BlockPool)
    table = joint.table(Content("a"))
    rank.grow(table, 17)
    assert (joint.free_blocks, rank.free_blocks) == (25, 5)
    rank.release(table)
    assert joint.free_blocks == 30
