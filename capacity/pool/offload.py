"""Models that are partly in host memory: the engines that support them, the part on the GPU, the cost per step.

There are two methods. Weight offloading (`--cpu-offload-gb`; ZeRO-Inference, accelerate): each step reads the weights
over PCIe. Layer offloading (llama.cpp's `--n-gpu-layers`): the CPU computes the layers and stores their KV.
"""

from dataclasses import replace

from capacity.base.errors import InvalidInput
from capacity.deployment.engines import engine_names, find_engine
from capacity.pool.settings import PoolSettings
from capacity.pool.weights import pipeline_layers, stage_weights

GIB = 2**30
UNIFIED_MEMORY = ("cpu", "metal")
OFFLOAD_FIELDS = {"weights": "cpu_offload_gb", "layers": "n_gpu_layers"}


def check_offload(settings: PoolSettings) -> None:
    """Raise InvalidInput if the engine or the GPU does not support the offloading that the pool requests."""
    pool, engine, profile = settings.pool, settings.engine, settings.profile
    for way, field in OFFLOAD_FIELDS.items():
        if getattr(pool, field) in (None, 0.0) and (way == "weights" or pool.n_gpu_layers is None):
            continue
        flag = f"--{field.replace('_', '-')} {getattr(pool, field):g}"
        if engine.host_memory != way:
            others = [each.name for each in map(find_engine, engine_names()) if each.host_memory == way]
            own = OFFLOAD_FIELDS.get(engine.host_memory or "", "")
            instead = f"--{own.replace('_', '-')}, or " if own else ""
            raise InvalidInput(
                f"{flag}: {engine.label} cannot keep {way} in host memory; use {instead}--engine "
                f"{' or '.join(others)}"
            )
        if profile.platform in UNIFIED_MEMORY:
            raise InvalidInput(f"{flag}: {profile.name} has no separate host memory for {way}; leave it out")
    in_part = pool.n_gpu_layers is not None and pool.n_gpu_layers <= settings.model.num_layers
    if in_part and pool.pipeline_parallel_size > 1:
        raise InvalidInput(
            f"--n-gpu-layers {pool.n_gpu_layers} with --pipeline-parallel-size {pool.pipeline_parallel_size} is "
            "not modelled: leave one of them out"
        )


def cpu_layers(settings: PoolSettings) -> int:
    """Return the number of layers that the CPU computes; they are the first layers of the model."""
    asked = settings.pool.n_gpu_layers
    return 0 if asked is None else max(settings.model.num_layers - asked, 0)


def all_on_cpu(settings: PoolSettings) -> bool:
    """Return whether the GPU holds no layer. It then only computes matrix multiplications with many rows."""
    return settings.pool.n_gpu_layers == 0 and settings.host_cpu is not None


def host_settings(settings: PoolSettings) -> PoolSettings:
    """Return the settings with the host CPU in place of the GPU, for the memory of layers that the CPU computes."""
    assert settings.host_cpu is not None
    pool = settings.pool.model_copy(update={"n_gpu_layers": None})
    return replace(settings, pool=pool, profile=settings.host_cpu)


def gpu_weights(settings: PoolSettings, stage: int) -> float:
    """Return the bytes of a stage's weights that stay on each of its GPUs.

    vLLM offloads only weights of layers. llama.cpp counts the LM head as one more layer, and offloads it first; the
    embedding always stays on the CPU.
    """
    pool, model = settings.pool, settings.model
    if pool.n_gpu_layers is not None:
        return stage_weights(
            settings, stage, host_layers=cpu_layers(settings), ends=pool.n_gpu_layers > model.num_layers
        )
    whole = stage_weights(settings, stage)
    if not pool.cpu_offload_gb:
        return whole
    return whole - min(pool.cpu_offload_gb * GIB, stage_weights(settings, stage, ends=False))


def host_weight_share(settings: PoolSettings) -> float:
    """Return the fraction of a GPU's layer weights in host memory, for the stage with the largest fraction."""
    offloaded = settings.pool.cpu_offload_gb * GIB
    if not offloaded:
        return 0.0
    stages = range(settings.pool.pipeline_parallel_size)
    return min(1.0, offloaded / min(stage_weights(settings, stage, ends=False) for stage in stages))


def gpu_layers(settings: PoolSettings, layers: range) -> range:
    """Return the layers of a stage whose KV is on the GPU."""
    return range(max(layers.start, cpu_layers(settings)), layers.stop)


def offload_notes(settings: PoolSettings) -> tuple[str, ...]:
    """Return notes about the weights or layers in host memory and their minimum cost per step."""
    pool, profile, cpu = settings.pool, settings.profile, settings.host_cpu
    notes: tuple[str, ...] = ()
    if pool.cpu_offload_gb:
        stages = range(pool.pipeline_parallel_size)
        moved = max(stage_weights(settings, s) - gpu_weights(settings, s) for s in stages)
        rate = profile.pcie.bytes_per_s
        notes += (
            f"{moved / GIB:.2f} GiB of each GPU's weights are in host memory: every step reads them at "
            f"{rate / 1e9:.1f} GB/s, which takes at least {moved / rate * 1e3:,.0f} ms",
        )
    on_cpu = cpu_layers(settings)
    if all_on_cpu(settings) and cpu is not None:
        notes += (f"no layer is on the GPU, so the memory plan is for {cpu.name}",)
    if on_cpu and cpu is not None:
        held = stage_weights(settings, 0) - gpu_weights(settings, 0)
        layers = pipeline_layers(settings.model.num_layers, 1)[0]
        notes += (
            f"the CPU, {cpu.name} (--host-cpu), computes {on_cpu} of {len(layers)} layers at "
            f"{cpu.hbm_bytes_per_s / 1e9:.0f} GB/s and stores {held / GIB:.2f} GiB of weights and their KV",
        )
        needed = held * pool.tensor_parallel_size
        if needed > cpu.memory_engine_bytes:
            notes += (
                f"the offloaded weights exceed the {cpu.memory_engine_bytes / GIB:.0f} GiB of {cpu.name}",
            )
    return notes
