"""Constants of the step model: a dozen numbers per kernel family, each with its source.

A *fraction* is relative to the datasheet's peak (dense FLOP/s, HBM or link bytes/s) and at most 1, so no operator is
faster than the roofline. A *sharpness* is the p of the norm that combines compute and memory time: 1 adds them, a
large p takes the maximum. Families are the kernel libraries of engines (`vllm`, `trtllm`, `sglang`), because they were
measured that way. The fitted numbers are in `hardware_profiles/*.toml` under `[step_time]`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from capacity.base.data_files import Table, make_row, read_data
from capacity.base.spec import Spec

Basis = Literal["datasheet", "measured", "fitted", "assumed"]


class Fit(Spec):
    """Source of a coefficient set, and its error on groups that were not used in the fit."""

    basis: Basis
    source: str
    date: str
    rows: int = 0
    held_out_by: str | None = None  # unit of a held-out group: shapes, a GPU, an engine
    median_error: float | None = None  # absolute relative error, held out
    p90_error: float | None = None


Fraction = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]
Sharpness = Annotated[float, Field(ge=1, le=16)]


class Coefficients(Spec):
    """Base of all coefficient sets."""

    fit: Fit

    def mark_assumed(self, note: str | None = None, **values: object) -> Self:
        """Return a copy with other values and the basis "assumed"; `note` is added to the source."""
        source = self.fit.source if note is None else f"{self.fit.source}; {note}"
        fit = self.fit.model_copy(update={"basis": "assumed", "source": source})
        return self.model_copy(update={**values, "fit": fit})


class RooflineCoefficients(Coefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + fixed`; subclasses add terms."""

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds


class GemmCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + fixed + per_k·K + activation quantization`."""

    per_k_s: Seconds = 0.0  # serial loop over K in one thread block
    quantize_fraction: Fraction | None = (
        None  # of HBM bandwidth when quantizing activations; None: no quantization
    )


class AttentionCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW), occupancy·batch·kv_heads/SMs, per_token·C) + per_doubling·log2(1 + C/64)
    + fixed`.

    C is the mean context of a decode row. Splitting a longer KV over blocks needs deeper reductions. A kernel that
    does not split it walks through the whole context in one block, even when other blocks are idle. Also used for MLA.
    """

    occupancy_s: Seconds = 0.0
    per_doubling_s: Seconds = 0.0
    per_token_s: Seconds = 0.0  # per token of a context that one block processes alone


class MoeCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + routed bytes/(routed·BW) + fixed + per_k·K`.

    B: bytes of the distinct experts used. K: rows of an expert's first and last product, which one thread block walks
    through. `tilt`: exponent on the step's tokens that multiplies the whole time, calibrated on the user's own runs; 0
    as fitted.
    """

    routed_fraction: Fraction  # of HBM bandwidth when permuting and combining routed tokens
    per_k_s: Seconds = 0.0
    local_routing: bool = False  # only the rank's own tokens are permuted, not the whole batch
    tilt: float = 0.0


class AllReduceCoefficients(Coefficients):
    """`per_rank·(n-1) + min(one_shot_fixed + S(n-1)/(one_shot·link), norm(two_shot_fixed, V/(two_shot·link)))`.

    V = 2S(n-1)/n. `two_shot_gain` multiplies the two-shot fraction for each doubling of ranks from 2 to 8, up to 1,
    because switches that reduce in the network (NVLS) help more with more ranks. A sharpness below 1 models the slow
    rise to full rate.
    """

    one_shot_fixed_s: Seconds
    one_shot_fraction: Fraction
    two_shot_fixed_s: Seconds
    two_shot_fraction: Fraction
    two_shot_gain: Annotated[float, Field(ge=0.5, le=2)] = 1.0
    per_rank_s: Seconds = 0.0
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class CollectiveCoefficients(Coefficients):
    """NCCL: `norm(fixed + per_rank·(n-1), V/(bandwidth·link))`, where V is the bytes that leave a rank.

    A sharpness below 1 models the slow rise through NCCL's protocols: at medium sizes the time exceeds the sum of both
    terms.
    """

    fixed_s: Seconds
    per_rank_s: Seconds
    bandwidth_fraction: Fraction
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class ElementwiseCoefficients(Coefficients):
    """Norms, RoPE, activations, residuals and copies: `B/(bandwidth·BW) + fixed` per kernel."""

    bandwidth_fraction: Fraction
    fixed_s: Seconds


class KernelFamily(Spec):
    """Kernels of one engine. Keys: GEMM and expert kernels as in `WeightFormat.kernel`; attention by KV dtype."""

    gemm: dict[str, GemmCoefficients] = Field(default_factory=dict)
    prefill_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    decode_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_prefill: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_decode: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    moe: dict[str, MoeCoefficients] = Field(default_factory=dict)
    all_reduce: AllReduceCoefficients | None = None
    elementwise: ElementwiseCoefficients | None = None  # only if different from the GPU's

    def without_copies(self, other: KernelFamily | None) -> KernelFamily:
        """Return the kernels whose constants differ from those of another GPU."""
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

    def widen(self, factor: float) -> Residuals:
        """Return the interval widened by `factor` up and down; its basis is "assumed" unless `factor` is 1."""
        if factor == 1.0:
            return self
        return Residuals(
            low=(1 + self.low) / factor - 1,
            high=(1 + self.high) * factor - 1,
            fit=self.fit.model_copy(update={"basis": "assumed"}),
        )


class ChipShare(Coefficients):
    """Share of another chip's achieved rates that kernels reach on this chip; latencies are divided by it."""

    share: Fraction

    def convert_constants(self, constants: Coefficients) -> Coefficients:
        """Return the other chip's constants of one kernel, converted to this chip."""
        found: dict[str, object] = {}
        for name, value in constants:
            if name.endswith("_fraction") and value is not None:
                found[name] = value * self.share
            elif name.endswith("_s"):
                found[name] = value / self.share
        return constants.mark_assumed(f"rates multiplied by {self.share:g}: {self.fit.source}", **found)


class StepCoefficients(Spec):
    """The `[step_time]` tables of one hardware profile.

    `gpu` is the profile that they belong to; a profile rejects another's tables. With `transferred_from`, missing
    constants are taken from that profile's fit and count as assumed. `error_factor`: for a chip without measured
    kernels, the factor, up or down, that its step times are within in nine cases of ten. `ttft_error_factor`: the same
    for first tokens, if it differs. `chip_share`: correction of the other chip's constants, fitted on requests served
    on this chip.
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
        """Return the constants fitted to this GPU only; if none remain, without the other's error intervals."""
        its, bands = other.families, self.residuals
        families = {name: family.without_copies(its.get(name)) for name, family in self.families.items()}
        own = {name: family for name, family in families.items() if family != KernelFamily()}
        bands = {name: band for name, band in bands.items() if own or band != other.residuals.get(name)}
        return self.model_copy(update={"families": own, "residuals": bands})

    @property
    def transferred(self) -> StepCoefficients:
        """Return these constants as used for another GPU, with wider error intervals."""
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
"""Factor on error intervals of steps when another GPU's constants are used: assumed, 2026-11-21."""

UNIVERSAL = Path(__file__).with_name("universal.toml")


@cache
def universal() -> StepCoefficients:
    """Return the constants for all GPUs, whose only family is `universal`. Raises MalformedFile."""
    tables = dict(read_data(UNIVERSAL))
    fit = tables.pop("fit")
    return make_row(UNIVERSAL, "", StepCoefficients, _with_fit(tables, fit))


def _with_fit(table: Table, fit: Table) -> Table:
    """Add `fit` to all constants that have none of their own."""
    if all(isinstance(value, dict) for value in table.values()):
        return {key: _with_fit(value, fit) for key, value in table.items()}
    return {"fit": fit, **table}


def universal_family() -> KernelFamily:
    """Return the kernels of `universal`."""
    return universal().families["universal"]
