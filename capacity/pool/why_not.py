"""Why a model does not fit, in one line: thing, need, limit, and the smallest changes that do, each of them tried."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from capacity.base.errors import InvalidInput
from capacity.model.quantization import bits_per_weight, scheme_for
from capacity.pool.memory import GIB, MemoryPlan, memory_plan
from capacity.pool.offload import ONE_MEMORY
from capacity.pool.parallelism import largest_tensor_parallel_size, tensor_parallel_sizes
from capacity.pool.settings import PoolSettings
from capacity.pool.weights import stage_weights

NARROWER_FORMATS = ("fp8", "int4")  # tried in this order
HIGHEST_UTILIZATION = 0.97  # of GPU memory: beyond it the driver and other processes want their own
FEWEST_BATCHED_TOKENS = 512
USEFUL_CONTEXT = 1024  # tokens: a change that leaves less is none
MOST_STAGES = 8
MOST_FREE = 3  # ways out that cost nothing

Change = Mapping[str, object]  # fields of the pool, with other values
Changed = Callable[[Change], PoolSettings]
"""The same pool with other fields and its defaults filled in anew. Raises InvalidInput for what cannot be."""


def why_not(settings: PoolSettings, plan: MemoryPlan, changed: Changed) -> str:
    """The reason of a plan that does not fit, and the ways out of it."""
    if settings.pool.num_gpu_blocks_override is not None and plan.kv_cache_bytes >= 0:
        shorter = f", or use --max-model-len {plan.max_context_tokens}" if plan.max_context_tokens else ""
        return (
            f"--num-gpu-blocks-override {plan.kv_capacity_blocks} holds no request of {settings.max_model_len:,} "
            f"tokens: it needs {plan.blocks_of_longest_request:,} blocks, and one is kept free. Raise it{shorter}."
        )
    ways = ways_out(settings, plan, changed)
    return f"{shortfall(settings, plan)} {_in_words(ways, settings)}"


def shortfall(settings: PoolSettings, plan: MemoryPlan) -> str:
    """What is missing, without a way out."""
    stored = f"{settings.model.name} ({settings.scheme.name})"
    if plan.kv_cache_bytes >= 0 and plan.states is not None and plan.states.requests < 1:
        return (
            f"{stored} leaves {_gib(plan.kv_cache_bytes)} per GPU for KV and recurrent states on "
            f"{settings.profile.name}, {_gib(plan.states.used_bytes)} of it for states; "
            f"one request takes {_gib(plan.states.states_per_request * plan.states.slot_bytes)} of them."
        )
    if plan.kv_cache_bytes >= 0:
        request_bytes = plan.blocks_of_longest_request * plan.kv_block_bytes
        return (
            f"{stored} leaves {_gib(plan.kv_cache_bytes)} per GPU for the KV cache on {settings.profile.name}; "
            f"one request of {settings.max_model_len:,} tokens needs {_gib(request_bytes)}."
        )
    text = (
        f"{stored} needs {_gib(plan.weights_bytes)} of weights and "
        f"{_gib(plan.activations_bytes + plan.overhead_bytes)} of activations and overhead per GPU; "
        f"{settings.profile.name} has {_gib(plan.usable_bytes)} usable"
    )
    if settings.pool.kv_cache_memory_bytes is not None:
        text += f", and --kv-cache-memory-bytes asks for {_gib(settings.pool.kv_cache_memory_bytes)}"
    return f"{text}: {_gib(-plan.kv_cache_bytes)} too little."


@dataclass(frozen=True, slots=True)
class Attempts:
    """Changes, asked of the memory plan itself."""

    changed: Changed

    def plan(self, change: Change) -> MemoryPlan | None:
        """Memory with this change; None where it cannot be."""
        try:
            return memory_plan(self.changed(change))
        except InvalidInput:
            return None

    def first(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The first of these that fits, if any does."""
        tried = ((change, self.plan(change)) for change in changes)
        yield from islice((change for change, plan in tried if plan is not None and plan.fits), 1)

    def first_shorter(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The first of these that leaves room for a context of some use, with the longest that then fits."""
        for change in changes:
            plan = self.plan(change)
            if plan is not None and plan.max_context_tokens >= USEFUL_CONTEXT:
                yield {**change, "max_model_len": plan.max_context_tokens}
                return


def ways_out(settings: PoolSettings, plan: MemoryPlan, changed: Changed) -> tuple[Change, ...]:
    """Of each kind the smallest change that fits: what costs nothing first, then narrower weights, then more GPUs."""
    attempts, utilizations = Attempts(changed), _utilizations(settings)
    least_tokens = FEWEST_BATCHED_TOKENS if settings.chunked_prefill else settings.max_model_len
    budgets = _halves("max_num_batched_tokens", settings.max_num_batched_tokens, least_tokens)
    seqs = _halves("max_num_seqs", settings.max_num_seqs, 1)
    both: list[Change] = [{**u, **tokens} for tokens, u in product(budgets, utilizations[-1:])]
    # all of the memory that is there, where more was asked for the KV cache by name
    asked = settings.pool.kv_cache_memory_bytes
    left = 0 if asked is None or plan.kv_cache_bytes >= 0 else asked + plan.kv_cache_bytes
    free = [
        *attempts.first([{"kv_cache_memory_bytes": left}] if left > 0 else []),
        *attempts.first_shorter([{}]),
        *attempts.first(utilizations),
        *attempts.first(budgets),
        *attempts.first(seqs),
    ]
    ways = (
        free[:MOST_FREE]
        or [*attempts.first(both)]
        or [*attempts.first_shorter([*utilizations, *budgets, *both])]
    )
    narrower: list[Change] = [{"quantization": name} for name in _narrower(settings)]
    ways += [*attempts.first(narrower)] or [*attempts.first_shorter(narrower)]
    if plan.kv_cache_bytes >= 0 and settings.kv_cache_dtype == "auto":
        ways += attempts.first([{"kv_cache_dtype": "fp8"}])
    stages = range(settings.pool.pipeline_parallel_size + 1, MOST_STAGES + 1)
    ways += attempts.first({"tensor_parallel_size": size} for size in _larger_sizes(settings))
    ways += attempts.first({"pipeline_parallel_size": count} for count in stages)
    ways += attempts.first(_host_memory(settings, plan))
    return tuple(ways or _two_at_once(settings, attempts))


def _two_at_once(settings: PoolSettings, attempts: Attempts) -> Iterator[Change]:
    """Where nothing helps alone: more GPUs with narrower weights, with more stages, or with shorter requests."""
    sizes: list[Change] = [{"tensor_parallel_size": size} for size in _larger_sizes(settings)]
    stages = range(settings.pool.pipeline_parallel_size + 1, MOST_STAGES + 1)
    yield from attempts.first(
        {"quantization": name, **size} for size in sizes for name in _narrower(settings)
    )
    yield from attempts.first(
        {**size, "pipeline_parallel_size": count} for count in stages for size in reversed(sizes)
    )
    # what a whole prompt takes in one step is less then
    lengths = _halves("max_model_len", settings.max_model_len, USEFUL_CONTEXT)
    yield from attempts.first({**size, **length} for size in ({}, *sizes) for length in lengths)


def _in_words(ways: tuple[Change, ...], settings: PoolSettings) -> str:
    """The ways out as flags, or that there is none."""
    if ways:
        return f"Use {', or '.join(map(_flags, ways))}."
    most = 2 * largest_tensor_parallel_size(settings.profile)
    return (
        f"Nothing that was tried fits, alone and two at once: tensor parallelism up to {most}, {MOST_STAGES} pipeline "
        f"stages, {' or '.join(NARROWER_FORMATS)} weights, shorter requests; use GPUs with more memory, or a smaller "
        "model."
    )


def _utilizations(settings: PoolSettings) -> list[Change]:
    """Larger shares of the memory, ascending."""
    if settings.pool.kv_cache_memory_bytes is not None:
        return []
    now, most = round(100 * settings.gpu_memory_utilization), round(100 * HIGHEST_UTILIZATION)
    return [{"gpu_memory_utilization": share / 100} for share in range(now + 1, most + 1)]


def _halves(name: str, now: int, least: int) -> list[Change]:
    """A field at the powers of two below `now`, from the largest down to `least`."""
    powers = (1 << bits for bits in reversed(range(max(now - 1, 0).bit_length())))
    return [{name: power} for power in powers if power >= least]


def _narrower(settings: PoolSettings) -> list[str]:
    """Formats that take clearly fewer bytes than the weights do."""
    bits = bits_per_weight(settings.model, settings.scheme)
    formats = {name: scheme_for(settings.model, name) for name in NARROWER_FORMATS}
    return [name for name, stored in formats.items() if bits_per_weight(settings.model, stored) < 0.9 * bits]


def _host_memory(settings: PoolSettings, plan: MemoryPlan) -> Iterator[Change]:
    """More and more of the model in host memory, up to half, where the engine can: slow, without another GPU."""
    pool, layers = settings.pool, settings.model.num_layers
    if settings.profile.platform in ONE_MEMORY or pool.pipeline_parallel_size > 1:
        return
    if settings.engine.host_memory == "weights":
        lacking = plan.blocks_of_longest_request * plan.kv_block_bytes - plan.kv_cache_bytes
        least = pool.cpu_offload_gb + math.ceil(lacking / GIB)
        most = stage_weights(settings, 0) / 2 / GIB
        yield from ({"cpu_offload_gb": f"{gib:g}"} for gib in (least, least + 1) if gib <= most)
    elif settings.engine.host_memory == "layers":
        on_gpu = layers if pool.n_gpu_layers is None else min(pool.n_gpu_layers, layers)
        yield from (
            {"n_gpu_layers": fewer} for fewer in range(on_gpu - 1, layers // 2 - 1, -max(layers // 40, 1))
        )


def _larger_sizes(settings: PoolSettings) -> tuple[int, ...]:
    """Tensor-parallel sizes beyond the pool's: within the domain or node, and over two of them."""
    most = largest_tensor_parallel_size(settings.profile)
    sizes = tensor_parallel_sizes(settings.model, 2 * most)
    return tuple(
        size
        for size in sizes
        if size > settings.pool.tensor_parallel_size and (size <= most or size == 2 * most)
    )


def _flags(change: Change) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"
