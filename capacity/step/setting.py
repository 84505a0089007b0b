"""What a step model is made of: a model in a weight format, on GPUs in ranks, under an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.deployment.engines import EngineSpec
from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.coefficients import Coefficients, StepCoefficients
from capacity.hardware.kernel_lookup import Lookup
from capacity.hardware.memory_rate import with_memory_of
from capacity.hardware.power import sustained, under_limit, with_halved_tensor_cores
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
"""Of a PCIe link's rate, what a ring keeps that crosses from one CPU socket to the other, as one of more than four GPUs
does in servers of two sockets with four each. Peer to peer, both directions at once, across sockets over within one:
99 of 111, 64 of 103 and 95 of 103 GB/s in three servers (rtx6kpro, hardware/pcie-bandwidth.md, 2026): 0.81 on average.
An 8-GPU server that has all of them under one switch has no crossing; L40S and A100 PCIe servers rarely do."""

READ_OVER_PCIE_ERROR = 1.5
"""Of steps that read weights over PCIe: links, pinned memory and how copies overlap differ. Assumed, 2026-11-22."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """What the CPU does for a step, and whether it hides behind the GPU.

    `eager_s` is the time to launch the model's kernels one by one, ahead of the GPU; steps of up to `graph_sizes[-1]`
    rows replay a CUDA graph of the next larger size instead. `waiting_s`: what launching takes beside that and nothing
    hides, for the CPU waits for the GPU on the way. `serial_s` hides behind nothing.
    """

    step_s: float = 0.0
    per_sequence_s: float = 0.0
    overlapped: bool = True
    overlap_sharpness: float = 4.0
    eager_s: float = 0.0
    waiting_s: float = 0.0
    graph_sizes: tuple[int, ...] = ()
    graphs_for_prefill: bool = True
    serial_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """One engine as its steps know it.

    `scheme` None: as the checkpoint is stored. `engine` None: no host time but vLLM's kernels and graph sizes.
    `max_num_seqs` None: the engine's default; it bounds the CUDA graphs. `host` and `kernel_family` replace what
    the engine's data say. `data_parallel_size` counts ranks that take every step together. `async_scheduling` None: as
    the engine does by default; without it the host's time hides behind nothing. Without `use_cache` every step computes
    all earlier tokens of its sequences anew. `host_weight_share`: of the layers'
    weights, what stands in host memory. `gpu_layers` None: all; else `host_cpu` computes the others, which come first.
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
    max_num_seqs: int | None = None
    draft_rows: int = 0  # beside each sequence's own: engines capture CUDA graphs for them too
    async_scheduling: bool | None = None
    decode_context_parallel_size: int = 1
    max_loras: int = 0  # LoRA adapters in a step at most
    max_lora_rank: int = 16
    host: HostTime | None = None
    kernel_family: str | None = None
    host_weight_share: float = 0.0
    gpu_layers: int | None = None
    host_cpu: HardwareProfile | None = None
    attn_implementation: str = "auto"
    moe_backend: str = "auto"
    use_cache: bool = True

    @property
    def cpu_layers(self) -> int:
        """Layers that the CPU computes."""
        return 0 if self.gpu_layers is None else max(self.model.num_layers - self.gpu_layers, 0)

    @property
    def head_on_cpu(self) -> bool:
        """Whether the LM head is there too: to llama.cpp it is one layer more, the first that the GPU leaves."""
        return self.gpu_layers is not None and self.gpu_layers <= self.model.num_layers

    def unmeasured(self, phase: Literal["prefill", "decode"] = "decode") -> dict[str, float]:
        """What no measurement is of in the steps of a phase, each with the factor by which they may be off for it."""
        served = self.profile.step_time is not None and self.profile.step_time.chip_share is not None
        found = {"served chip" if served else "chip": _chip_error(self.profile, phase)}
        if self.host_weight_share:
            found["offload"] = READ_OVER_PCIE_ERROR
        if self.head_on_cpu:
            found["offload"] = max(READ_OVER_PCIE_ERROR, _chip_error(self.host_cpu, phase))
        return {why: factor for why, factor in found.items() if factor > 1}

    def weight_slowdown(self, bandwidth_fraction: float, *, share: float) -> float:
        """How many times longer a kernel reads weights of which `share` comes over PCIe, than all of them from HBM."""
        hbm, pcie = self.profile.hbm_bytes_per_s, self.profile.pcie.bytes_per_s
        return 1.0 - share + share * bandwidth_fraction * hbm / pcie

    @property
    def weights(self) -> QuantizationScheme:
        """How the weights are stored."""
        return self.model.checkpoint if self.scheme is None else self.scheme

    @property
    def kv_cache(self) -> KvCacheFormat:
        """How keys and values are stored. Raises UnknownName."""
        return find_kv_cache_format(self.kv_cache_dtype, model_dtype=self.model.dtype)

    @property
    def expert_parallel(self) -> bool:
        """Whether whole experts are spread over the ranks."""
        return self.enable_expert_parallel and self.model.is_moe

    @property
    def joint(self) -> bool:
        """Whether data-parallel ranks meet at experts; those of a dense model have nothing to do with each other."""
        return self.data_parallel_size > 1 and self.model.is_moe

    def execution(self, stored: WeightFormat) -> Execution:
        """What multiplies a format here: by the engine's own kernel where it has one."""
        execution = stored.execution(self.profile.dense_flops_per_s)
        if execution.compute_dtype == "bf16" and self.profile.sixteen_bit == "fp16":
            execution = replace(execution, compute_dtype="fp16")
        if self.engine is None:
            return execution
        own = self.engine.kernel_in_place_of(execution.kernel, self.profile.architecture)
        return execution if own == execution.kernel else replace(execution, kernel=own)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say with every time: which kernels are known by others' measurements alone."""
        kernels = [weight_kernels().get(self.execution(stored).kernel) for stored in self.weights.formats]
        return tuple(dict.fromkeys(kernel.remark for kernel in kernels if kernel is not None))

    def link_of(self, gpus: int) -> Interconnect:
        """The link that a group of so many GPUs talks over."""
        link = self.profile.link_for(gpus)
        crosses = link.kind == "pcie" and gpus > GPUS_OF_SOCKET
        return Interconnect(
            bytes_per_s=link.bytes_per_s * (CROSSING_SHARE if crosses else 1.0),
            latency_s=link.latency_s,
            direct=link.kind in DIRECT_LINKS,
        )

    def lookup(self) -> Lookup:
        """The constants of the GPU's and the engine's kernels, vLLM's by default.

        Raises InvalidInput for another GPU's fit.
        """
        family = self.kernel_family or ("vllm" if self.engine is None else self.engine.kernel_family)
        return Lookup(
            coefficient_sources(self.profile),
            family,
            self._on_this_card(),
            partial(sustained, card=self.profile),
            adjustment=self.profile.adjustment,
        )

    def _on_this_card(self) -> Callable[[Coefficients], Coefficients] | None:
        """What makes this card's constants of those that it takes from its sister: another clock, other memory."""
        own = self.profile.step_time
        if own is None or own.transferred_from is None:
            return None
        card, sister = self.profile, load_profile(own.transferred_from)

        def on_this_card(constants: Coefficients) -> Coefficients:
            if own.chip_share is not None:
                return own.chip_share.applied_to(constants)
            clocked = with_halved_tensor_cores(under_limit(constants, card, sister), card, sister)
            return with_memory_of(clocked, card, sister)

        return on_this_card

    def host_time(self) -> HostTime:
        """The engine's host time, with what measured runs on this machine said of it."""
        host, adjustment = self._engine_host_time(), self.profile.adjustment
        if adjustment is None:
            return host
        seconds = [field.name for field in fields(HostTime) if field.name.endswith("_s")]
        eager = ("eager_s", "waiting_s")
        factors = {name: adjustment.factor("eager" if name in eager else "host") for name in seconds}
        return replace(host, **{name: getattr(host, name) * factor for name, factor in factors.items()})

    def _engine_host_time(self) -> HostTime:
        """As the engine's data say; without an engine there is none, and vLLM's graph sizes."""
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
        )
        if limits.max_graph_batch is not None and self.max_graph_rows is None:
            most = limits.max_graph_batch * (1 + self.draft_rows)
            sizes = tuple(size for size in sizes if size <= most)
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
            graphs_for_prefill=engine.mixes_prefill_with_decode,
            serial_s=engine.host_serial_s,
        )

    def crossing_notes(self) -> tuple[str, ...]:
        """What to tell of a tensor-parallel group that has no direct link between all of its GPUs."""
        profile, ranks = self.profile, self.tensor_parallel_size
        link = profile.link_for(ranks)
        if ranks == 1 or link.kind in DIRECT_LINKS:
            return ()
        where = "leaves the node" if ranks > profile.gpus_per_node else "has no direct GPU link"
        return (
            f"tensor parallelism over {ranks} {profile.name} {where}: "
            f"all-reduce over {link.kind} at {self.link_of(ranks).bytes_per_s / 1e9:.0f} GB/s",
        )


def _chip_error(profile: HardwareProfile | None, phase: Literal["prefill", "decode"]) -> float:
    if profile is None or profile.step_time is None:
        return 1.0
    own = profile.step_time
    return (own.ttft_error_factor if phase == "prefill" else None) or own.error_factor


def graph_sizes(largest: int) -> tuple[int, ...]:
    """vLLM's CUDA-graph batch sizes: 1, 2, 4, by 8 to 256, by 16 beyond. Source: vLLM 0.33 config/vllm.py."""
    sizes: Sequence[int] = (1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def coefficient_sources(profile: HardwareProfile) -> tuple[StepCoefficients, ...]:
    """The profile's own fit, then the one that it transfers from, copies of which are not its own.

    Raises InvalidInput for another GPU's fit.
    """
    own = profile.step_time
    if own is None:
        return ()
    if own.gpu not in (None, profile.name):
        raise InvalidInput(
            f"profile {profile.name} carries the step-time fit of {own.gpu}; "
            f"say transferred_from = {own.gpu!r} instead, so that it counts as assumed"
        )
    if own.transferred_from is None:
        return (own,)
    other = load_profile(own.transferred_from).step_time
    return (own,) if other is None else (own.without_copies(other), other.transferred)
