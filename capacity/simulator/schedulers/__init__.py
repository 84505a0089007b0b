"""Scheduling policies, by name: what an engine decides, given who waits, who runs and what the KV cache holds.

A policy is pure: `schedule()` turns its state into a `Step`, `update(step)` takes the step's output. Clock, step
times, records and arrivals are the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from capacity.base.errors import UnknownName
from capacity.simulator.schedulers.lockstep import Lockstep
from capacity.simulator.schedulers.offloading import OffloadingV1
from capacity.simulator.schedulers.sequence import (
    DrawnSpeculation,
    Row,
    SchedulerLimits,
    Sequence,
    Speculation,
    Status,
    Step,
)
from capacity.simulator.schedulers.sglang import Sglang
from capacity.simulator.schedulers.slots import SlotBatching
from capacity.simulator.schedulers.static import StaticBatching
from capacity.simulator.schedulers.tensorrt_llm import TensorRtLlm
from capacity.simulator.schedulers.tgi import Tgi
from capacity.simulator.schedulers.vllm_v0 import VllmV0
from capacity.simulator.schedulers.vllm_v1 import VllmV1

__all__ = [
    "POLICIES",
    "DrawnSpeculation",
    "Policy",
    "Row",
    "SchedulerLimits",
    "Sequence",
    "Speculation",
    "Status",
    "Step",
    "make_policy",
]


class Policy(Protocol):
    """What the engine loop asks of a scheduler."""

    steps_in_flight: int

    @property
    def wake_ps(self) -> int | None:
        """After a schedule() that decided nothing: the instant at which it would."""
        ...

    @property
    def unfinished(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    def add(self, sequence: Sequence) -> bool:
        """Take a request in; False: it is turned away (a bounded queue is full)."""
        ...

    def schedule(self, now_ps: int) -> Step: ...
    def update(self, step: Step) -> list[Sequence]: ...


PolicyMaker = Callable[..., Policy]


def _vllm_v1(limits: SchedulerLimits, pool: Any, **options: Any) -> Policy:
    return OffloadingV1(limits, pool, **options) if "offload" in options else VllmV1(limits, pool, **options)


def _vllm_v1_async(limits: SchedulerLimits, pool: Any, **options: Any) -> Policy:
    return _vllm_v1(limits, pool, asynchronous=True, **options)


def _lockstep(
    limits: SchedulerLimits,
    pool: Any,
    *,
    policy: str,
    balance: str,
    prompt_wait_steps: int = 0,
    **options: Any,
) -> Policy:
    ranks = [make_policy(policy, limits, part, **options) for part in pool.parts]
    return Lockstep(ranks, pool, balance=balance, prompt_wait_steps=prompt_wait_steps)


POLICIES: dict[str, PolicyMaker] = {
    "vllm-v1": _vllm_v1,
    "vllm-v1-async": _vllm_v1_async,
    "vllm-v0": VllmV0,
    "static": StaticBatching,
    "slots": SlotBatching,
    "sglang": Sglang,
    "tensorrt-llm": TensorRtLlm,
    "tgi": Tgi,
    "lockstep": _lockstep,
}


def make_policy(name: str, limits: SchedulerLimits, pool: Any, **options: Any) -> Policy:
    """The policy `name` over a KV pool. Raises UnknownName."""
    if name not in POLICIES:
        raise UnknownName("scheduling policy", name, POLICIES)
    return POLICIES[name](limits, pool, **options)
