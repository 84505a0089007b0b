"""Explain in one line why a model does not fit: the missing memory, the limit, and the smallest changes that fit."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from capacity.base.errors import InvalidInput
from capacity.model.quantization import bits_per_weight, scheme_for
from capacity.pool.memory import GIB, MemoryPlan, memory_plan
from capacity.pool.offload import UNIFIED_MEMORY
from capacity.pool.parallelism import largest_tensor_parallel_size, tensor_parallel_sizes
from capacity.pool.settings import PoolSettings
from capacity.pool.weights import stage_weights

NARROWER_FORMATS = ("fp8", "int4")  # tried in this order
HIGHEST_UTILIZATION = 0.97  # fraction of GPU memory; the driver and other processes need the rest
MIN_BATCHED_TOKENS = 512
USEFUL_CONTEXT = 1024  # tokens; changes that leave fewer are rejected
MAX_STAGES = 8
MAX_FREE_CHANGES = 3  # number of changes without cost that are listed

Change = Mapping[str, object]  # pool fields with new values
ApplyChange = Callable[[Change], PoolSettings]
"""Function that returns the settings with changed `Pool` fields and new defaults. Raises InvalidInput."""


def explain_shortfall(settings: PoolSettings, plan: MemoryPlan, changed: ApplyChange) -> str:
    """Return the reason why a plan does not fit, with the changes that make it fit."""
    if settings.pool.num_gpu_blocks_override is not None and plan.kv_cache_bytes >= 0:
        shorter = f", or use --max-model-len {plan.max_context_tokens}" if plan.max_context_tokens else ""
        return (
            f"--num-gpu-blocks-override {plan.kv_capacity_blocks} is too small for one request of "
            f"{settings.max_model_len:,} tokens: it needs {plan.blocks_of_longest_request:,} blocks, and the "
            f"engine reserves one. Raise it{shorter}."
        )
    ways = suggest_changes(settings, plan, changed)
    return f"{shortfall(settings, plan)} {_describe_changes(ways, settings)}"


def shortfall(settings: PoolSettings, plan: MemoryPlan) -> str:
    """Return a description of the missing memory, without suggested changes."""
    stored = f"{settings.model.name} ({settings.scheme.name})"
    if plan.kv_cache_bytes >= 0 and plan.states is not None and plan.states.requests < 1:
        return (
            f"{stored} leaves {_gib(plan.kv_cache_bytes)} per GPU for KV and recurrent states on "
            f"{settings.profile.name}, including {_gib(plan.states.used_bytes)} for states; one request needs "
            f"{_gib(plan.states.states_per_request * plan.states.slot_bytes)} of states."
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
        text += f", and --kv-cache-memory-bytes requests {_gib(settings.pool.kv_cache_memory_bytes)}"
    return f"{text}: {_gib(-plan.kv_cache_bytes)} too little."


@dataclass(frozen=True, slots=True)
class ChangeTester:
    """Tests with the memory plan whether changes of `Pool` fields make the model fit."""

    changed: ApplyChange

    def plan(self, change: Change) -> MemoryPlan | None:
        """Return the memory plan with this change; None if the change is invalid."""
        try:
            return memory_plan(self.changed(change))
        except InvalidInput:
            return None

    def first_that_fits(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the first change with which the model fits, if any."""
        tried = ((change, self.plan(change)) for change in changes)
        yield from islice((change for change, plan in tried if plan is not None and plan.fits), 1)

    def first_shorter(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the first change that leaves a useful context length, with `max_model_len` set to that length."""
        for change in changes:
            plan = self.plan(change)
            if plan is not None and plan.max_context_tokens >= USEFUL_CONTEXT:
                yield {**change, "max_model_len": plan.max_context_tokens}
                return


def suggest_changes(settings: PoolSettings, plan: MemoryPlan, changed: ApplyChange) -> tuple[Change, ...]:
    """Return the smallest change of each type that makes the model fit: free ones, smaller formats, more GPUs."""
    attempts, utilizations = ChangeTester(changed), list[Change]()
    if settings.pool.kv_cache_memory_bytes is None:
        now, most = round(100 * settings.gpu_memory_utilization), round(100 * HIGHEST_UTILIZATION)
        utilizations += ({"gpu_memory_utilization": share / 100} for share in range(now + 1, most + 1))
    least_tokens = MIN_BATCHED_TOKENS if settings.chunked_prefill else settings.max_model_len
    budgets = _smaller_powers("max_num_batched_tokens", settings.max_num_batched_tokens, least_tokens)
    seqs = _smaller_powers("max_num_seqs", settings.max_num_seqs, 1)
    both: list[Change] = [{**u, **tokens} for tokens, u in product(budgets, utilizations[-1:])]
    # all remaining memory if --kv-cache-memory-bytes requests more
    asked = settings.pool.kv_cache_memory_bytes
    left = 0 if asked is None or plan.kv_cache_bytes >= 0 else asked + plan.kv_cache_bytes
    free = [
        *attempts.first_that_fits([{"kv_cache_memory_bytes": left}] if left > 0 else []),
        *attempts.first_shorter([{}]),
        *attempts.first_that_fits(utilizations),
        *attempts.first_that_fits(budgets),
        *attempts.first_that_fits(seqs),
    ]
    ways = (
        free[:MAX_FREE_CHANGES]
        or [*attempts.first_that_fits(both)]
        or [*attempts.first_shorter([*utilizations, *budgets, *both])]
    )
    narrower: list[Change] = [{"quantization": name} for name in _narrower_formats(settings)]
    ways += [*attempts.first_that_fits(narrower)] or [*attempts.first_shorter(narrower)]
    if plan.kv_cache_bytes >= 0 and settings.kv_cache_dtype == "auto":
        ways += attempts.first_that_fits([{"kv_cache_dtype": "fp8"}])
    stages = range(settings.pool.pipeline_parallel_size + 1, MAX_STAGES + 1)
    ways += attempts.first_that_fits({"tensor_parallel_size": size} for size in _larger_sizes(settings))
    ways += attempts.first_that_fits({"pipeline_parallel_size": count} for count in stages)
    ways += attempts.first_that_fits(_host_memory(settings, plan))
    return tuple(ways or _combined_changes(settings, attempts))


def _combined_changes(settings: PoolSettings, attempts: ChangeTester) -> Iterator[Change]:
    """Yield combined changes with which the model fits: more GPUs and smaller weights, stages or shorter requests."""
    sizes: list[Change] = [{"tensor_parallel_size": size} for size in _larger_sizes(settings)]
    stages = range(settings.pool.pipeline_parallel_size + 1, MAX_STAGES + 1)
    yield from attempts.first_that_fits(
        {"quantization": name, **size} for size in sizes for name in _narrower_formats(settings)
    )
    yield from attempts.first_that_fits(
        {**size, "pipeline_parallel_size": count} for count in stages for size in reversed(sizes)
    )
    # shorter prompts need less memory in an unchunked prefill step
    lengths = _smaller_powers("max_model_len", settings.max_model_len, USEFUL_CONTEXT)
    yield from attempts.first_that_fits({**size, **length} for size in ({}, *sizes) for length in lengths)


def _describe_changes(ways: tuple[Change, ...], settings: PoolSettings) -> str:
    """Return a sentence with the changes as flags; without changes, that no tested change is enough."""
    if ways:
        return f"Use {', or '.join(map(_flags, ways))}."
    most = 2 * largest_tensor_parallel_size(settings.profile)
    return (
        f"No tested change makes the model fit, alone or combined: tensor parallelism up to {most}, {MAX_STAGES} "
        f"pipeline stages, {' or '.join(NARROWER_FORMATS)} weights, shorter requests. Use GPUs with more memory, "
        "or a smaller model."
    )


def _smaller_powers(name: str, now: int, least: int) -> list[Change]:
    """Return changes of field `name` to each power of two below the value `now`, from the largest to `least`."""
    powers = (1 << bits for bits in reversed(range(max(now - 1, 0).bit_length())))
    return [{name: power} for power in powers if power >= least]


def _narrower_formats(settings: PoolSettings) -> list[str]:
    """Return the weight formats with at least 10 % fewer bits per weight than the current ones."""
    bits = bits_per_weight(settings.model, settings.scheme)
    formats = {name: scheme_for(settings.model, name) for name in NARROWER_FORMATS}
    return [name for name, stored in formats.items() if bits_per_weight(settings.model, stored) < 0.9 * bits]


def _host_memory(settings: PoolSettings, plan: MemoryPlan) -> Iterator[Change]:
    """Yield changes that keep more of the model, up to half, in host memory: slow, but without additional GPUs."""
    pool, layers = settings.pool, settings.model.num_layers
    if settings.profile.platform in UNIFIED_MEMORY or pool.pipeline_parallel_size > 1:
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
    """Return larger TP sizes that fit in one scale-up domain or node, or that fill exactly two of them."""
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
