"""The constants of the step model: a dozen numbers a kernel family, each with where it comes from.

A *fraction* is of the datasheet's peak (dense FLOP/s, HBM or link bytes/s) and at most 1, so that no operator is
ever faster than a roof. A *sharpness* is the p of the norm that joins compute and memory time: 1 adds them, large
takes the larger. Families are the kernel libraries of engines (`vllm`, `trtllm`, `sglang`), because that is how
they were measured. The fitted numbers live in `hardware_profiles/*.toml` under `[step_time]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar, overload

from pydantic import Field

from capacity.base.data_files import Table, make_row, read_data
from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec
from capacity.hardware.adjustment import NONE, Adjustment

Basis = Literal["datasheet", "measured", "fitted", "assumed"]


class Fit(Spec):
    """Where a coefficient set comes from, and how far off it was on groups that it was not fitted to."""

    basis: Basis
    source: str
    date: str
    rows: int = 0
    held_out_by: str | None = None  # what a held-out group is: shapes, a GPU, an engine
    median_error: float | None = None  # absolute relative error, held out
    p90_error: float | None = None


Fraction = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]
Sharpness = Annotated[float, Field(ge=1, le=16)]


class Coefficients(Spec):
    """Base of all coefficient sets."""

    fit: Fit


class GemmCoefficients(Coefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + fixed + per_k·K + activation quantization`."""

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds
    per_k_s: Seconds = 0.0  # serial walk over K of one thread block
    quantize_fraction: Fraction | None = None  # of HBM bandwidth, quantizing activations; None: not done


class AttentionCoefficients(Coefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW), occupancy·batch·kv_heads/SMs, per_token·C) + per_doubling·log2(1 + C/64)
    + fixed`.

    C is the mean context of a decode row: splitting a longer KV over blocks takes deeper reductions; a kernel that does
    not split it has one block walk through all of it, however few others work. Also MLA.
    """

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds
    occupancy_s: Seconds = 0.0
    per_doubling_s: Seconds = 0.0
    per_token_s: Seconds = 0.0  # of a context that no other block shares


class MoeCoefficients(Coefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + routed bytes/(routed·BW) + fixed + per_k·K`.

    B: the distinct experts touched; K: the rows of an expert's first product and of its last, which one thread block
    walks through. `tilt`: all of it grows with this power of the tokens besides, as measured runs of somebody's own
    said; 0 as fitted.
    """

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds
    routed_fraction: Fraction  # of HBM bandwidth, permuting and combining routed tokens
    per_k_s: Seconds = 0.0
    local_routing: bool = False  # only the rank's own tokens are permuted, not all of the batch
    tilt: float = 0.0


class AllReduceCoefficients(Coefficients):
    """`per_rank·(n-1) + min(one_shot_fixed + S(n-1)/(one_shot·link), norm(two_shot_fixed, V/(two_shot·link)))`.

    V = 2S(n-1)/n. `two_shot_gain` multiplies the two-shot fraction for each doubling of ranks from 2 to 8, up to 1:
    switches that reduce on the way (NVLS) help more ranks more. Sharpness below 1 is the slow rise to full rate.
    """

    one_shot_fixed_s: Seconds
    one_shot_fraction: Fraction
    two_shot_fixed_s: Seconds
    two_shot_fraction: Fraction
    two_shot_gain: Annotated[float, Field(ge=0.5, le=2)] = 1.0
    per_rank_s: Seconds = 0.0
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class CollectiveCoefficients(Coefficients):
    """NCCL: `norm(fixed + per_rank·(n-1), V/(bandwidth·link))`, V the bytes that leave a rank.

    Sharpness below 1 is the slow rise through NCCL's protocols: more than the sum of both in the middle.
    """

    fixed_s: Seconds
    per_rank_s: Seconds
    bandwidth_fraction: Fraction
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class ElementwiseCoefficients(Coefficients):
    """Norms, rope, activations, residuals, copies: `B/(bandwidth·BW) + fixed` a kernel."""

    bandwidth_fraction: Fraction
    fixed_s: Seconds


class KernelFamily(Spec):
    """The kernels of one engine. Keys: GEMM and expert kernels as in `WeightFormat.kernel`; attention by KV dtype."""

    gemm: dict[str, GemmCoefficients] = Field(default_factory=dict)
    prefill_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    decode_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_prefill: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_decode: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    moe: dict[str, MoeCoefficients] = Field(default_factory=dict)
    all_reduce: AllReduceCoefficients | None = None
    elementwise: ElementwiseCoefficients | None = None  # where this family's differ from the GPU's

    def without_copies(self, other: KernelFamily | None) -> KernelFamily:
        """The kernels whose constants are not the same as another GPU's."""
        kept: dict[str, object] = {}
        for name in type(self).model_fields if other is not None else ():
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, dict):
                own = {key: value for key, value in mine.items() if value != its.get(key)}
                kept |= {} if len(own) == len(mine) else {name: own}
            elif mine is not None and mine == its:
                kept[name] = None
        return self.model_copy(update=kept) if kept else self


class Residuals(Spec):
    """Quantiles of measured/predicted - 1 of whole steps, in one regime: `prefill`, `decode`, `decode_moe`."""

    low: Annotated[float, Field(gt=-1, le=0)]  # 5 %
    high: Annotated[float, Field(ge=0)]  # 95 %
    fit: Fit

    def widened(self, factor: float) -> Residuals:
        """The band of times that lie within a further `factor`, up or down: by assumption, if it is not 1."""
        if factor == 1.0:
            return self
        return Residuals(
            low=(1 + self.low) / factor - 1,
            high=(1 + self.high) * factor - 1,
            fit=self.fit.model_copy(update={"basis": "assumed"}),
        )


class ChipShare(Coefficients):
    """Of the rates that another chip's kernels reach, as fractions of the peaks, the share that they reach on this one.

    Their latencies are divided by it.
    """

    share: Fraction

    def applied_to(self, constants: Coefficients) -> Coefficients:
        """The other chip's constants of one kernel, on this chip."""
        found: dict[str, object] = {}
        for name, value in constants:
            if name.endswith("_fraction") and value is not None:
                found[name] = value * self.share
            elif name.endswith("_s"):
                found[name] = value / self.share
        source = f"{constants.fit.source}; at {self.share:g} of the rates: {self.fit.source}"
        fit = constants.fit.model_copy(update={"basis": "assumed", "source": source})
        return constants.model_copy(update={**found, "fit": fit})


class StepCoefficients(Spec):
    """The `[step_time]` tables of one hardware profile.

    `gpu` is the profile that they belong to: a profile refuses another's. With `transferred_from`, what is not
    given here is taken from that profile's fit, and counts as assumed. `error_factor`: of a chip whose kernels nobody
    measured here, by how much its steps may be off, up or down, in nine cases of ten; `ttft_error_factor`: the same of
    first tokens, where it differs. `chip_share`: what served requests on this chip say of the other's constants.
    """

    gpu: str | None = None
    source: str | None = None
    transferred_from: str | None = None
    error_factor: Annotated[float, Field(ge=1, le=10)] = 1.0
    ttft_error_factor: Annotated[float, Field(ge=1, le=10)] | None = None
    chip_share: ChipShare | None = None
    families: dict[str, KernelFamily] = Field(default_factory=dict)
    elementwise: ElementwiseCoefficients | None = None
    nccl: dict[str, CollectiveCoefficients] = Field(default_factory=dict)
    residuals: dict[str, Residuals] = Field(default_factory=dict)

    def without_copies(self, other: StepCoefficients) -> StepCoefficients:
        """What was fitted to this GPU: no constants of another's, and no error bands of another's if none is left."""
        families = {
            name: family.without_copies(other.families.get(name)) for name, family in self.families.items()
        }
        own = {name: family for name, family in families.items() if family != KernelFamily()}
        bands = {
            name: band for name, band in self.residuals.items() if own or band != other.residuals.get(name)
        }
        return self.model_copy(update={"families": own, "residuals": bands})

    @property
    def transferred(self) -> StepCoefficients:
        """The same as constants of another GPU, whose error bands are wider there."""
        bands = {
            name: Residuals(
                low=max(-0.95, band.low * TRANSFER_WIDENING),
                high=band.high * TRANSFER_WIDENING,
                fit=band.fit.model_copy(update={"basis": "assumed"}),
            )
            for name, band in self.residuals.items()
        }
        return self.model_copy(update={"residuals": bands})


TRANSFER_WIDENING = 1.5
"""Error bands of steps by another GPU's constants over those by its own: assumed, 2026-11-21."""


# --- what holds where nothing was measured ---

UNIVERSAL = Path(__file__).with_name("universal.toml")


@cache
def universal() -> StepCoefficients:
    """One set for all GPUs, of the only family `universal`. Raises MalformedFile."""
    tables = dict(read_data(UNIVERSAL))
    fit = tables.pop("fit")
    return make_row(UNIVERSAL, "", StepCoefficients, _with_fit(tables, fit))


def _with_fit(table: Table, fit: Table) -> Table:
    """The tables, their constants with `fit` unless they have one of their own."""
    if all(isinstance(value, dict) for value in table.values()):
        return {key: _with_fit(value, fit) for key, value in table.items()}
    return {"fit": fit, **table}


def universal_family() -> KernelFamily:
    """The kernels of `universal`."""
    return universal().families["universal"]


# Whose kernels stand in for an engine's that were not measured. TensorRT-LLM's before SGLang's: SGLang's MLA tables
# on Hopper are of kernels that other engines do not have.
# Last, what the validation harness ran on this very GPU: better than constants of no GPU at all.
FAMILY_ORDER = ("vllm", "trtllm", "sglang", "torch")

# An unmeasured kernel takes the constants of the nearest measured one.
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
"""Time of large products by Marlin over those at 16 bit: dequantizing keeps its tensor cores waiting.

Chosen on one A100, Qwen3-8B under vLLM 0.9.2: int4 (GPTQ, AWQ) 8,070 to 8,150 total tokens/s where bf16 has 10,340,
int8 7,120 (gpustack performance-lab, 2025). Longer prompts of Qwen2.5-7B under 0.6.3 agree: 1.1 to 1.6, and 1.6 (Qwen
speed benchmark, 2024-11).
"""

Found = TypeVar("Found", bound=Coefficients)


class InSteps(Protocol):
    """Turns constants of a table's short runs of a kernel (operator, key) into those of whole steps."""

    def __call__(self, constants: Coefficients, *, kernel: tuple[str, str]) -> Coefficients: ...


AttentionOperator = Literal["prefill_attention", "decode_attention", "mla_prefill", "mla_decode"]


class Lookup:
    """Finds the constants of a kernel: the engine's own family first, then others', then the universal set.

    Each with the factors of an `adjustment` on it. `assumed` collects what had no fit of its own, for warnings and for
    wider intervals; `capped` which parameters of the adjustment would beat a roof, and by which operator.
    `on_this_card` turns another card's constants into this one's, as for a lower power limit; `in_steps` those of a
    table's short runs into those of whole steps; None: as they are.
    """

    def __init__(
        self,
        coefficients: tuple[StepCoefficients, ...],
        family: str,
        on_this_card: Callable[[Coefficients], Coefficients] | None = None,
        in_steps: InSteps | None = None,
        *,
        adjustment: Adjustment | None = None,
    ) -> None:
        self._sources = coefficients
        self._family = family
        self._adjustment = adjustment or NONE
        self._on_this_card = on_this_card
        self._in_steps = in_steps
        self.capped: list[tuple[str, str]] = []
        self.own_sources = tuple(source for source in coefficients[:1] if source.families)
        self.assumed: list[str] = []

    def _every_source(self) -> Iterator[StepCoefficients]:
        yield from self._sources
        yield universal()

    def families(self) -> Iterator[tuple[KernelFamily, bool, bool]]:
        """Families in order of preference: is it this GPU's own fit of this engine's kernels, is it another card's."""
        for position, source in enumerate(self._sources):
            if self._family in source.families:
                yield source.families[self._family], position == 0, position > 0
        for position, source in enumerate(self._sources):
            for name in FAMILY_ORDER:
                if name != self._family and name in source.families:
                    yield source.families[name], False, position > 0
        yield universal_family(), False, False

    @overload
    def kernel(self, operator: Literal["gemm"], key: str) -> GemmCoefficients: ...

    @overload
    def kernel(self, operator: AttentionOperator, key: str) -> AttentionCoefficients: ...

    @overload
    def kernel(self, operator: Literal["moe"], key: str) -> MoeCoefficients: ...

    @overload
    def kernel(self, operator: str, key: str) -> Coefficients: ...

    def kernel(self, operator: str, key: str) -> Coefficients:
        """The coefficients of `operator` (a field of `KernelFamily`) for kernel `key`, or the nearest there are.

        Raises InvalidInput for a kernel that neither this GPU nor the universal set has constants for.
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
                    constants = self._by_marlin(constants, key)
                if transferred and self._on_this_card is not None:
                    constants = self._on_this_card(constants)
                if self._in_steps is not None:
                    constants = self._in_steps(constants, kernel=(operator, name))
                return self.adjusted(operator, constants)
        known = ", ".join(getattr(universal_family(), operator))
        raise InvalidInput(
            f"the step model has no constants for {operator} kernel {key!r}, it knows {known}: use another format, "
            f"or a GPU profile with a table [step_time.families.{self._family}.{operator}.{key}]"
        )

    def _by_marlin(self, constants: Coefficients, key: str) -> Coefficients:
        """A weight-only kernel of another engine as Marlin, which is slower where products are large."""
        sixteen = next(f.gemm["bf16"] for f, *_ in self.families() if "bf16" in f.gemm).compute_fraction
        if self._family not in MARLIN_FAMILIES or not isinstance(constants, GemmCoefficients):
            return constants
        fraction = sixteen / MARLIN_SLOWDOWN[key]
        if constants.compute_fraction <= fraction:
            return constants
        fit = constants.fit.model_copy(update={"basis": "assumed"})
        return constants.model_copy(update={"compute_fraction": fraction, "fit": fit})

    def all_reduce(self, family_name: str | None = None) -> AllReduceCoefficients:
        """The engine's own all-reduce kernel, or that of another family which it calls."""
        called = self if family_name in (None, self._family) else Lookup(self._sources, family_name)
        for family, own, _ in called.families():
            if family.all_reduce is not None:
                if not own:
                    self.assumed.append("all_reduce")
                return self.adjusted("all_reduce", family.all_reduce)
        raise AssertionError("the universal family has an all-reduce")

    def elementwise(self) -> ElementwiseCoefficients:
        """The family's own, then the GPU's."""
        own = (s.families[self._family].elementwise for s in self._sources if self._family in s.families)
        fitted = (s.elementwise for s in self._every_source())
        found = next(entry for entry in chain(own, fitted) if entry is not None)
        return self.adjusted("elementwise", found)

    def nccl(self, kind: str) -> CollectiveCoefficients:
        found = next(s.nccl[kind] for s in self._every_source() if kind in s.nccl)
        return self.adjusted("nccl", found)

    def adjusted(self, operator: str, constants: Found) -> Found:
        """Constants of an operator that stand elsewhere, with the adjustment's factors on them."""
        values, capped = self._adjustment.adjusted(operator, constants)
        self.capped += [(name, operator) for name in capped]
        return values

    def residuals(self, regime: str) -> Residuals:
        return next(s.residuals[regime] for s in self._every_source() if regime in s.residuals)
