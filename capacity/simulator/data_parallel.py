"""Engines of several data-parallel ranks: a KV pool and a scheduler for each, put together as one of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capacity.simulator.kv_cache.joint_pool import JointPool
from capacity.simulator.schedulers import Policy, SchedulerLimits, make_policy


def data_parallel(
    pools: Sequence[Any], policy: str, limits: SchedulerLimits, *, balance: str, **options: Any
) -> tuple[JointPool, Policy]:
    """The pool and the policy of ranks that take every step together, one rank for each of `pools`."""
    pool = JointPool(pools)
    return pool, make_policy("lockstep", limits, pool, policy=policy, balance=balance, **options)
