"""How an engine's setup becomes a `core_engine` of the core's C interface, and which setups can."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.simulator.core.interface import enums, structs
from capacity.simulator.schedulers import DrawnSpeculation, SchedulerLimits, Speculation
from capacity.simulator.setup import EngineSetup
from capacity.step import picoseconds

NEVER_KEY = 1 << 62
POLICIES = {
    "vllm-v1": (enums.POLICY_VLLM_V1, False),
    "vllm-v1-async": (enums.POLICY_VLLM_V1, True),
    "chunked": (enums.POLICY_VLLM_V1, False),
    "vllm-v0": (enums.POLICY_VLLM_V0, False),
    "sglang": (enums.POLICY_SGLANG, True),
    "tensorrt-llm": (enums.POLICY_TENSORRT_LLM, True),
    "tgi": (enums.POLICY_TGI, False),
    "static": (enums.POLICY_STATIC, False),
    "slots": (enums.POLICY_SLOTS, False),
}  # the policy's number, and whether it is asynchronous unless an option says otherwise
ROLES = {"both": enums.ROLE_BOTH, "prefill": enums.ROLE_PREFILL, "decode": enums.ROLE_DECODE}
BALANCES = {
    "published-queues": enums.BALANCE_PUBLISHED_QUEUES,
    "round-robin": enums.BALANCE_ROUND_ROBIN,
    "fewest-requests": enums.BALANCE_FEWEST_REQUESTS,
}
LIMITS = {limit.name for limit in fields(SchedulerLimits)} & {
    name for name, _ in structs.core_engine._fields_
}


def address(column: npt.NDArray[Any] | None) -> int | None:
    """Return where a column's numbers are; the caller keeps the column."""
    return None if column is None else int(column.ctypes.data)


@dataclass(slots=True)
class Described:
    """An engine as the core takes it, and the arrays that must live as long."""

    engine: Any  # core_engine
    kept: list[Any] = field(default_factory=list)

    def numbers(self, values: Any, kind: Any = np.int64) -> int | None:
        column = np.ascontiguousarray(values, dtype=kind)
        self.kept.append(column)
        return address(column) if len(column) else None


DRAFTING = ("vllm-v1", "vllm-v1-async", "chunked")  # whose drafts the core schedules
OPTIONS: dict[str, frozenset[str]] = {
    "vllm-v1": frozenset({"offload", "adapters"}),
    "vllm-v1-async": frozenset({"offload", "adapters"}),
    "chunked": frozenset(),
    "vllm-v0": frozenset(
        {"preemption_mode", "num_cpu_blocks", "swap_block_ps", "block_bytes", "forks_samples"}
    ),
    "sglang": frozenset(
        {"asynchronous", "order", "mixed_chunk", "max_prefill_tokens"}
        | {"conservativeness", "ignore_eos", "recv_interval"}
    ),
    "tensorrt-llm": frozenset(
        {"asynchronous", "capacity", "batch_wait_steps", "batch_wait_tokens_fraction", "prompts_per_step"}
    ),
    "tgi": frozenset({"asynchronous", "waiting_served_ratio", "max_waiting_steps"}),
    "static": frozenset({"batching_window_s"}),
    "slots": frozenset({"max_waiting"}),
}  # of the policies, that the core knows


def covers(setup: EngineSetup) -> bool:
    """Whether the compiled engines do all that this setup asks for."""
    known = OPTIONS.get(setup.policy) if isinstance(setup.policy, str) else None
    return (
        known is not None
        and set(setup.policy_options) <= known
        and setup.data_parallel_balance in BALANCES
        and (setup.data_parallel_size == 1 or setup.role == "both")
        and (
            setup.speculation is None
            or (setup.policy in DRAFTING and type(setup.speculation) in (Speculation, DrawnSpeculation))
        )
    )


def describe(setup: EngineSetup) -> Described:
    """The engine's limits, KV, drafts and options. Its times, contents and surroundings are for the fleet to add."""
    limits, options = setup.limits, dict(setup.policy_options)
    policy, asynchronous = POLICIES[setup.policy_name]
    found = Described(structs.core_engine())
    e = found.engine
    e.policy, e.role = policy, ROLES[setup.role]
    e.asynchronous = options.pop("asynchronous", asynchronous)
    for name in LIMITS:
        setattr(e, name, getattr(limits, name) or 0)
    e.watermark_blocks = int(limits.watermark * setup.num_blocks)
    e.num_blocks, e.block_size = setup.num_blocks, setup.block_size
    e.prefix_caching = setup.enable_prefix_caching and setup.kv_contiguous_tokens is None
    e.num_windows = len(setup.kv_windows)
    e.windows = found.numbers([-1 if window is None else window for window in setup.kv_windows])
    if setup.kv_contiguous_tokens is not None:
        e.contiguous_blocks = -(-setup.kv_contiguous_tokens // setup.block_size)
    e.window_tokens = -1 if setup.window_tokens is None else setup.window_tokens
    _describe_drafts(found, setup.speculation)
    e.data_parallel_size = setup.data_parallel_size
    e.balance = BALANCES[setup.data_parallel_balance]
    e.prompt_wait_steps = setup.prompt_wait_steps
    e.sglang_lpm = options.get("order", "fcfs") == "lpm"
    e.sglang_mixed_chunk = options.get("mixed_chunk", False)
    e.sglang_max_prefill_tokens = options.get("max_prefill_tokens", 16384)
    e.sglang_ignore_eos = options.get("ignore_eos", False)
    e.sglang_recv_interval = options.get("recv_interval", 1)
    e.sglang_conservativeness = options.get("conservativeness", 1.0)
    e.trt_max_utilization = options.get("capacity") == "max_utilization"
    e.trt_batch_wait_steps = options.get("batch_wait_steps", 0)
    e.trt_batch_wait_tokens = options.get("batch_wait_tokens_fraction", 0.0) * limits.max_num_batched_tokens
    e.trt_prompts_per_step = options.get("prompts_per_step") or 0
    e.tgi_waiting_served_ratio = options.get("waiting_served_ratio", 0.3)
    e.tgi_max_waiting_steps = options.get("max_waiting_steps", 20)
    e.static_window_ps = picoseconds(options.get("batching_window_s", 0.0))
    max_waiting = options.get("max_waiting")
    e.slots_max_waiting = -1 if max_waiting is None else max_waiting
    e.v0_swap = options.get("preemption_mode", "recompute") == "swap"
    e.v0_num_cpu_blocks = options.get("num_cpu_blocks", 0)
    e.v0_swap_block_ps = options.get("swap_block_ps", 0)
    offload = options.get("offload")
    if offload is not None:
        e.num_tiers, e.chunk_blocks = len(offload.tiers), offload.chunk_blocks
        e.offload_synchronous = offload.synchronous
        e.chunk_bytes = offload.block_bytes * offload.chunk_blocks
        for place, tier in enumerate(offload.tiers):
            capacity = -1 if tier.capacity_chunks is None else tier.capacity_chunks
            e.tiers[place] = structs.core_tier(capacity, tier.bytes_per_s, picoseconds(tier.latency_s))
    adapters = options.get("adapters")
    if adapters is not None:
        e.max_loras, e.max_cpu_loras = adapters.max_loras, adapters.max_cpu_loras or 0
        e.adapter_load_ps, e.adapter_read_ps = adapters.load_ps, adapters.read_ps
    e.num_processes = e.stream_interval = 1
    e.launch_lag = setup.launch_lag
    if setup.noise is not None:
        e.step_factors, e.step_seed = found.numbers(setup.noise.factors, np.float64), setup.noise.seed
    return found


def _describe_drafts(found: Described, speculation: Speculation | None) -> None:
    if speculation is None:
        return
    e = found.engine
    e.draft_tokens, e.lookahead_slots = speculation.k, speculation.lookahead_slots
    if isinstance(speculation, DrawnSpeculation):
        e.num_rates, e.num_classes = len(speculation.rates), len(speculation.rate_table)
        e.rates = found.numbers(np.ravel(speculation.rate_table), np.float64)
        e.draft_seed = speculation.seed
    else:
        e.num_accept, e.accept = len(speculation.accept), found.numbers(speculation.accept)
