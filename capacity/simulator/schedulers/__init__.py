"""Scheduling policies by name. A policy decides which requests and how many of their tokens the next step computes.

`schedule()` returns a `Step` for the policy's state, and `update(step)` applies the step's output. A policy has no
other effects: clock, step times, records and arrivals are the simulator's. To add a policy, write a module here and an
entry in `SCHEDULERS`, or pass a class to `EngineSetup(policy=)`. A policy in another package is a plug-in
(docs/extending.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.plugins import load_plugin, plugin_names
from capacity.simulator.kv_cache.pool import KvPool, PagedPool
from capacity.simulator.schedulers.adapters import (
    AdapterSglang,
    AdapterSlots,
    AdapterTensorRtLlm,
    AdapterTgi,
    AdapterV0,
    AdapterV1,
)
from capacity.simulator.schedulers.lockstep import PUBLISHED_QUEUES, Lockstep
from capacity.simulator.schedulers.offloading import OffloadingV1
from capacity.simulator.schedulers.policy import Policy
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
    "OPTIONAL_SETTINGS",
    "SCHEDULERS",
    "AdapterSlots",
    "DrawnSpeculation",
    "Lockstep",
    "Policy",
    "Row",
    "Scheduler",
    "SchedulerLimits",
    "Sequence",
    "Speculation",
    "Status",
    "Step",
    "find_policy",
    "find_scheduler",
    "make_policy",
    "schedulers_with_ability",
    "schedulers_with_setting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Scheduler of an engine, with its abilities: `make(limits, pool, **options)` builds its policy over a KV pool.

    `drafts`: schedules speculative tokens. `offloads`: supports KV tiers below the GPU. `adapts`: supports LoRA
    adapters. `encodes`: supports images in prompts. `swaps`: can swap preempted KV to host memory. `hands_over`: can
    send prefilled KV to another engine. `shares_content`: its pool stores equal blocks once (vLLM V0). `reads`: names
    of optional fields of a pool or of traffic that this scheduler supports. `balance`: method that assigns requests to
    data-parallel ranks (see `lockstep`). `engine_options`: fields of the engine's release that are passed to the
    policy as keywords if they are not 0. `asynchronous`, `synchronous`: name of the scheduler to use if a pool
    requests asynchronous or synchronous scheduling.
    """

    make: Callable[..., Policy]
    drafts: bool = False
    offloads: bool = False
    adapts: bool = False
    encodes: bool = False
    swaps: bool = False
    hands_over: bool = False
    shares_content: bool = False
    reads: tuple[str, ...] = ()
    balance: str = PUBLISHED_QUEUES
    engine_options: tuple[str, ...] = ()
    asynchronous: str | None = None
    synchronous: str | None = None


def _make_vllm_v1(limits: SchedulerLimits, pool: PagedPool, **options: Any) -> Policy:
    if {"offload", "adapters"} <= set(options):
        raise InvalidInput("KV offload and LoRA adapters cannot be simulated together: leave out one of them")
    if "adapters" in options:
        return AdapterV1(limits, pool, **options)
    return OffloadingV1(limits, pool, **options) if "offload" in options else VllmV1(limits, pool, **options)


def _with_adapters(
    plain: Callable[..., Policy],
    adapted: Callable[..., Policy],
    limits: SchedulerLimits,
    pool: PagedPool,
    **options: Any,
) -> Policy:
    """Return the policy with adapters if the options include `adapters`, otherwise the policy without adapters."""
    return (adapted if "adapters" in options else plain)(limits, pool, **options)


_V1 = Scheduler(
    make=_make_vllm_v1,
    drafts=True,
    offloads=True,
    adapts=True,
    encodes=True,
    hands_over=True,
    reads=(
        "async_scheduling",
        "scheduling_policy",
        "watermark",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
        "prefill_schedule_interval",
    ),
    asynchronous="vllm-v1-async",
    synchronous="vllm-v1",
)
SCHEDULERS: dict[str, Scheduler] = {
    "vllm-v1": _V1,
    "vllm-v1-async": replace(_V1, make=partial(_make_vllm_v1, asynchronous=True)),
    "chunked": replace(  # other engines that only mix chunked prefills with decodes as V1 does
        _V1, offloads=False, adapts=False, hands_over=False, reads=(), asynchronous=None, synchronous=None
    ),
    "vllm-v0": Scheduler(
        make=partial(_with_adapters, VllmV0, AdapterV0),
        drafts=True,
        adapts=True,
        swaps=True,
        shares_content=True,
        reads=("scheduling_policy",),
        engine_options=("forks_samples",),
    ),
    "static": Scheduler(make=StaticBatching),
    "slots": Scheduler(make=SlotBatching),
    "sglang": Scheduler(
        make=partial(_with_adapters, Sglang, AdapterSglang),
        drafts=True,
        adapts=True,
        hands_over=True,
        reads=("max_tokens", "scheduler_recv_interval"),
        balance="round-robin",
    ),
    "tensorrt-llm": Scheduler(
        make=partial(_with_adapters, TensorRtLlm, AdapterTensorRtLlm),
        drafts=True,
        adapts=True,
        hands_over=True,
        reads=("max_tokens",),
        balance="fewest-requests",
        engine_options=("batch_wait_steps",),
    ),
    "tgi": Scheduler(
        make=partial(_with_adapters, Tgi, AdapterTgi),
        adapts=True,
        drafts=True,
        hands_over=True,
        reads=("max_tokens",),
    ),
}


def find_scheduler(name: str | type[Policy]) -> Scheduler:
    """Return the scheduler with this name, or one that builds policies of this class. Raises UnknownName."""
    policy = find_policy(name)
    return SCHEDULERS[policy] if isinstance(policy, str) else Scheduler(make=policy)


def find_policy(policy: str | type[Policy]) -> str | type[Policy]:
    """Return the name of a built-in policy, or a policy's class: the given one, or that of the plug-in with this name.

    Raises UnknownName, and InvalidInput for a class without the methods of a policy.
    """
    if isinstance(policy, str):
        if policy in SCHEDULERS:
            return policy
        found: type[Policy] | None = load_plugin("policies", policy, f"a class with {METHODS}", _is_policy)
        if found is None:
            raise UnknownName("scheduling policy", policy, (*SCHEDULERS, *plugin_names("policies")))
        return found
    if not _is_policy(policy):
        raise InvalidInput(f"policy is {policy!r}: it must be a name, or a class with {METHODS}")
    return policy


METHODS = "the methods add, schedule and update (see capacity.simulator.schedulers.policy)"


def _is_policy(kind: object) -> bool:
    names = ("add", "schedule", "update")
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in names)


OPTIONAL_SETTINGS = tuple(
    dict.fromkeys(name for scheduler in SCHEDULERS.values() for name in scheduler.reads)
)


def schedulers_with_setting(name: str) -> tuple[str, ...]:
    """Return the names of the schedulers that support a setting in `OPTIONAL_SETTINGS`."""
    return tuple(policy for policy, scheduler in SCHEDULERS.items() if name in scheduler.reads)


def schedulers_with_ability(ability: str) -> tuple[str, ...]:
    """Return the names of the schedulers that have an ability, given as a field of `Scheduler`, such as `drafts`."""
    return tuple(name for name, scheduler in SCHEDULERS.items() if getattr(scheduler, ability))


def make_policy(name: str | type[Policy], limits: SchedulerLimits, pool: KvPool, **options: Any) -> Policy:
    """Build a policy over a KV pool; `options` are its keywords. Raises UnknownName."""
    return find_scheduler(name).make(limits, pool, **options)
