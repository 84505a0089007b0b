"""Kernel launches of a step that replays no CUDA graph, and the time that the slowest rank needs for them.

In a prefill or mixed step that is larger than the largest graph, Python launches the kernels one by one. The launch
time is the number of launches times the engine's seconds per launch (`EngineSpec.kernel_launch_s`), for any number of
tokens. Most of it is Python overhead (the layer's module, its checks), so a kernel that C++ launches together with
another counts less (`EngineSpec.quantize_launches`). All ranks of a tensor-parallel group launch the same kernels and
synchronise in every all-reduce, so all of them wait for the slowest rank.

The CPU is at most `LAUNCH_QUEUE` kernels ahead of the GPU. If one thread both launches steps and reads their results,
the results of a step wait until the next step is launched, which may be well after its kernels have begun
(`launch_lag`).

Launches run ahead of the GPU and overlap with its work, unless the CPU must wait for the GPU: for a size that it
needs, or for a list that it copies to the GPU. If an engine has such waits (`EngineSpec.launches_wait`), the launch
time of experts, sparse indexers and linear attention is added to the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from capacity.base.data_files import read_data
from capacity.model.feed_forward import MoEFeedForward, NoFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, LinearAttention
from capacity.model.recurrent import NoMixer, ParallelMixer, Recurrence

if TYPE_CHECKING:
    from capacity.step.setting import StepSetting

_LAUNCHES = dict(read_data(Path(__file__).with_name("launches.toml")))
PRODUCTS: Mapping[str, int] = _LAUNCHES.pop("products")
KERNELS: Mapping[str, float] = _LAUNCHES
"""Number of kernel launches in a prefill step, by part of a layer."""
RANK_SPREAD = 0.1  # standard deviation of the ranks' launch times over their mean; assumed
LAUNCH_QUEUE = 1_024
"""Most kernels that a CUDA stream queues; a further launch waits until one of them has run. Measurements found about
1,000 (NVIDIA's developer forum, 68937, and the same question on Stack Overflow, 53970187, 2018-12)."""


class Weights(NamedTuple):
    """Costs of launching a Triton kernel and a quantization kernel, relative to a plain kernel."""

    triton: float
    quantize: float


QUEUE_WEIGHTS = Weights(1.0, 1.0)  # each launch is one queued kernel, however long it took


def launch_seconds(setting: StepSetting, kernel_launch_s: float) -> float:
    """Return the seconds that the slowest rank needs to launch all kernels of the model."""
    return kernels_launched(setting) * _slowest_rank_launch_seconds(setting, kernel_launch_s)


def waiting_seconds(setting: StepSetting, kernel_launch_s: float) -> float:
    """Return the seconds of `launch_seconds` that do not overlap with the GPU, because the CPU waits for it."""
    if setting.engine is None or not setting.engine.launches_wait:
        return 0.0
    waiting = _count_launches(setting, _seconds_weights(setting), _waiting_launches)
    return waiting * _slowest_rank_launch_seconds(setting, kernel_launch_s)


def _slowest_rank_launch_seconds(setting: StepSetting, kernel_launch_s: float) -> float:
    """Return the seconds of one kernel launch on the slowest rank."""
    ranks = setting.tensor_parallel_size * (setting.data_parallel_size if setting.runs_joint_steps else 1)
    return kernel_launch_s * (1.0 + RANK_SPREAD * expected_maximum(ranks))


def kernels_launched(setting: StepSetting) -> float:
    """Return the kernel launches of one step over all layers, in units of a plain kernel's launch."""
    return _count_launches(setting, _seconds_weights(setting), _layer_launches)


def launch_lag(setting: StepSetting) -> float:
    """Return the fraction of a step's GPU time that has passed when the CPU launches the step's last kernel.

    This applies to steps without a CUDA graph. For engines that read results in another process or thread, it is 0. If
    launches of a layer wait for the GPU (`EngineSpec.launches_wait`), the CPU reaches the last layer when the GPU does.
    """
    if setting.engine is None or not setting.engine.results_after_launch:
        return 0.0
    if setting.engine.launches_wait and _count_launches(setting, QUEUE_WEIGHTS, _waiting_launches):
        return 1.0 - 1.0 / setting.model.num_layers
    return max(0.0, 1.0 - LAUNCH_QUEUE / max(_count_launches(setting, QUEUE_WEIGHTS, _layer_launches), 1.0))


def _seconds_weights(setting: StepSetting) -> Weights:
    return Weights(
        KERNELS["triton_launch"], 1.0 if setting.engine is None else setting.engine.quantize_launches
    )


def _count_launches(
    setting: StepSetting, weights: Weights, of_layer: Callable[[LayerGroup, StepSetting, Weights], float]
) -> float:
    return sum(group.num_layers * of_layer(group, setting, weights) for group in setting.model.layer_groups)


def _layer_launches(group: LayerGroup, setting: StepSetting, weights: Weights) -> float:
    def quantize_launches(kind: str) -> float:
        return weights.quantize * _is_quantized(setting, kind)

    mixer, feed_forward = group.mixer, group.feed_forward
    blocks = 2 - isinstance(mixer, NoMixer) - isinstance(feed_forward, NoFeedForward)
    per_block = KERNELS["norm"] + (KERNELS["all_reduce"] if setting.tensor_parallel_size > 1 else 0.0)
    kernels = blocks * per_block + _waiting_launches(group, setting, weights)
    if isinstance(mixer, LatentAttention):
        kernels += KERNELS["latent_attention"] + quantize_launches("attention") * PRODUCTS["latent"]
    elif isinstance(mixer, LinearAttention | Recurrence | ParallelMixer):
        kernels += KERNELS["attention"] if isinstance(mixer, ParallelMixer) else 0.0
    elif not isinstance(mixer, NoMixer):
        kernels += KERNELS["attention"] + quantize_launches("attention") * PRODUCTS["attention"]
        if isinstance(mixer, Attention):
            # if the rope kernel also normalizes queries and keys, the norms are not launches of their own
            fused = setting.engine is not None and setting.engine.fuses_qk_norm_with_rope
            kernels += KERNELS["qk_norm"] if mixer.qk_norm != "none" and not fused else 0.0
            kernels += KERNELS["output_gate"] * mixer.output_gate
    if isinstance(feed_forward, MoEFeedForward):
        if feed_forward.shared_intermediate_size:
            kernels += KERNELS["shared_experts"] + quantize_launches("shared_expert") * PRODUCTS["dense"]
        kernels += KERNELS["exchange"] if setting.runs_joint_steps else 0.0
    elif not isinstance(feed_forward, NoFeedForward):
        kernels += KERNELS["dense"] + quantize_launches("dense_ffn") * PRODUCTS["dense"]
    return kernels + len(group.products) + (KERNELS["lora"] if setting.max_loras else 0.0)


def _waiting_launches(group: LayerGroup, setting: StepSetting, weights: Weights) -> float:
    """Return the launches of one layer that may wait for the GPU: routed experts, sparse indexer, linear attention."""
    mixer, kernels = group.mixer, 0.0
    if isinstance(mixer, LatentAttention) and mixer.indexer:
        kernels += KERNELS["indexer"]
    if isinstance(mixer, LinearAttention | Recurrence | ParallelMixer):
        recurrence = "mamba2" if mixer.kind.endswith("mamba2") else "linear_attention"
        kernels += KERNELS[recurrence] + weights.triton * KERNELS[f"triton_of_{recurrence}"]
        kernels += weights.quantize * _is_quantized(setting, "linear_attention") * PRODUCTS["attention"]
    if isinstance(group.feed_forward, MoEFeedForward):
        kernels += _expert_launches(setting, weights)
    return kernels


def _expert_launches(setting: StepSetting, weights: Weights) -> float:
    """Return the launches of the routed experts of one layer, including their router."""
    kernel = setting.execution(setting.weights.format_of("experts")).kernel
    if kernel == "mxfp4" and setting.profile.architecture == "hopper":
        return KERNELS["router"] + weights.triton * KERNELS["triton_of_experts"]
    return KERNELS["experts"] + weights.quantize * _is_quantized(setting, "experts") * PRODUCTS["experts"]


def _is_quantized(setting: StepSetting, kind: str) -> bool:
    """Return whether an extra kernel quantizes the GEMM inputs of layer part `kind` ("experts", ...) below 16 bits."""
    execution = setting.execution(setting.weights.format_of(kind))  # type: ignore[arg-type]
    return execution.compute_dtype not in ("bf16", "fp16", "fp32")


@cache
def expected_maximum(draws: int) -> float:
    """Return the expected maximum of `draws` standard normal draws: 0.56 for 2, 1.03 for 4, 1.42 for 8."""
    if draws <= 1:
        return 0.0
    normal, width, span = NormalDist(), 0.01, 8.0
    steps = int(2 * span / width)
    return sum(
        x * draws * normal.pdf(x) * normal.cdf(x) ** (draws - 1) * width
        for x in (-span + width * i for i in range(steps + 1))
    )
