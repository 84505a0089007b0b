"""Evidence for each combination of accelerator, engine and weight format: measured, fitted, assumed or impossible."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from capacity.base.checked import validate_arguments
from capacity.base.platforms import TITLES
from capacity.base.record import AnswerRecord
from capacity.deployment.engines import EngineSpec, engine_names, find_engine
from capacity.hardware import HardwareProfile, load_profile, profile_names
from capacity.hardware.kernel_lookup import KernelLookup
from capacity.hardware.spreads import load_spreads
from capacity.hardware.weight_kernels import weight_kernels
from capacity.model.quantization import FormatFamily, Kernel, find_format
from capacity.step.setting import coefficient_sources

Status = Literal["measured", "fitted", "assumed", "impossible"]
FORMATS: dict[FormatFamily, str] = {  # each family of weight formats with its representative
    "16-bit": "bf16",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "int8": "int8",
    "int-weight-only": "int4-g128",
    "bitsandbytes": "nf4",
    "gguf": "gguf-q8_0",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportCell:
    """Status of one engine on one GPU with one family of weight formats, and the reason for it.

    measured: servers with this engine on this GPU were measured, and the GEMM kernels are fitted on this GPU. fitted:
    the GEMM kernels are fitted on this GPU. assumed: the GEMM kernels are those of another GPU, engine or third party,
    or computed from rooflines. impossible: the engine does not run on this GPU, or does not load such weights on it.
    """

    gpu: str
    engine: str
    weight_format: FormatFamily
    status: Status
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportMatrix(AnswerRecord):
    """Status (measured, assumed, ...) of every engine (newest release) on each of `gpus` with each weight format."""

    SCHEMA: ClassVar[str] = "capacity/gpu-support/v1"

    gpus: tuple[str, ...]
    engines: tuple[str, ...]
    weight_formats: tuple[FormatFamily, ...]
    rows: tuple[SupportCell, ...]

    def status(self, gpu: str, engine: str, weight_format: FormatFamily) -> Status:
        """Return whether this engine (a name without a version) with this weight format on this GPU is measured,
        fitted, assumed or impossible."""
        wanted = (gpu, engine, weight_format)
        cells = ((cell.gpu, cell.engine.partition("@")[0], cell.weight_format) for cell in self.rows)
        return next(cell.status for cell, place in zip(self.rows, cells, strict=True) if place == wanted)


@validate_arguments
def gpu_support(*, gpus: Sequence[str] | None = None, profiles: str | Path | None = None) -> SupportMatrix:
    """Return the status of each engine and weight format on `gpus` (None: every profile). Raises UnknownName."""
    directories = [profiles] if profiles else []
    chosen = profile_names(directories) if gpus is None else gpus
    engines = [engine for engine in map(find_engine, engine_names()) if not engine.baseline]
    loaded = [load_profile(name, directories) for name in chosen]
    cells = (_cell(profile, engine, family) for profile in loaded for engine in engines for family in FORMATS)
    return SupportMatrix(
        gpus=tuple(profile.name for profile in loaded),
        engines=tuple(engine.label for engine in engines),
        weight_formats=tuple(FORMATS),
        rows=tuple(cells),
    )


def _cell(profile: HardwareProfile, engine: EngineSpec, family: FormatFamily) -> SupportCell:
    status, why = _format_support(profile, engine, family)
    return SupportCell(gpu=profile.name, engine=engine.label, weight_format=family, status=status, why=why)


def _format_support(profile: HardwareProfile, engine: EngineSpec, family: FormatFamily) -> tuple[Status, str]:
    if not engine.runs_on_platform(profile.platform, profile.capability):
        return "impossible", f"{engine.name} does not run on {_device_name(profile, engine)}"
    if not engine.loads_on_platform(family, profile.platform, profile.capability):
        return (
            "impossible",
            f"{engine.name} does not load {family} weights on {_device_name(profile, engine)}",
        )
    stored = find_format(FORMATS[family])
    execution = stored.execution(profile.dense_flops_per_s)
    if execution.compute_dtype not in (*profile.dense_flops_per_s, "bf16"):
        return "impossible", f"no {execution.compute_dtype} tensor cores and no alternative to them"
    kernel = engine.weight_kernels.get(execution.kernel, execution.kernel)
    if kernel in weight_kernels():
        return "assumed", f"the {kernel} kernel from third-party measurements on other GPUs"
    if profile.platform == "cuda" and profile.capability < stored.min_compute_capability:
        return (
            "assumed",
            f"native only from compute capability {stored.min_compute_capability:.1f}; runs with the {kernel} kernel",
        )
    return _kernel_support(profile, engine, kernel)


def _device_name(profile: HardwareProfile, engine: EngineSpec) -> str:
    if profile.platform in engine.runs_on and profile.platform == "cuda":
        return f"compute capability {profile.compute_capability}"
    return TITLES[profile.platform]


def _kernel_support(profile: HardwareProfile, engine: EngineSpec, kernel: Kernel) -> tuple[Status, str]:
    """Return "measured", "fitted" or "assumed" for an engine's GEMM kernel on this GPU, and the reason."""
    lookup = KernelLookup(coefficient_sources(profile), engine.kernel_family, engine=engine.label)
    lookup.kernel("gemm", kernel)
    step_time = profile.step_time
    if lookup.assumed:
        if step_time is None or (not lookup.own_sources and step_time.transferred_from is None):
            return "assumed", "computed from rooflines, with the efficiencies of other chips"
        if not lookup.own_sources:
            return "assumed", f"the {kernel} kernel fitted on {step_time.transferred_from}"
        return "assumed", f"the {kernel} kernel of {engine.name} was not measured on this GPU"
    if engine.kernel_family not in (engine.name, *engine.aliases):
        return (
            "assumed",
            f"the {kernel} kernel of {engine.kernel_family}, measured on this GPU, is assumed for {engine.name}",
        )
    if any((seen.engine, seen.gpu) == (engine.name, profile.name) for seen in load_spreads().familiar):
        return "measured", f"servers were measured, and the {kernel} kernel is fitted on this GPU"
    return "fitted", f"the {kernel} kernel is fitted on this GPU"
