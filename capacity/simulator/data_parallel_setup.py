"""A replica that is made of data-parallel ranks, for a deployment of several."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.simulator.cluster import EngineSetup
from capacity.simulator.kv_cache.joint_pool import JointPool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelSetup(EngineSetup):
    """`ranks` engines like `rank`, which take every step together."""

    rank: EngineSetup
    ranks: int

    def pool(self, mode: str) -> Any:
        """An empty KV pool of every rank."""
        return JointPool([self.rank.pool(mode) for _ in range(self.ranks)])


def data_parallel_setup(rank: EngineSetup, ranks: int, balance: str) -> EngineSetup:
    """One replica of `ranks` such engines; the engine itself where there is one. Raises InvalidInput."""
    if ranks == 1:
        return rank
    if rank.role != "both":
        raise InvalidInput(
            f"data-parallel ranks that share experts are not simulated in a {rank.role} pool: use tensor parallelism "
            "there, or one pool that does both"
        )
    shared = {field.name: getattr(rank, field.name) for field in fields(EngineSetup)}
    shared |= {
        "num_blocks": ranks * rank.num_blocks,
        "policy": "lockstep",
        "policy_options": {**rank.policy_options, "policy": rank.policy, "balance": balance},
    }
    return DataParallelSetup(**shared, rank=rank, ranks=ranks)
