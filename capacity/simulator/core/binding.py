"""The core's C interface as ctypes: structures field by field as in core.h, and how a setup becomes one of them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.simulator.schedulers import DrawnSpeculation, Speculation
from capacity.simulator.setup import EngineSetup
from capacity.step import picoseconds

NEVER_KEY = 1 << 62
POLICIES = {
    "vllm-v1": (0, False),
    "vllm-v1-async": (0, True),
    "chunked": (0, False),
    "vllm-v0": (1, False),
    "sglang": (2, True),
    "tensorrt-llm": (3, True),
    "tgi": (4, False),
    "static": (5, False),
    "slots": (6, False),
}  # the policy's number, and whether it is asynchronous unless an option says otherwise
ROLES = {"both": 0, "prefill": 1, "decode": 2}
BALANCES = {"published-queues": 0, "round-robin": 1, "fewest-requests": 2}
FINISHED, REFUSED, PREFILLED, PREFILL_LOST, LOAD_BEGINS = range(5)
ANY_EVENT = 0b11111  # kinds as bits
OK, OUT_OF_MEMORY, BROKEN, BAD_INPUT, CALLBACK_FAILED = range(5)

TOLD_IN_TURN = 16  # events

Column = POINTER(c_int64)


def _fields(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class CoreRequests(Structure):
    _fields_ = [
        ("count", c_int64),
        *_fields("prompt_tokens output_tokens max_tokens priority adapter order", c_void_p),
    ]


class CoreContents(Structure):
    _fields_ = [*_fields("offsets keys stops", c_void_p), ("num_keys", c_int64)]


class CoreColumns(Structure):
    _fields_ = _fields(
        "arrival_ps first_scheduled_ps first_token_ps finish_ps output_tokens cached_tokens preemptions preempted_ps",
        c_void_p,
    )


class CoreTier(Structure):
    _fields_ = [("capacity_chunks", c_int64), ("bytes_per_s", c_double), ("latency_ps", c_int64)]


class CoreEngine(Structure):
    _fields_ = [
        *_fields(
            "policy role asynchronous max_num_seqs max_num_batched_tokens max_model_len priority "
            "enable_chunked_prefill long_prefill_token_threshold lone_prefill_exempt watermark_blocks "
            "reserve_full_isl max_num_active_seqs prefill_schedule_interval self_preempt_continues pipeline_stages "
            "num_blocks block_size prefix_caching num_windows",
            c_int64,
        ),
        ("windows", c_void_p),
        ("contiguous_blocks", c_int64),
        ("contents", POINTER(CoreContents)),
        ("answers_private", c_int64),
        ("times", c_void_p),
        *_fields("window_tokens draft_tokens lookahead_slots num_accept", c_int64),
        ("accept", c_void_p),
        *_fields("num_rates num_classes", c_int64),
        ("rates", c_void_p),
        ("draft_seed", c_uint64),
        *_fields(
            "data_parallel_size balance prompt_wait_steps sglang_lpm sglang_mixed_chunk sglang_max_prefill_tokens "
            "sglang_ignore_eos sglang_recv_interval",
            c_int64,
        ),
        ("sglang_conservativeness", c_double),
        *_fields("trt_max_utilization trt_batch_wait_steps trt_prompts_per_step", c_int64),
        ("trt_batch_wait_tokens", c_double),
        ("tgi_waiting_served_ratio", c_double),
        *_fields(
            "tgi_max_waiting_steps static_window_ps slots_max_waiting v0_swap v0_num_cpu_blocks v0_swap_block_ps "
            "num_tiers chunk_blocks offload_synchronous",
            c_int64,
        ),
        ("chunk_bytes", c_double),
        ("tiers", CoreTier * 2),
        *_fields("max_loras max_cpu_loras adapter_load_ps adapter_read_ps", c_int64),
        ("input_token_s", c_double),
        *_fields(
            "num_processes request_ps message_ps stream_interval keep_work keep_log admits_long_prompts",
            c_int64,
        ),
        ("step_factors", c_void_p),
        ("step_seed", c_uint64),
        ("launch_lag", c_double),
    ]


class CoreState(Structure):
    _fields_ = [
        *_fields(
            "num_running num_waiting kv_used_blocks unfinished steps rows busy_ps rejected preemptions completed "
            "kv_peak_blocks hit_tokens queried_tokens",
            c_int64,
        ),
        ("_padding", c_int64),
        ("kv_block_ps", c_uint64 * 2),  # 128 bits, the low half first
        ("kv_busy_ps", c_uint64 * 2),
        *_fields("now_ps alive endless", c_int64),
        ("_padding_at_end", c_int64),
    ]


class CoreTierUse(Structure):
    _fields_ = _fields("stored evicted loaded held refused hit_tokens", c_int64)


class CoreEvent(Structure):
    _fields_ = _fields("kind engine request at_ps value", c_int64)


class CoreTurn(Structure):
    _fields_ = [
        *_fields(
            "limit_key stop_at max_steps load_engine load_request load_end_ps next_key",
            c_int64,
        ),
        ("told", CoreEvent * TOLD_IN_TURN),
    ]


STRUCTURES = (
    CoreRequests,
    CoreContents,
    CoreColumns,
    CoreTier,
    CoreEngine,
    CoreState,
    CoreTierUse,
    CoreEvent,
    CoreTurn,
)  # as core_size counts them


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The types of the core's functions, on a library that was loaded."""
    number, pointer = c_int64, c_void_p
    for name, result, *arguments in (
        ("fleet_new", pointer, POINTER(CoreRequests), POINTER(CoreColumns), number),
        ("fleet_free", None, pointer),
        ("fleet_error", ctypes.c_char_p, pointer),
        ("fleet_add", number, pointer, POINTER(CoreEngine), number),
        ("fleet_feed", number, pointer, number, number, pointer, pointer),
        ("fleet_deliver", number, pointer, number, number, number),
        ("fleet_advance", number, pointer, number, number, number),
        ("fleet_next_key", number, pointer),
        ("fleet_keep_turn", None, pointer, POINTER(CoreTurn)),
        ("fleet_take_turn", number, pointer),
        ("fleet_completed", number, pointer),
        ("fleet_events", number, pointer, POINTER(POINTER(c_int64))),  # core_event, flat
        ("fleet_state", None, pointer, number, POINTER(CoreState)),
        ("fleet_rank_requests", number, pointer, number, pointer),
        ("fleet_tier_use", number, pointer, number, pointer),
        ("fleet_log", number, pointer, number, POINTER(POINTER(c_int64))),
        ("fleet_gaps", pointer, pointer),
        ("fleet_work", pointer, pointer, number),
        ("fleet_cancel", number, pointer, number, number, number),
        ("fleet_release_kept", number, pointer, number, number, number),
        ("fleet_want_load", number, pointer, number, number, number, number),
        ("fleet_load_begun", number, pointer, number, number, number),
        ("fleet_loaded", number, pointer, number, number, number),
        ("fleet_unload", number, pointer, number, number, number),
        ("fleet_stop", None, pointer, number),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for which, structure in enumerate(STRUCTURES):
        assert library.core_size(c_int64(which)) == ctypes.sizeof(structure), structure
    return library


def address(column: npt.NDArray[Any] | None) -> int | None:
    """Where a column's numbers stand; whoever asks keeps the column."""
    return None if column is None else int(column.ctypes.data)


@dataclass(slots=True)
class Described:
    """An engine as the core takes it, and what must live as long."""

    engine: CoreEngine
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
        {
            "asynchronous",
            "order",
            "mixed_chunk",
            "max_prefill_tokens",
            "conservativeness",
            "ignore_eos",
            "recv_interval",
        }
    ),
    "tensorrt-llm": frozenset(
        {
            "asynchronous",
            "capacity",
            "batch_wait_steps",
            "batch_wait_tokens_fraction",
            "prompts_per_step",
        }
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
    found = Described(CoreEngine())
    e = found.engine
    e.policy, e.role = policy, ROLES[setup.role]
    e.asynchronous = options.pop("asynchronous", asynchronous)
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "priority",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "lone_prefill_exempt",
        "reserve_full_isl",
        "prefill_schedule_interval",
        "self_preempt_continues",
        "pipeline_stages",
    ):
        setattr(e, name, getattr(limits, name))
    e.watermark_blocks = int(limits.watermark * setup.num_blocks)
    e.max_num_active_seqs = limits.max_num_active_seqs or 0
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
            e.tiers[place] = CoreTier(capacity, tier.bytes_per_s, picoseconds(tier.latency_s))
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
