"""Look up the constants of kernels on one GPU: the engine's, else the most similar kernel's, else those of any GPU."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Literal, Protocol, TypeVar, overload

from capacity.base.errors import InvalidInput
from capacity.hardware.adjustment import NO_ADJUSTMENT, Adjustment
from capacity.hardware.coefficients import (
    AllReduceCoefficients,
    AttentionCoefficients,
    Coefficients,
    CollectiveCoefficients,
    ElementwiseCoefficients,
    GemmCoefficients,
    KernelFamily,
    MoeCoefficients,
    Residuals,
    StepCoefficients,
    universal,
    universal_family,
)

# Order of families that replace an engine's unmeasured kernels. TensorRT-LLM comes before SGLang, because SGLang's MLA
# tables on Hopper measure kernels that other engines do not have. Last come the kernels that the validation harness ran
# on the same GPU, which are better than constants for all GPUs.
FAMILY_ORDER = ("vllm", "trtllm", "sglang", "torch")

# An unmeasured kernel uses the constants of the nearest measured one.
NEAREST_KERNEL: Mapping[str, tuple[str, ...]] = {
    "mxfp4": ("w4a16",),
    "w4a16": ("mxfp4",),
    "w8a16": ("w4a16",),
    "int8": ("fp8",),
    "fp8_block": ("fp8",),
    "fp8": ("fp8_block",),
    "8bit": ("16bit",),
    "16bit": ("8bit",),
}

MARLIN_FAMILIES = ("vllm", "sglang")
MARLIN_SLOWDOWN: Mapping[str, float] = {"w4a16": 1.3, "w8a16": 1.5}
"""Time of large GEMMs with Marlin over their time in 16 bit; tensor cores wait for dequantization.

Fitted on one A100, Qwen3-8B under vLLM 0.9.2: int4 (GPTQ, AWQ) reaches 8,070 to 8,150 total tokens/s, bf16 10,340 and
int8 7,120 (gpustack performance-lab, 2025). Longer prompts of Qwen2.5-7B under 0.6.3 agree: 1.1 to 1.6 for int4 and 1.6
for int8 (Qwen speed benchmark, 2024-11).
"""

Found = TypeVar("Found", bound=Coefficients)


class StepConversion(Protocol):
    """Function that converts constants of a `kernel` (operator, key) fitted on short runs to those in engine steps."""

    def __call__(self, constants: Found, *, kernel: tuple[str, str] | None) -> Found: ...


AttentionOperator = Literal["prefill_attention", "decode_attention", "mla_prefill", "mla_decode"]


def measured_release(coefficients: StepCoefficients | None, engine: str) -> str | None:
    """Return the name of the family `ENGINE@VERSION` with an engine's own operators as measured on this GPU.

    If other releases than that of `engine` (`name@version`) were measured: the newest older one, else the oldest.
    None if no release was measured.
    """
    name = engine.partition("@")[0]
    families = () if coefficients is None or not name else coefficients.families
    releases = sorted((each for each in families if each.startswith(f"{name}@")), key=_version_numbers)
    older = [each for each in releases if _version_numbers(each) <= _version_numbers(engine)]
    return older[-1] if older else next(iter(releases), None)


def _version_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release.rpartition("@")[2])))


def measured_release_notes(coefficients: StepCoefficients | None, engine: str) -> tuple[str, ...]:
    """Return a note if kernels of `engine` (`name@version`) were measured on this GPU, with their release."""
    measured = measured_release(coefficients, engine)
    if measured is None:
        return ()
    text = f"capacity validate measured kernels of {measured} on this GPU"
    if measured != engine:
        text += f"; those of {engine} may differ: run capacity validate where {engine} is installed"
    return (text,)


class KernelLookup:
    """Lookup of kernel constants: in the engine's kernel family, else in other families, else in the universal family.

    The factors of `adjustment` are applied. `assumed` lists the kernels whose constants come from another kernel,
    engine or GPU, for notes and wider intervals. `above_peak` lists the operators whose adjusted time is below the
    roofline time. `on_this_card` converts another GPU's constants to this GPU. `in_steps` converts constants fitted on
    short kernel runs to engine steps; None leaves them unchanged. `engine` is `name@version`: its own operators, if
    they were measured on this GPU (`measured_release`), come before `family`.
    """

    def __init__(
        self,
        coefficients: tuple[StepCoefficients, ...],
        family: str,
        on_this_card: Callable[[Coefficients], Coefficients] | None = None,
        in_steps: StepConversion | None = None,
        *,
        adjustment: Adjustment | None = None,
        engine: str = "",
    ) -> None:
        self._sources = coefficients
        self._family = family
        self._adjustment = adjustment or NO_ADJUSTMENT
        measured = measured_release(coefficients[0] if coefficients else None, engine)
        self._measured = None if measured is None else coefficients[0].families[measured]
        self._on_this_card = on_this_card
        self._in_steps = in_steps
        self.above_peak: list[str] = []
        self.own_sources = tuple(source for source in coefficients[:1] if source.families)
        self.assumed: list[str] = []

    def _sources_with_universal(self) -> Iterator[StepCoefficients]:
        yield from self._sources
        yield universal()

    def families(self) -> Iterator[tuple[KernelFamily, bool, bool]]:
        """Yield the kernel families in order of preference, each as (family, own, transferred).

        `own`: whether the family was fitted on this GPU for this engine. `transferred`: whether the family was fitted
        on another GPU; the universal family counts as transferred only if the profile names no other GPU.
        """
        if self._measured is not None:
            yield self._measured, True, False
        for position, source in enumerate(self._sources):
            if self._family in source.families:
                yield source.families[self._family], position == 0, position > 0
        for position, source in enumerate(self._sources):
            for name in FAMILY_ORDER:
                if name != self._family and name in source.families:
                    yield source.families[name], False, position > 0
        yield universal_family(), False, len(self._sources) < 2

    @overload
    def kernel(self, operator: Literal["gemm"], key: str) -> GemmCoefficients: ...

    @overload
    def kernel(self, operator: AttentionOperator, key: str) -> AttentionCoefficients: ...

    @overload
    def kernel(self, operator: Literal["moe"], key: str) -> MoeCoefficients: ...

    @overload
    def kernel(self, operator: str, key: str) -> Coefficients: ...

    def kernel(self, operator: str, key: str) -> Coefficients:
        """Return the constants of the kernel `key` of `operator` (a field of `KernelFamily`), or of the nearest kernel.

        Raises InvalidInput if neither this GPU's profile nor the universal family has constants.
        """
        key = "bf16" if key == "fp16" else key  # the same kernels at the same rates
        for name in (key, *NEAREST_KERNEL.get(key, ())):
            for family, own, transferred in self.families():
                constants: Coefficients | None = getattr(family, operator).get(name)
                if constants is None:
                    continue
                if not own or name != key:
                    self.assumed.append(f"{operator} {key}")
                if not own and operator == "gemm" and key in MARLIN_SLOWDOWN:
                    constants = self._slow_down_to_marlin(constants, key)
                if transferred and self._on_this_card is not None:
                    constants = self._on_this_card(constants)
                if self._in_steps is not None:
                    constants = self._in_steps(constants, kernel=(operator, name))
                return self.adjust(operator, constants, key, measured=family is self._measured)
        known = ", ".join(getattr(universal_family(), operator))
        raise InvalidInput(
            f"the step model has no constants for {operator} kernel {key!r}, only for {known}; use another format, "
            f"or a GPU profile with a table [step_time.families.{self._family}.{operator}.{key}]"
        )

    def _slow_down_to_marlin(self, constants: Coefficients, key: str) -> Coefficients:
        """Return another engine's GEMM constants, with at most the compute fraction of Marlin in large GEMMs."""
        sixteen = next(f.gemm["bf16"] for f, *_ in self.families() if "bf16" in f.gemm).compute_fraction
        if self._family not in MARLIN_FAMILIES or not isinstance(constants, GemmCoefficients):
            return constants
        fraction = sixteen / MARLIN_SLOWDOWN[key]
        if constants.compute_fraction <= fraction:
            return constants
        return constants.mark_assumed(compute_fraction=fraction)

    def all_reduce(self, family_name: str | None = None) -> AllReduceCoefficients:
        """Return the constants of the engine's all-reduce, or of the all-reduce of the family `family_name`."""
        called = self if family_name in (None, self._family) else KernelLookup(self._sources, family_name)
        for family, own, _ in called.families():
            if family.all_reduce is not None:
                if not own:
                    self.assumed.append("all_reduce")
                return self.adjust("all_reduce", family.all_reduce, measured=family is self._measured)
        raise AssertionError("the default kernel family must include an all-reduce")

    def elementwise(self) -> ElementwiseCoefficients:
        """Return the constants of elementwise kernels from the engine's kernel family, else from the GPU's profile."""
        measured = None if self._measured is None else self._measured.elementwise
        own = (s.families[self._family].elementwise for s in self._sources if self._family in s.families)
        fitted = (s.elementwise for s in self._sources_with_universal())
        found = next(entry for entry in chain((measured,), own, fitted) if entry is not None)
        in_steps = found if self._in_steps is None else self._in_steps(found, kernel=None)
        return self.adjust("elementwise", in_steps, measured=found is measured)

    def nccl(self, kind: str) -> CollectiveCoefficients:
        found = next(s.nccl[kind] for s in self._sources_with_universal() if kind in s.nccl)
        return self.adjust("nccl", found, kind)

    def adjust(self, operator: str, constants: Found, kernel: str = "", *, measured: bool = False) -> Found:
        """Return the constants with the factors of `adjustment` applied, and record operators above a peak.

        Constants that were `measured` with the engine's own operators on this GPU already contain its kernel ratios.
        """
        adjustment = self._adjustment.model_copy(update={"kernels": {}}) if measured else self._adjustment
        values, above_peak = adjustment.adjust(operator, constants, kernel)
        self.above_peak += [operator] if above_peak else []
        return values

    def residuals(self, regime: str) -> Residuals:
        return next(s.residuals[regime] for s in self._sources_with_universal() if regime in s.residuals)
