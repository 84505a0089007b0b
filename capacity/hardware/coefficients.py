"""The constants of the step model: a dozen numbers a kernel family, each with where it comes from.

A *fraction* is of the datasheet's peak (dense FLOP/s, HBM or link bytes/s) and at most 1, so that no operator is
ever faster than a roof. A *sharpness* is the p of the norm that joins compute and memory time: 1 adds them, large
takes the larger. Families are the kernel libraries of engines (`vllm`, `trtllm`, `sglang`), because that is how
they were measured. The fitted numbers live in `hardware_profiles/*.toml` under `[step_time]`.
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

    def mark_assumed(self, note: str | None = None, **values: object) -> Self:
        """The same kernel with other values, which count as assumed; `note` is added to their source."""
        source = self.fit.source if note is None else f"{self.fit.source}; {note}"
        fit = self.fit.model_copy(update={"basis": "assumed", "source": source})
        return self.model_copy(update={**values, "fit": fit})


class RooflineCoefficients(Coefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + fixed`, and more by kernel."""

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds


class GemmCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + fixed + per_k·K + activation quantization`."""

    per_k_s: Seconds = 0.0  # serial walk over K of one thread block
    quantize_fraction: Fraction | None = None  # of HBM bandwidth, quantizing activations; None: not done


class AttentionCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW), occupancy·batch·kv_heads/SMs, per_token·C) + per_doubling·log2(1 + C/64)
    + fixed`.

    C is the mean context of a decode row: splitting a longer KV over blocks takes deeper reductions; a kernel that does
    not split it has one block walk through all of it, however few others work. Also MLA.
    """

    occupancy_s: Seconds = 0.0
    per_doubling_s: Seconds = 0.0
    per_token_s: Seconds = 0.0  # of a context that no other block shares


class MoeCoefficients(RooflineCoefficients):
    """`norm(F/(compute·P), B/(bandwidth·BW)) + routed bytes/(routed·BW) + fixed + per_k·K`.

    B: the distinct experts touched; K: the rows of an expert's first product and of its last, which one thread block
    walks through. `tilt`: all of it grows with this power of the tokens besides, as measured runs of somebody's own
    said; 0 as fitted.
    """

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

    def widen(self, factor: float) -> Residuals:
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
        return constants.mark_assumed(f"at {self.share:g} of the rates: {self.fit.source}", **found)


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
        its, bands = other.families, self.residuals
        families = {name: family.without_copies(its.get(name)) for name, family in self.families.items()}
        own = {name: family for name, family in families.items() if family != KernelFamily()}
        bands = {name: band for name, band in bands.items() if own or band != other.residuals.get(name)}
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
