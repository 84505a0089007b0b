"""Memory plan of one GPU by vLLM's own accounting: whether the model fits, and the size of the KV cache.

    requested = ceil(total x gpu_memory_utilization)
    KV cache  = requested - weights - activation peak - non-torch [- CUDA-graph estimate]
    blocks    = KV cache // bytes of one block, the fewest over all GPUs; one of them is the null block

`kv_capacity_tokens` is the number in the engine's log. `kv_layout` computes the block layout, `weights` the weights.
Source: vLLM 0.33.0, v1/worker/gpu_worker.py, 2026-11; `capacity/deployment/engines/*.toml` has the constants.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.base.record import make_from
from capacity.pool.activations import activation_bytes, graph_bytes
from capacity.pool.kv_layout import (
    KvLayout,
    StatePool,
    has_state_pool,
    kv_layout,
    max_concurrency,
    state_pool,
)
from capacity.pool.offload import all_on_cpu, cpu_layers, gpu_layers, gpu_weights, host_settings
from capacity.pool.parallelism import check_parallelism
from capacity.pool.settings import PoolSettings
from capacity.pool.weights import pipeline_layers, stage_weights
from capacity.step.layers.adapters import FACTOR_BYTES, packed_layers

GIB = 2**30
MIB = 2**20
TOWER_BYTES_PER_PARAMETER = 2.0
NULL_BLOCKS = 1  # per pool: vLLM's placeholder, included in the log's figure but never allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemory:
    """Bytes on one GPU of a pipeline stage, without the KV cache.

    `overhead_bytes` includes CUDA graphs if the engine subtracts them from the KV cache.
    """

    weights_bytes: int
    activations_bytes: int
    nontorch_bytes: int
    graph_bytes: int
    overhead_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that a GPU needs before it has any KV cache."""
        return self.weights_bytes + self.activations_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(StaticMemory):
    """Memory of the fullest GPU of one data-parallel rank, in bytes, and the capacity of its KV cache.

    usable = weights + activations + overhead + KV cache. `kv_capacity_blocks` includes the null block, as in the
    engine's log, and is the same on every stage. `blocks_of_longest_request`: blocks of a request of `max_model_len`
    tokens on the stage that needs most. `max_concurrency`: number of such requests that fit, below 1 if none fits.
    `max_context_tokens`: length of the longest request that fits alone, at most `max_model_len`. `reason`: why the
    model does not fit, with possible changes.
    """

    total_bytes: int
    usable_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    kv_window_bytes_per_token: int
    linear_state_bytes_per_request: int
    kv_capacity_blocks: int
    blocks_of_longest_request: int
    max_context_tokens: int
    max_concurrency: float
    layout: KvLayout  # on the GPU with the fewest blocks
    states: StatePool | None  # on the GPU with the fewest; None: no states, or they share the KV blocks
    fits: bool
    reason: str | None
    warnings: tuple[str, ...]

    @property
    def usable_blocks(self) -> int:
        """Return the KV blocks that requests can use."""
        return self.kv_capacity_blocks - NULL_BLOCKS

    @property
    def kv_capacity_tokens(self) -> int:
        """Return the KV cache size that the engine logs, in tokens."""
        return self.layout.capacity_tokens(self.kv_capacity_blocks)

    @property
    def kv_block_tokens(self) -> int:
        return self.layout.block_tokens

    @property
    def kv_block_bytes(self) -> int:
        return self.layout.block_bytes

    def require_fit(self) -> "MemoryPlan":
        """Return this plan. Raises DoesNotFit with the reason if the model does not fit."""
        if not self.fits:
            raise DoesNotFit(
                self.reason or "does not fit", needed_bytes=self.needed_bytes, usable_bytes=self.usable_bytes
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one GPU of a pipeline stage: static memory (`held`), usable memory, KV cache and recurrent states."""

    held: StaticMemory
    usable_bytes: int
    kv_cache_bytes: int  # includes states that have separate memory
    layout: KvLayout
    states: StatePool | None

    @property
    def blocks(self) -> int:
        states = 0 if self.states is None else self.states.used_bytes
        return max(self.kv_cache_bytes - states, 0) // self.layout.block_bytes


def memory_plan(settings: PoolSettings, held: Sequence[StaticMemory] | None = None) -> MemoryPlan:
    """Return the memory plan of one engine: whether the model fits, and its KV cache.

    `held`: static memory of each stage's GPUs, for example from a log; None: computed. Data-parallel ranks of an MoE
    model share the experts and replicate everything else; ranks of a dense model are replicas. Raises InvalidInput for
    invalid parallelism (TP that does not divide heads, PP above the number of layers) and for limits that the engine
    rejects. Does not raise if the model does not fit (`require_fit` does); `shortfall` writes the reason.
    """
    check_parallelism(settings)
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise InvalidInput(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens} is less than --max-num-seqs "
            f"{settings.max_num_seqs}; raise the first or lower the second"
        )
    if all_on_cpu(settings):
        return memory_plan(host_settings(settings), held)
    model, dtype = settings.model, settings.kv_cache_dtype
    stages = stage_memories(settings, held)
    fullest = min(stages, key=lambda stage: stage.kv_cache_bytes)
    holders = (*stages, *_host_memory(settings))
    scarcest = min(holders, key=lambda each: each.blocks)
    needed = max(stage.layout.blocks_of_request(settings.max_model_len) for stage in stages)
    blocks = _kv_blocks(settings, scarcest.blocks, needed)
    free = max(blocks - NULL_BLOCKS, 0)
    states = fewest_states(stages)
    has_state = states is None or states.requests >= 1
    return make_from(
        MemoryPlan,
        fullest.held,
        total_bytes=settings.profile.memory_engine_bytes,
        usable_bytes=fullest.usable_bytes,
        kv_cache_bytes=fullest.kv_cache_bytes,
        kv_bytes_per_token=round(model.kv_bytes_per_token(dtype)),
        kv_window_bytes_per_token=round(model.window_kv_bytes_per_token(dtype)),
        linear_state_bytes_per_request=round(model.state_bytes_per_sequence()),
        kv_capacity_blocks=blocks,
        blocks_of_longest_request=needed,
        max_context_tokens=min(stage.layout.longest_request(free, settings.max_model_len) for stage in stages)
        if has_state
        else 0,
        max_concurrency=max_concurrency(scarcest.layout, states, blocks, settings.max_model_len, needed),
        layout=scarcest.layout,
        states=states,
        fits=min(each.kv_cache_bytes for each in holders) >= 0 and needed <= free and has_state,
        reason=None,
        warnings=_warnings(settings),
    )


def _kv_blocks(settings: PoolSettings, in_memory: int, needed: int) -> int:
    """Return the number of KV blocks: the override, or those that fit (`in_memory`), but no more than needed."""
    if settings.pool.num_gpu_blocks_override is not None:
        return settings.pool.num_gpu_blocks_override
    if settings.model.has_no_cache:  # `needed` blocks for each request are enough
        return min(in_memory, settings.max_num_seqs * needed + NULL_BLOCKS)
    return in_memory


def _warnings(settings: PoolSettings) -> tuple[str, ...]:
    profile, ranks = settings.profile, settings.pool.tensor_parallel_size
    if ranks <= profile.scale_up.domain_gpus:
        return ()
    link = profile.link_for(ranks)
    place = "node" if ranks > profile.gpus_per_node else f"{profile.scale_up.kind} domain"
    return (
        f"tensor parallelism of {ranks} exceeds the {place}, so its collectives use {link.kind} at "
        f"{link.bytes_per_s / 1e9:.0f} GB/s per direction",
    )


def stage_memories(
    settings: PoolSettings, held: Sequence[StaticMemory] | None = None
) -> tuple[StageMemory, ...]:
    """Return the memory of one GPU of each pipeline stage, first to last."""
    stages = pipeline_layers(settings.model.num_layers, settings.pool.pipeline_parallel_size)
    return tuple(
        _stage_memory(settings, static_memory(settings, stage) if held is None else held[stage], layers)
        for stage, layers in enumerate(stages)
    )


def fewest_states(stages: Iterable[StageMemory]) -> StatePool | None:
    """Return the stage's state pool that holds the fewest requests, which limits concurrency; None if none has one."""
    pools = [stage.states for stage in stages if stage.states is not None]
    return min(pools, key=lambda each: each.requests, default=None)


def limiting_states(settings: PoolSettings) -> StatePool | None:
    """Return the state pool that limits concurrent requests; None: the engine has none. Raises InvalidInput."""
    if not has_state_pool(settings):
        return None
    check_parallelism(settings)
    return fewest_states(stage_memories(settings))


def _host_memory(settings: PoolSettings) -> tuple[StageMemory, ...]:
    """Return the host memory (weights and KV) of the layers that the CPU computes; empty if it computes none."""
    on_cpu = cpu_layers(settings)
    if not on_cpu or settings.host_cpu is None:
        return ()
    of_gpu = round(stage_weights(settings, 0) - gpu_weights(settings, 0))
    weights = of_gpu * settings.pool.tensor_parallel_size
    held = StaticMemory(
        weights_bytes=weights, activations_bytes=0, nontorch_bytes=0, graph_bytes=0, overhead_bytes=0
    )
    return (_stage_memory(host_settings(settings), held, range(on_cpu)),)


def static_memory(settings: PoolSettings, stage: int) -> StaticMemory:
    """Return the memory of one GPU of pipeline stage `stage` without KV cache; only the last stage samples."""
    pool, engine = settings.pool, settings.engine
    graphs, nontorch = round(graph_bytes(settings)), nontorch_bytes(settings)
    if engine.memory_rule == "sglang_static":
        activations, overhead = _sglang_reserve(settings, nontorch), nontorch
    else:
        activations = activation_bytes(settings, samples=stage == pool.pipeline_parallel_size - 1)
        overhead = nontorch + (graphs if engine.graphs_in_budget else 0)
    adjustment = settings.profile.adjustment
    measured_bytes = 0 if adjustment is None else adjustment.overhead_bytes
    return StaticMemory(
        weights_bytes=_weights_bytes(settings, stage),
        activations_bytes=max(activations + measured_bytes, 0),
        nontorch_bytes=nontorch,
        graph_bytes=graphs,
        overhead_bytes=overhead,
    )


def nontorch_bytes(settings: PoolSettings) -> int:
    """Return the bytes of CUDA context, NCCL buffers and workspaces on one GPU.

    NCCL allocates most where an NVSwitch performs reductions (NVLS): on Hopper and later GPUs with NVLink, but not
    between pipeline stages, which only send and receive.
    """
    pool, engine, profile = settings.pool, settings.engine, settings.profile
    ranks = pool.tensor_parallel_size * pool.pipeline_parallel_size * settings.lockstep_ranks
    if ranks == 1:
        return engine.nontorch_bytes_tp1
    reduces = pool.tensor_parallel_size * settings.lockstep_ranks > 1
    nvlink = profile.link_for(pool.tensor_parallel_size).kind == "nvlink"
    nvls = reduces and nvlink and profile.architecture != "ampere"
    without = engine.nontorch_bytes_tpn_without_nvls
    return engine.nontorch_bytes_tpn if nvls or without is None else without


def _stage_memory(settings: PoolSettings, held: StaticMemory, layers: range) -> StageMemory:
    pool = settings.pool
    usable = _usable_bytes(settings, held.needed_bytes)
    kv_cache = usable - held.needed_bytes
    if pool.kv_cache_memory_bytes is not None and kv_cache < pool.kv_cache_memory_bytes:
        kv_cache -= pool.kv_cache_memory_bytes  # negative: shortfall from --kv-cache-memory-bytes
    here = gpu_layers(settings, layers)
    layout, states = kv_layout(settings, here), state_pool(settings, here, kv_cache)
    return StageMemory(held=held, usable_bytes=usable, kv_cache_bytes=kv_cache, layout=layout, states=states)


def _weights_bytes(settings: PoolSettings, stage: int) -> int:
    """Return the bytes on each GPU of weights, rotary tables, and the LoRA slots that vLLM allocates at start."""
    tables = settings.model.rotary_values * settings.engine.rotary_value_bytes
    slots = settings.pool.max_loras or 0
    own = round(gpu_weights(settings, stage) + tower_bytes(settings))
    return own + tables + (slots * adapter_bytes(settings, stage) if slots else 0)


def tower_bytes(settings: PoolSettings) -> float:
    """Return the bytes on each GPU of the weights of vision and audio encoders ("towers").

    Engines load towers even if no request has images, with 16 bits even in quantized checkpoints. Tensor parallelism
    divides them, and every pipeline stage has a copy. Including the tower and its rotary tables, a GPU of gemma-3-27b
    at TP 4 has 13.05 GiB of weights; vLLM 0.8 logged 13.17 GiB. Source: github.com/vllm-project/vllm/issues/15676 and
    16378, 2025.
    """
    return TOWER_BYTES_PER_PARAMETER * settings.model.tower_params / settings.pool.tensor_parallel_size


def adapter_bytes(settings: PoolSettings, stage: int | None = None) -> int:
    """Return the bytes of one LoRA adapter on one GPU of `stage`; None: bytes of the whole adapter, as stored.

    The bytes are those of rank x (inputs + outputs) values, summed over all linear layers except experts.
    """
    model, pool = settings.model, settings.pool
    stages = pipeline_layers(model.num_layers, 1 if stage is None else pool.pipeline_parallel_size)
    layers = set(stages[stage or 0])
    values = sum(
        len(layers.intersection(pack.layers)) * pack.factor_values
        for pack in packed_layers(model, 1 if stage is None else pool.tensor_parallel_size)
    )
    return round(pool.max_lora_rank * values * FACTOR_BYTES)


def _usable_bytes(settings: PoolSettings, held: int) -> int:
    """Return the bytes that weights, activations, overhead and KV cache may use together under the engine's rule."""
    total = settings.profile.memory_engine_bytes
    if settings.pool.kv_cache_memory_bytes is not None:
        return min(held + settings.pool.kv_cache_memory_bytes, total)
    match settings.engine.memory_rule:
        case "fraction_of_total":
            return math.ceil(total * settings.gpu_memory_utilization)
        case "fraction_of_free":
            free = total - held
            return held + math.floor(free * settings.gpu_memory_utilization) if free > 0 else total
        case "sglang_static":
            return total


def _sglang_reserve(settings: PoolSettings, nontorch: int) -> int:
    """Return the bytes that SGLang reserves for activations and graphs.

    This is the memory that is free before loading times (1 - static fraction). Source: SGLang model_runner.py,
    profile_max_num_token: rest = available - total available before * (1 - fraction).
    """
    free = settings.profile.memory_engine_bytes - nontorch
    return free - math.floor(free * memory_fraction(settings))


def memory_fraction(settings: PoolSettings) -> float:
    """Return the value of the engine's memory fraction flag: the pool's value, or the engine's default."""
    if settings.engine.memory_rule == "sglang_static":
        return settings.pool.gpu_memory_utilization or sglang_static_fraction(settings)
    return settings.gpu_memory_utilization


def sglang_static_fraction(settings: PoolSettings) -> float:
    """Return SGLang's default --mem-fraction-static: the fraction of memory for weights and KV cache.

    reserved MiB = 512 + 1.5 max(chunk, 2048) + tp·pp/8·1024 + graphs, and at least 10 GiB on GPUs with more than 60
    GiB, plus a reserve for drafts in older releases. Graphs take 2 MiB for each request of the largest decode batch.
    With DP attention, chunk and tp are totals over all ranks, and 3 MiB are added for each request of the largest
    decode batch on each rank (4.5 MiB if this batch is above 300, in later releases). Prefill graphs take 8 MiB for
    each size, or 1.5 GiB for models with latents. For models with a vision tower, the result is multiplied by 0.76 to
    1; larger towers have smaller factors. Source: SGLang 0.5.4 to 0.5.23, `handle_gpu_memory_settings`,
    `reserve_for_graph_mb` and `adjust_mem_fraction_for_vlm`, 2026-11.
    """
    profile, pool, engine, ranks = settings.profile, settings.pool, settings.engine, settings.lockstep_ranks
    total_mib = profile.memory_engine_bytes / MIB
    limits = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    graph_batch = limits.largest_graph(pool.tensor_parallel_size * ranks) or 0
    chunk_tokens = settings.max_num_batched_tokens * ranks
    gpus = pool.tensor_parallel_size * ranks * pool.pipeline_parallel_size
    reserved_mib = 512 + 1.5 * max(chunk_tokens, 2048) + gpus / 8 * 1024 + 2 * graph_batch
    if ranks > 1:
        large = engine.large_graph_reserve and graph_batch > 300
        reserved_mib += graph_batch * ranks * (4.5 if large else 3.0)
    reserved_mib += _prefill_graph_mib(settings)
    if total_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    if pool.speculator is not None:
        reserved_mib += engine.draft_reserve_bytes.get(pool.speculator, 0) / MIB
    fraction = round(max(total_mib - reserved_mib, 0) / total_mib, 3)
    return fraction * _tower_factor(settings)


def _prefill_graph_mib(settings: PoolSettings) -> float:
    """Return the MiB that SGLang reserves for CUDA graphs of prefill steps; 0 for deployments without such graphs."""
    pool, model = settings.pool, settings.model
    captures = settings.engine.prefill_graph_reserve and settings.profile.platform == "cuda"
    if pool.speculator is not None and settings.engine.draft_reserve_bytes:
        captures = False
    if not captures or settings.lockstep_ranks * pool.pipeline_parallel_size > 1 or model.towers:
        return 0.0
    if model.caches_latents:
        return 1.5 * 1024
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, None, 512))
    most = settings.max_num_batched_tokens
    return 8.0 * sum(len(range(first, min(last or most, most) + 1, step)) for first, last, step in steps)


def _tower_factor(settings: PoolSettings) -> float:
    """Return the factor on SGLang's static fraction for models with a vision tower; 1 for others."""
    tower = settings.model.vision
    if tower is None:
        return 1.0
    size = tower.num_layers * tower.hidden_size**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (size - 1.0)))
