"""Inputs of a step model: model, weight format, GPU, parallel ranks and engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.deployment.engines import EngineSpec
from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.coefficients import AttentionCoefficients, ChipShare, Coefficients, StepCoefficients
from capacity.hardware.kernel_lookup import Found, KernelLookup
from capacity.hardware.memory_rate import scale_to_memory
from capacity.hardware.power import scale_to_halved_tensor_cores, scale_to_power_limit, sustained_constants
from capacity.hardware.power_cap import power_cap_error, scale_to_power_cap
from capacity.hardware.weight_kernels import weight_kernels
from capacity.model.quantization import (
    Execution,
    KvCacheFormat,
    QuantizationScheme,
    WeightFormat,
    find_kv_cache_format,
)
from capacity.model.spec import ModelSpec
from capacity.step.collectives import Interconnect
from capacity.step.launches import launch_seconds, waiting_seconds

DIRECT_LINKS = ("nvlink", "nvlink-bridge", "xgmi", "chip-to-chip", "c2c")
GPUS_OF_SOCKET = 4
CROSSING_SHARE = 0.81
"""Fraction of a PCIe link's rate that a ring all-reduce keeps if it crosses between two CPU sockets. A group of more
than four GPUs crosses in servers that have two sockets with four GPUs each. Measured peer-to-peer rates in both
directions at once: 99, 64 and 95 GB/s across sockets in three servers, and 111, 103 and 103 GB/s within a socket
(rtx6kpro, hardware/pcie-bandwidth.md, 2026), a ratio of 0.81 on average. An 8-GPU server with all GPUs under one switch
has no crossing; L40S and A100 PCIe servers rarely have such a switch."""

READ_OVER_PCIE_ERROR = 1.5
"""Possible error (factor) of steps that read weights over PCIe, because links, pinned memory and the overlap of copies
differ. Assumed, 2026-11-22."""


FEWEST_COMPILED_ROWS = {"gaudi": 1, "neuron": 1, "tpu": 16}
"""Fewest rows of a step on accelerators whose compiler writes one program for each shape of a step. Steps are padded to
the next power of two of rows. No step launches its kernels one by one, and no kernel runs as thread blocks of one
sequence and KV head. Sources: tpu-inference runner/utils.py `get_token_paddings`, vllm-gaudi
extension/bucketing/exponential.py, 2026-08; Neuron: assumed."""
MOST_COMPILED_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """CPU time of a step, and the part of it that overlaps with the GPU.

    `eager_s`: time to launch the model's kernels one by one, ahead of the GPU. A step of up to `graph_sizes[-1]` rows
    replays the CUDA graph of its size or the next larger size instead. `waiting_s`: additional launch time that does
    not overlap, because the CPU waits for the GPU. `serial_s`: CPU time that never overlaps, with
    `serial_per_sequence_s` in addition for each sequence.
    """

    step_s: float = 0.0
    per_sequence_s: float = 0.0
    overlapped: bool = True
    overlap_sharpness: float = 4.0
    eager_s: float = 0.0
    waiting_s: float = 0.0
    graph_sizes: tuple[int, ...] = ()
    graph_padding: bool = True
    graphs_for_prefill: bool = True
    serial_s: float = 0.0
    serial_per_sequence_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """One engine: the inputs that determine its step times.

    `scheme` None: the checkpoint's own. `engine` None: no host time, with vLLM's kernels and graph sizes.
    `max_num_seqs` None: the engine's default; it limits the CUDA graphs. `host` and `kernel_family` override the
    engine's data. `data_parallel_size` counts ranks that run in lockstep. `async_scheduling` None: the engine's
    default; if False, host time does not overlap. Without `use_cache`, every step recomputes all earlier tokens of its
    sequences. `host_weight_share`: fraction of the layers' weights in host memory. `gpu_layers` None: all layers;
    otherwise `host_cpu` computes the remaining layers, which are the model's first.
    """

    model: ModelSpec
    profile: HardwareProfile
    engine: EngineSpec | None = None
    scheme: QuantizationScheme | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enforce_eager: bool = False
    max_graph_rows: int | None = None  # None: the engine's default
    graph_padding: bool | None = None  # None: the engine's default
    max_num_seqs: int | None = None
    draft_rows: int = 0  # draft tokens per sequence; engines capture CUDA graphs for them too
    async_scheduling: bool | None = None
    decode_context_parallel_size: int = 1
    max_loras: int = 0  # maximum number of LoRA adapters in a step
    max_lora_rank: int = 16
    host: HostTime | None = None
    kernel_family: str | None = None
    host_weight_share: float = 0.0
    gpu_layers: int | None = None
    host_cpu: HardwareProfile | None = None
    attn_implementation: str = "auto"
    moe_backend: str = "auto"
    use_cache: bool = True
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0

    @property
    def cpu_layers(self) -> int:
        """Return the number of layers that the CPU computes."""
        return 0 if self.gpu_layers is None else max(self.model.num_layers - self.gpu_layers, 0)

    @property
    def head_on_cpu(self) -> bool:
        """Return whether the CPU computes the LM head too.

        llama.cpp counts the LM head as one more layer, and it is the first one that moves to the CPU.
        """
        return self.gpu_layers is not None and self.gpu_layers <= self.model.num_layers

    def unmeasured_factors(self, phase: Literal["prefill", "decode"] = "decode") -> dict[str, float]:
        """Return the error factors above 1 for steps of this phase; keys name the cause, such as "chip"."""
        served = self.profile.step_time is not None and self.profile.step_time.chip_share is not None
        found = {"served chip" if served else "chip": _chip_error(self.profile, phase)}
        if self.measured_on_gpu:
            found = {}
        found["power cap"] = power_cap_error(self.profile, phase)
        if self.host_weight_share:
            found["offload"] = READ_OVER_PCIE_ERROR
        if self.head_on_cpu:
            found["offload"] = max(READ_OVER_PCIE_ERROR, _chip_error(self.host_cpu, phase))
        return {why: factor for why, factor in found.items() if factor > 1}

    @property
    def measured_on_gpu(self) -> bool:
        """Return whether `capacity validate` measured the main kernels of this model's steps on this GPU."""
        adjustment = self.profile.adjustment
        return adjustment is not None and adjustment.measures_kernels(is_moe=self.model.is_moe)

    def weight_slowdown(self, bandwidth_fraction: float, *, share: float) -> float:
        """Return the time to read weights with the fraction `share` over PCIe, divided by the time with all in HBM."""
        hbm, pcie = self.profile.hbm_bytes_per_s, self.profile.pcie.bytes_per_s
        return 1.0 - share + share * bandwidth_fraction * hbm / pcie

    @property
    def weights(self) -> QuantizationScheme:
        """Return the storage format of the weights."""
        return self.model.checkpoint if self.scheme is None else self.scheme

    @property
    def kv_cache(self) -> KvCacheFormat:
        """Return the storage format of keys and values. Raises UnknownName."""
        return find_kv_cache_format(self.kv_cache_dtype, model_dtype=self.model.dtype)

    @property
    def expert_parallel(self) -> bool:
        """Return whether whole experts are distributed over the ranks (expert parallelism of an MoE model)."""
        return self.enable_expert_parallel and self.model.is_moe

    @property
    def runs_joint_steps(self) -> bool:
        """Return whether data-parallel ranks run steps in lockstep, which is only necessary for MoE models."""
        return self.data_parallel_size > 1 and self.model.is_moe

    def execution(self, stored: WeightFormat) -> Execution:
        """Return the kernel and compute type for a weight format; engines may have their own kernels."""
        execution = stored.execution(self.profile.dense_flops_per_s)
        if execution.compute_dtype == "bf16" and self.profile.compute_type_16_bit == "fp16":
            execution = replace(execution, compute_dtype="fp16")
        if self.engine is None:
            return execution
        own = self.engine.replacement_kernel(execution.kernel, self.profile.architecture)
        return execution if own == execution.kernel else replace(execution, kernel=own)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the notes on kernels that only third parties measured; they apply to every predicted time."""
        kernels = [weight_kernels().get(self.execution(stored).kernel) for stored in self.weights.formats]
        return tuple(dict.fromkeys(kernel.remark for kernel in kernels if kernel is not None))

    def find_link(self, gpus: int) -> Interconnect:
        """Return the link between `gpus` GPUs."""
        link = self.profile.link_for(gpus)
        crosses = link.kind == "pcie" and gpus > GPUS_OF_SOCKET
        return Interconnect(
            bytes_per_s=link.bytes_per_s * (CROSSING_SHARE if crosses else 1.0),
            latency_s=link.latency_s,
            direct=link.kind in DIRECT_LINKS,
        )

    def lookup(self) -> KernelLookup:
        """Return the kernel constants of the GPU and the engine (default: vLLM).

        Raises InvalidInput if the profile contains another GPU's fit.
        """
        family = self.kernel_family or ("vllm" if self.engine is None else self.engine.kernel_family)
        return KernelLookup(
            coefficient_sources(self.profile),
            family,
            _transfer_function(self.profile),
            self._in_steps,
            adjustment=self.profile.adjustment,
            engine="" if self.engine is None else self.engine.label,
        )

    def _in_steps(self, constants: Found, *, kernel: tuple[str, str] | None) -> Found:
        """Return constants of short kernel runs converted to sustained work under the card's power cap."""
        return scale_to_power_cap(sustained_constants(constants, self.profile, kernel), self.profile)

    def host_time(self) -> HostTime:
        """Return the engine's host time, with the adjustment that was calibrated on measured runs."""
        host, adjustment = self._engine_host_time(), self.profile.adjustment
        if adjustment is None:
            return host
        seconds = [field.name for field in fields(HostTime) if field.name.endswith("_s")]
        eager = ("eager_s", "waiting_s")
        factors = {name: adjustment.factor("eager" if name in eager else "host") for name in seconds}
        return replace(host, **{name: getattr(host, name) * factor for name, factor in factors.items()})

    def _engine_host_time(self) -> HostTime:
        """Return the host time from the engine's data; if there is no engine, 0 with vLLM's graph sizes."""
        if self.host is not None:
            return self.host
        engine, architecture = self.engine, self.profile.architecture
        if engine is None:
            return HostTime(graph_sizes=graph_sizes(512))
        num_layers = self.model.num_layers
        limits = engine.default_limits(self.profile.memory_engine_bytes, architecture)
        sizes = engine.graph_batch_sizes(
            self.max_num_seqs or limits.max_num_seqs,
            architecture,
            model_type=self.model.model_type,
            draft_tokens=self.draft_rows,
            most=self.max_graph_rows,
            padding=self.graph_padding,
        )
        largest_graph = limits.largest_graph(self.tensor_parallel_size)
        if largest_graph is not None and self.max_graph_rows is None:
            sizes = tuple(size for size in sizes if size <= largest_graph * (1 + self.draft_rows))
        if (fewest := FEWEST_COMPILED_ROWS.get(self.profile.platform)) is not None:
            sizes = tuple(2**n for n in range(20) if fewest <= 2**n <= MOST_COMPILED_ROWS)
        asked = self.async_scheduling
        waiting_s = waiting_seconds(self, engine.kernel_launch_s)
        return HostTime(
            step_s=engine.host_base_s + engine.host_per_layer_s * num_layers,
            per_sequence_s=engine.host_per_sequence_s,
            overlapped=engine.host_overlapped if asked is None else asked,
            overlap_sharpness=engine.host_overlap_norm,
            eager_s=launch_seconds(self, engine.kernel_launch_s) - waiting_s,
            waiting_s=waiting_s,
            graph_sizes=sizes,
            graph_padding=engine.graph_padding if self.graph_padding is None else self.graph_padding,
            graphs_for_prefill=engine.mixes_prefill_with_decode and engine.graphs_for_prompts,
            serial_s=engine.host_serial_s,
            serial_per_sequence_s=engine.host_serial_per_sequence_s,
        )

    def crossing_notes(self) -> tuple[str, ...]:
        """Return a note with the link that a tensor-parallel group uses, if its GPUs have no direct link."""
        profile, ranks = self.profile, self.tensor_parallel_size
        link = profile.link_for(ranks)
        if ranks == 1 or link.kind in DIRECT_LINKS:
            return ()
        where = "leaves the node" if ranks > profile.gpus_per_node else "has no direct GPU link"
        return (
            f"tensor parallelism over {ranks} {profile.name} {where}: "
            f"all-reduce over {link.kind} at {self.find_link(ranks).bytes_per_s / 1e9:.0f} GB/s",
        )


def short_run_lookup(profile: HardwareProfile, family: str) -> KernelLookup:
    """Return an engine's kernel constants as measured in short runs of single kernels, not corrected for the lower
    clock of sustained work and for power limits, and without the profile's adjustment."""
    transfer = _transfer_function(profile, power_limits=False)
    return KernelLookup(coefficient_sources(profile), family, transfer)


def _transfer_function(
    card: HardwareProfile, *, power_limits: bool = True
) -> Callable[[Coefficients], Coefficients] | None:
    """Return a function that converts kernel constants for this card; None if the profile needs no conversion.

    Constants of the GPU that the profile names are scaled to the card's clock and memory. For a chip that is not a GPU,
    the constants for all GPUs are converted.
    """
    own = card.step_time
    share = None if own is None else own.chip_share
    if card.platform in FEWEST_COMPILED_ROWS:
        return partial(_without_thread_blocks, share=share)
    if own is None or own.transferred_from is None:
        return None
    sister = load_profile(own.transferred_from)

    def on_this_card(constants: Coefficients) -> Coefficients:
        if share is not None:
            return share.convert_constants(constants)
        clocked = scale_to_power_limit(constants, card, sister) if power_limits else constants
        return scale_to_memory(scale_to_halved_tensor_cores(clocked, card, sister), card, sister)

    return on_this_card


def _without_thread_blocks(constants: Coefficients, *, share: ChipShare | None) -> Coefficients:
    """Return the constants of a GPU's kernel converted to a chip that is not a GPU."""
    if isinstance(constants, AttentionCoefficients):
        constants = constants.mark_assumed("no thread blocks", occupancy_s=0.0)
    return constants if share is None else share.convert_constants(constants)


def _chip_error(profile: HardwareProfile | None, phase: Literal["prefill", "decode"]) -> float:
    if profile is None or profile.step_time is None:
        return 1.0
    own = profile.step_time
    return (own.ttft_error_factor if phase == "prefill" else None) or own.error_factor


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Return vLLM's CUDA-graph batch sizes: 1, 2, 4, every 8th to 256, then every 16th.

    Source: vLLM 0.33 config/vllm.py.
    """
    sizes: Sequence[int] = (1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def coefficient_sources(profile: HardwareProfile) -> tuple[StepCoefficients, ...]:
    """Return the step-time fits that apply to a GPU: its own fit, the fit of the GPU in `transferred_from`, and so on
    along these references.

    A constant that equals that of the second fit does not count as the GPU's own. Raises InvalidInput if the profile
    contains another GPU's fit.
    """
    own = profile.step_time
    if own is None:
        return ()
    if own.gpu not in (None, profile.name):
        raise InvalidInput(
            f"profile {profile.name} contains the step-time fit of {own.gpu}; "
            f"use transferred_from = {own.gpu!r} instead, so that it counts as assumed"
        )
    others, names = list[StepCoefficients](), [profile.name]
    following: StepCoefficients | None = own
    while following is not None and following.transferred_from not in (None, *names):
        names.append(str(following.transferred_from))
        following = load_profile(names[-1]).step_time
        others += [] if following is None else [following]
    if not others:
        return (own,)
    return (own.without_copies(others[0]), *(other.transferred for other in others))
