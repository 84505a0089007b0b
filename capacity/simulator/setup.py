"""Configuration of one engine, and the construction of its KV pool and scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import PoolLimits
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.pool import JointPool, KvPool
from capacity.simulator.schedulers import (
    Lockstep,
    Policy,
    SchedulerLimits,
    Speculation,
    find_scheduler,
    make_policy,
    schedulers_with_ability,
)
from capacity.simulator.schedulers.lockstep import PUBLISHED_QUEUES
from capacity.simulator.step_noise import StepNoise
from capacity.simulator.transfer import LoadBlockPool
from capacity.step import StepTimes

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Configuration of one engine: step times, KV blocks, scheduler and limits.

    `num_blocks` are usable KV blocks of `block_size` tokens (the number in vLLM's log minus its null block).
    `kv_windows` lists the attention windows of the groups of layers that share the pool. With `kv_contiguous_tokens`,
    each request reserves this many tokens in one piece, as before paging. `window_tokens` is the attention window in
    the step shapes. `policy` is a name or a class of `Policy`, `policy_options` are its further keywords, and
    `speculation` is its speculative decoding. `noise` varies the time of steps with the same shape. `launch_lag`: with
    two steps in flight, the engine reads the results of a step only after this fraction of the next step's time, if the
    next step has a prefill (`capacity.step.launches`). `takes`: the requests that a router with several pools sends to
    this engine.

    With `data_parallel_size` above 1 the engine has this many ranks, each with its own scheduler, `limits` and
    `num_blocks`. All ranks run every step together. For `data_parallel_balance` and `prompt_wait_steps` see
    `capacity.simulator.schedulers.lockstep`.
    """

    step_times: StepTimes
    num_blocks: int
    block_size: int = 16
    policy: str | type[Policy] = "vllm-v1-async"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    speculation: Speculation | None = None
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    enable_prefix_caching: bool = True
    kv_windows: tuple[int | None, ...] = (None,)
    kv_contiguous_tokens: int | None = None
    window_tokens: int | None = None
    data_parallel_size: int = 1
    data_parallel_balance: str = PUBLISHED_QUEUES
    prompt_wait_steps: int = 0
    noise: StepNoise | None = None
    launch_lag: float = 0.0
    label: str = "engine"
    role: Role = "both"
    takes: PoolLimits = field(default_factory=PoolLimits)

    @property
    def policy_name(self) -> str:
        return self.policy if isinstance(self.policy, str) else self.policy.__name__


def make_pool(setup: EngineSetup) -> KvPool:
    """Return an empty KV pool; with several ranks, a `JointPool`. Raises InvalidInput and UnknownName."""
    if setup.num_blocks < 1 or setup.block_size < 1:
        raise InvalidInput(
            "the KV cache must have at least 1 block of at least 1 token, "
            f"not {setup.num_blocks} blocks of {setup.block_size} tokens"
        )
    if setup.data_parallel_size == 1:
        return _one_pool(setup)
    return JointPool([_one_pool(setup) for _ in range(setup.data_parallel_size)])


def _one_pool(setup: EngineSetup) -> KvPool:
    blocks, size, caching = setup.num_blocks, setup.block_size, setup.enable_prefix_caching
    if own := getattr(setup.policy, "own_pool", None):
        return cast(KvPool, own(blocks, size, prefix_caching=caching))
    rules, is_async = setup.limits.rules, setup.policy == "vllm-v1-async"
    steps = setup.limits.steps_in_flight(asynchronous=is_async) if rules.window_waits_for_steps else 1
    if find_scheduler(setup.policy).shares_content:
        return ContentPool(blocks, size, prefix_caching=caching)
    if setup.kv_contiguous_tokens is not None:
        return ContiguousPool(blocks, size, reserved_tokens=setup.kv_contiguous_tokens)
    return (LoadBlockPool if setup.role == "decode" else BlockPool)(
        blocks,
        size,
        prefix_caching=caching,
        windows=setup.kv_windows,
        max_model_len=setup.limits.max_model_len,
        in_flight_tokens=steps * setup.limits.max_num_batched_tokens,
        uncached_first=rules.reuses_uncached_first,
        uncached_window_first=rules.reuses_uncached_window_first,
    )


def make_scheduler(setup: EngineSetup, pool: KvPool) -> Policy:
    """Return the engine's scheduler over a pool from `make_pool`. Raises InvalidInput and UnknownName."""
    options = dict(setup.policy_options)
    if setup.speculation is not None:
        options["speculation"] = setup.speculation
    if not isinstance(pool, JointPool):
        return make_policy(setup.policy, setup.limits, pool, **options)
    ranks = [make_policy(setup.policy, setup.limits, part, **options) for part in pool.parts]
    return Lockstep(ranks, balance=setup.data_parallel_balance, prompt_wait_steps=setup.prompt_wait_steps)


def check_setup(setup: EngineSetup) -> None:
    """Raise InvalidInput or UnknownName if the KV pool or the scheduler rejects the setup."""
    make_pool(setup) if setup.num_blocks < 1 else make_scheduler(
        setup, make_pool(replace(setup, num_blocks=1))
    )


def check_encoding(setup: EngineSetup, image_tokens: int) -> None:
    """Raise InvalidInput if the engine cannot encode images of this size; custom policies are not checked."""
    scheduler, most = find_scheduler(setup.policy), setup.limits.max_encoder_tokens
    if not isinstance(setup.policy, str):
        return
    if not scheduler.encodes:
        able = " and ".join(schedulers_with_ability("encodes"))
        raise InvalidInput(
            f"only the schedulers {able} support images, not {setup.policy}: use --engine vllm, or leave out "
            "--images-per-prompt"
        )
    if not most:
        raise InvalidInput(
            "prompts have images, but the model has no vision encoder that is simulated: leave out --images-per-prompt"
        )
    if image_tokens > most:
        raise InvalidInput(
            f"an image of {image_tokens:,} tokens exceeds the encoder's limit of {most:,} tokens per step: use "
            "smaller images"
        )
    others = {
        "--kv-offloading-size": "offload" in setup.policy_options,
        "--pipeline-parallel-size": setup.limits.pipeline_stages > 1,
        "--no-enable-chunked-prefill": not setup.limits.enable_chunked_prefill,
    }
    for flag, asked in others.items():
        if asked:
            raise InvalidInput(f"images are not simulated together with {flag}: leave out one of them")
