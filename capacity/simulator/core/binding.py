"""Conversion of an engine's setup to the C structure `core_engine`, and the check whether C supports the setup."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.simulator.core.interface import enums, structs
from capacity.simulator.schedulers import DrawnSpeculation, SchedulerLimits, Speculation
from capacity.simulator.schedulers.policy import watermark_blocks
from capacity.simulator.setup import EngineSetup
from capacity.step import picoseconds

NEVER_KEY = 1 << 62
POLICIES = {
    "vllm-v1": enums.POLICY_VLLM_V1,
    "vllm-v1-async": enums.POLICY_VLLM_V1,
    "chunked": enums.POLICY_VLLM_V1,
    "vllm-v0": enums.POLICY_VLLM_V0,
    "sglang": enums.POLICY_SGLANG,
    "tensorrt-llm": enums.POLICY_TENSORRT_LLM,
    "tgi": enums.POLICY_TGI,
    "static": enums.POLICY_STATIC,
    "slots": enums.POLICY_SLOTS,
}
LIMIT_FIELDS = ({limit.name for limit in fields(SchedulerLimits)} - {"rules"}) & {
    name for name, _ in structs.core_engine._fields_
}
RULE_FIELDS = [name for name, _ in structs.core_rules._fields_]


def array_address(column: npt.NDArray[Any] | None) -> int | None:
    """Return the memory address of an array; None without an array. The caller must keep the array alive."""
    return None if column is None else int(column.ctypes.data)


@dataclass(slots=True)
class EngineDescription:
    """A C structure `core_engine` and, so that Python does not free them, the arrays that it points to."""

    engine: Any  # core_engine
    kept: list[Any] = field(default_factory=list)

    def keep_array(self, values: Any, kind: Any = np.int64) -> int | None:
        column = np.ascontiguousarray(values, dtype=kind)
        self.kept.append(column)
        return array_address(column) if len(column) else None


DRAFTING_POLICIES = ("vllm-v1", "vllm-v1-async", "chunked")  # policies whose drafts the core schedules
POLICY_OPTIONS: dict[str, Mapping[str, Any]] = {
    "vllm-v1": {"offload": None, "adapters": None},
    "vllm-v1-async": {"offload": None, "adapters": None},
    "chunked": {},
    "vllm-v0": {"preemption_mode": "recompute", "num_cpu_blocks": 0, "swap_block_ps": 0}
    | {"block_bytes": 0.0, "forks_samples": False},
    "sglang": {"asynchronous": True, "order": "fcfs", "mixed_chunk": False, "max_prefill_tokens": 16384}
    | {"conservativeness": 1.0, "ignore_eos": False, "recv_interval": 1}
    | {"window": 0, "window_share": 0.0},
    "tensorrt-llm": {"asynchronous": True, "capacity": None, "prompts_per_step": None}
    | {"batch_wait_steps": 0, "batch_wait_tokens_fraction": 0.0},
    "tgi": {"asynchronous": False, "waiting_served_ratio": 0.3, "max_waiting_steps": 20},
    "static": {"batching_window_s": 0.0},
    "slots": {"max_waiting": None},
}  # options of the policies that the core supports, with their defaults
OPTION_PREFIXES = {
    "vllm-v0": "v0",
    "tensorrt-llm": "trt",
}  # prefixes of option fields that differ from the name of the policy


def unsupported_reason(setup: EngineSetup) -> str | None:
    """Return the reason why the compiled engines do not support this setup; None if they support it."""
    policy, speculation = setup.policy_name, setup.speculation
    if not isinstance(setup.policy, str) or policy not in POLICY_OPTIONS:
        return f"the scheduler {policy} is not supported"
    if unknown := sorted(set(setup.policy_options) - set(POLICY_OPTIONS[policy])):
        return f"the option {unknown[0]} of the scheduler {policy} is not supported"
    if not hasattr(enums, _enumerator_name("BALANCE", setup.data_parallel_balance)):
        return f"the balancing method {setup.data_parallel_balance} is not supported"
    if setup.data_parallel_size > 1 and setup.role != "both":
        return "data-parallel ranks of prefill or decode engines are not supported"
    if speculation is None or (
        policy in DRAFTING_POLICIES and type(speculation) in (Speculation, DrawnSpeculation)
    ):
        return None
    return f"this speculative decoding is not supported with the scheduler {policy}"


def _enumerator_name(kind: str, name: str) -> str:
    """Return the C enumerator of a value: BALANCE_ROUND_ROBIN for kind "BALANCE" and name "round-robin"."""
    return f"{kind}_{name.upper().replace('-', '_')}"


def describe(setup: EngineSetup) -> EngineDescription:
    """Return a setup's `core_engine`; `Fleet.add` sets its step times, prompt contents and front end later."""
    limits, name = setup.limits, setup.policy_name
    found = EngineDescription(structs.core_engine())
    e = found.engine
    e.policy = POLICIES[name]
    e.role = getattr(enums, _enumerator_name("ROLE", setup.role))
    _describe_options(e, name, {**POLICY_OPTIONS[name], **setup.policy_options}, setup)
    for limit in LIMIT_FIELDS:
        setattr(e, limit, getattr(limits, limit) or 0)
    e.rules = structs.core_rules(**{rule: getattr(limits.rules, rule) for rule in RULE_FIELDS})
    e.watermark_blocks = watermark_blocks(limits.watermark, setup.num_blocks)
    e.num_blocks, e.block_size = setup.num_blocks, setup.block_size
    e.prefix_caching = setup.enable_prefix_caching and setup.kv_contiguous_tokens is None
    e.num_windows = len(setup.kv_windows)
    e.windows = found.keep_array([-1 if window is None else window for window in setup.kv_windows])
    if setup.kv_contiguous_tokens is not None:
        e.contiguous_blocks = -(-setup.kv_contiguous_tokens // setup.block_size)
    e.window_tokens = -1 if setup.window_tokens is None else setup.window_tokens
    _describe_drafts(found, setup.speculation)
    e.data_parallel_size = setup.data_parallel_size
    e.balance = getattr(enums, _enumerator_name("BALANCE", setup.data_parallel_balance))
    e.prompt_wait_steps = setup.prompt_wait_steps
    e.num_processes = e.stream_interval = 1
    e.launch_lag = setup.launch_lag
    if setup.noise is not None:
        e.step_factors, e.step_seed = found.keep_array(setup.noise.factors, np.float64), setup.noise.seed
    return found


def _describe_options(e: Any, policy: str, options: Mapping[str, Any], setup: EngineSetup) -> None:
    """Write a policy's options to the fields of the C structure `e`, converting names and units that differ in C."""
    e.asynchronous = options.get("asynchronous", policy == "vllm-v1-async")
    e.sglang_recv_interval = 1
    for name, value in options.items():
        field_name = f"{OPTION_PREFIXES.get(policy, policy)}_{name}"
        if hasattr(e, field_name):
            setattr(e, field_name, -1 if value is None else value)
    e.sglang_lpm = options.get("order") == "lpm"
    e.trt_max_utilization = options.get("capacity") == "max_utilization"
    e.trt_batch_wait_tokens = (
        options.get("batch_wait_tokens_fraction", 0.0) * setup.limits.max_num_batched_tokens
    )
    e.trt_prompts_per_step = options.get("prompts_per_step") or 0
    e.static_window_ps = picoseconds(options.get("batching_window_s", 0.0))
    e.v0_swap = options.get("preemption_mode") == "swap"
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


def _describe_drafts(found: EngineDescription, speculation: Speculation | None) -> None:
    if speculation is None:
        return
    e = found.engine
    e.draft_tokens, e.lookahead_slots = speculation.k, speculation.lookahead_slots
    if isinstance(speculation, DrawnSpeculation):
        e.num_rates, e.num_classes = len(speculation.rates), len(speculation.rate_table)
        e.rates = found.keep_array(np.ravel(speculation.rate_table), np.float64)
        e.draft_seed = speculation.seed
    else:
        e.num_accept, e.accept = len(speculation.accept), found.keep_array(speculation.accept)
