"""Checks that an engine supports an accelerator, weight format and 16-bit type; errors name an alternative."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.base.platforms import TITLES
from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec, engine_names, find_engine
from capacity.deployment.flag_table import is_set
from capacity.hardware import HardwareProfile
from capacity.hardware.attention_kernels import find_attention_kernel
from capacity.model import Attention, ModelSpec
from capacity.model.quantization import find_format, find_kv_cache_format, uniform_scheme
from capacity.pool.kv_eviction import map_attention
from capacity.pool.settings import PoolSettings

WITHOUT_CACHE = ("hf-transformers",)  # generate(use_cache=False)
DTYPES: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
}


def check_settings(pool: Pool, engine: EngineSpec) -> None:
    """Raise InvalidInput for a pool setting that the engine does not support; the message names an alternative."""
    asked = (name for name in engine.lacks if getattr(pool, name) is not False and is_set(dict(pool), name))
    if (name := next(asked, None)) is None:
        return
    value = getattr(pool, name)
    flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
    ways = [engine.lacks[name], _engines_supporting(lambda other: name not in other.lacks)]
    raise InvalidInput(
        f"{flag}: {engine.label} has no such setting; use {', or '.join(filter(None, ways))}, or leave it out"
    )


def loaded_model(model: ModelSpec, pool: Pool) -> ModelSpec:
    """Return the model as the pool loads it.

    The pool may omit vision and audio encoders, or set the format of indexer keys. Raises InvalidInput if the model has
    no such part.
    """
    model = _with_index_dtype(model, pool)
    if not pool.language_model_only:
        return model
    if not (model.tower_params or model.uncounted):
        raise InvalidInput(f"--language-model-only: {model.name} has no towers; leave the flag out")
    return model.without_towers


def _with_index_dtype(model: ModelSpec, pool: Pool) -> ModelSpec:
    if pool.indexer_kv_dtype == "auto":
        return model
    indexed = [g for g in model.layer_groups if isinstance(g.mixer, Attention) and g.mixer.index_key_bytes]
    if not indexed:
        raise InvalidInput(
            f"--indexer-kv-dtype {pool.indexer_kv_dtype}: {model.name} has no block indexer; leave it out"
        )
    if pool.indexer_kv_dtype == "bf16":
        return model
    return map_attention(model, lambda mixer: replace(mixer, index_key_bytes=mixer.index_key_bytes // 2))


def apply_dtype(model: ModelSpec, dtype: str, profile: HardwareProfile) -> ModelSpec:
    """Return the model as `--dtype` loads it; `auto` selects FP16 instead of BF16 on GPUs without BF16, as engines do.

    Source: vLLM config/model.py, _resolve_auto_dtype. Raises InvalidInput if BF16 is requested on such a GPU.
    """
    if profile.compute_type_16_bit == "fp16":
        if dtype == "bfloat16":
            raise InvalidInput(
                f"--dtype bfloat16: {profile.name} has no BF16 tensor cores (NVIDIA GPUs have them from compute "
                f"capability 8.0, this one has {profile.compute_capability}); use --dtype half, or another --gpu"
            )
        if dtype == "auto" and model.dtype == "bf16":
            note = f"{profile.name} has no BF16, so 16-bit weights, activations and KV use FP16"
            return replace(_in_dtype(model, "half"), notes=(*model.notes, note))
    return _in_dtype(model, dtype)


def _in_dtype(model: ModelSpec, dtype: str) -> ModelSpec:
    """Return the model with activations, KV, and the weights of unquantized checkpoints in `dtype`."""
    if dtype == "auto" or DTYPES[dtype] == model.dtype:
        return model
    name = DTYPES[dtype]
    if model.checkpoint.quantized:
        return replace(model, dtype=name)
    return replace(
        model, dtype=name, checkpoint=uniform_scheme(name, find_format(name), base=find_format(name))
    )


def check_attention(settings: PoolSettings) -> None:
    """Raise InvalidInput for an attention kernel that does not support the model or the GPU.

    Also raise it if the KV cache is disabled and a setting needs it.
    """
    pool, model = settings.pool, settings.model
    if pool.attn_implementation != "auto":
        others = [group.mixer.kind for group in model.layer_groups if not isinstance(group.mixer, Attention)]
        if others:
            raise InvalidInput(
                f"--attn-implementation {pool.attn_implementation}: {model.name} has {others[0]} layers, but the "
                "named kernels support only mha, gqa and mqa; use auto"
            )
        find_attention_kernel(pool.attn_implementation, settings.profile.architecture)
    if pool.use_cache:
        return
    needing = {
        "--speculator": pool.speculator,
        "--enable-prefix-caching": pool.enable_prefix_caching,
        "--kv-offloading-size": pool.kv_offloading_size,
        "--kv-eviction": pool.kv_eviction,
        "--prefill-replicas": None if pool.role == "both" else pool.role,
    }
    if asked := [name for name, value in needing.items() if value]:
        raise InvalidInput(
            f"{asked[0]} needs a KV cache and cannot be combined with --no-use-cache: leave out one of them"
        )


def aiter_notes(engine: EngineSpec, platform: str) -> tuple[str, ...]:
    """Return a note on the setting with which vLLM's steps on AMD GPUs are predicted.

    Source of the times: vLLM issue 56945, and rows found on 2026-11-30 (docs/accuracy.md).
    """
    if engine.name != "vllm" or platform != "rocm":
        return ()
    return (
        "on AMD GPUs, vLLM is predicted with AITER's kernels: start it with VLLM_ROCM_USE_AITER=1, which is not its "
        "default; published runs without it took 1.3 to 3.7 times the predicted or measured TPOT of runs with it",
    )


def no_cache_notes(pool: Pool, engine: EngineSpec) -> tuple[str, ...]:
    """Return a note if `--no-use-cache` is set for an engine that always keeps a KV cache."""
    if pool.use_cache or engine.baseline or engine.name in WITHOUT_CACHE:
        return ()
    return (
        f"{engine.name} always keeps a KV cache: with --no-use-cache the steps are estimated without one, and "
        "the memory with one",
    )


def check_runs(settings: PoolSettings) -> None:
    """Raise InvalidInput if the engine does not run on the settings' accelerator."""
    engine, profile = settings.engine, settings.profile
    if engine.runs_on_platform(profile.platform, profile.capability):
        return
    running = engine.runs_on.get(profile.platform)
    others = _engines_supporting(lambda other: other.runs_on_platform(profile.platform, profile.capability))
    if running is None:
        where = ", ".join(TITLES[platform] for platform in engine.runs_on)
        raise InvalidInput(
            f"{engine.label} does not run on {TITLES[profile.platform]} ({profile.name}), only on {where}: use "
            f"{others}, or another --gpu"
        )
    raise InvalidInput(
        f"{engine.label} needs compute capability {running.min_capability:.1f}, {profile.name} has "
        f"{profile.compute_capability}: use {others}, or another --gpu"
    )


def check_formats(settings: PoolSettings) -> None:
    """Raise InvalidInput if the engine cannot load the weights on this GPU or use the KV format."""
    engine, scheme, profile = settings.engine, settings.scheme, settings.profile
    place, loads = (profile.platform, profile.capability), _loads_on_accelerator(settings)
    here = [family for family in engine.weight_formats if engine.loads_on_platform(family, *place)]
    for able, where in ((engine.weight_formats, ""), (tuple(here), f" on {profile.name}")):
        refused = [family for family in scheme.families if family not in able]
        if not refused:
            continue
        needed = engine.runs_on[profile.platform].format_capability.get(refused[0], 0.0)
        why = f", only from compute capability {needed:.1f}" if where and profile.capability < needed else ""
        raise InvalidInput(
            f"{engine.label} does not load {', '.join(refused)} weights ({scheme.name}){where}{why}"
            f"{'; there' if where else ','} it loads {', '.join(able)}: use another --quantization"
            f"{_alternative_engines(loads)}"
        )
    kv = find_kv_cache_format(settings.kv_cache_dtype, model_dtype=settings.model.dtype).name
    if not engine.supports_kv_format(kv):
        others = _alternative_engines(lambda other: other.supports_kv_format(kv) and loads(other))
        raise InvalidInput(
            f"{engine.label} has no KV cache in {kv}, only in {', '.join(('16 bit', *engine.kv_cache_formats))}: "
            f"use another --kv-cache-dtype{others}"
        )


def _loads_on_accelerator(settings: PoolSettings) -> Callable[[EngineSpec], bool]:
    """Return a function that returns whether an engine can load these weights on this accelerator."""
    profile, families = settings.profile, settings.scheme.families

    place = (profile.platform, profile.capability)
    return lambda other: all(other.loads_on_platform(family, *place) for family in families)


def _alternative_engines(can: Callable[[EngineSpec], bool]) -> str:
    """Return the end of an error message: the engines for which `can` is true, or that no engine is suitable."""
    able = _engines_supporting(can)
    return f", or {able}" if able else " (no supported engine can)"


def _engines_supporting(can: Callable[[EngineSpec], bool]) -> str:
    """Return an --engine flag that names the engines whose newest release passes `can`; empty if there are none."""
    engines = (find_engine(name) for name in engine_names())
    able = [engine.name for engine in engines if not engine.baseline and can(engine)]
    return f"--engine {' or '.join(able)}" if able else ""


def check_scheduled_tokens(settings: PoolSettings) -> None:
    """Raise InvalidInput if `max_num_scheduled_tokens` is above `max_num_batched_tokens`, which sets the memory."""
    scheduled, budget = settings.max_num_scheduled_tokens, settings.max_num_batched_tokens
    if scheduled > budget:
        raise InvalidInput(
            f"--max-num-scheduled-tokens {scheduled} is above --max-num-batched-tokens {budget}: lower the first "
            "or raise the second"
        )


def check_experts(settings: PoolSettings) -> None:
    """Raise InvalidInput for expert settings of a model without experts, as vLLM does (config/model.py)."""
    pool, model = settings.pool, settings.model
    flags = {
        "--enable-expert-parallel": pool.enable_expert_parallel,
        "--moe-backend": pool.moe_backend != "auto",
    }
    for flag in (name for name, asked in flags.items() if asked and not model.is_moe):
        raise InvalidInput(f"{flag} has no effect without experts, and {model.name} has none: leave it out")
    engine = settings.engine
    if flags["--moe-backend"] and not (engine.chooses_moe_backend or engine.baseline):
        raise InvalidInput(
            f"--moe-backend {pool.moe_backend}: {engine.label} does not support this flag, only vllm and "
            "sglang do; leave it out"
        )
    if flags["--moe-backend"]:
        _check_moe_backend(settings)


def _check_moe_backend(settings: PoolSettings) -> None:
    """Raise InvalidInput if the engine does not run experts of this format with `--moe-backend` on this GPU."""
    pool, engine, profile = settings.pool, settings.engine, settings.profile
    stored = settings.scheme.format_of("experts")
    if stored.kernel not in engine.moe_backends:
        return

    def runs_from(lowest: float, below: float) -> bool:
        return lowest <= profile.capability and not below <= profile.capability < inf  # infinite: unknown

    running = [
        backend
        for backend, (lowest, below) in engine.moe_backends[stored.kernel].items()
        if (runs_from(lowest, below) if profile.platform == "cuda" else backend == "triton")
    ]
    if pool.moe_backend not in running:
        use = f"use {', '.join(running)}, or leave it out" if running else "leave it out"
        raise InvalidInput(
            f"--moe-backend {pool.moe_backend}: {engine.label} does not run {stored.name} experts with it on "
            f"{profile.name}; {use}"
        )
