"""Constants of the step model: a dozen numbers per kernel family, each with its source.

A *fraction* is relative to the datasheet's peak (dense FLOP/s, HBM or link bytes/s) and at most 1 in a profile; an
adjustment by a faster server may raise it above 1. A *sharpness* is the p of the p-norm (`norm` in the formulas) that
combines compute and memory time: 1 adds them, a large p takes the maximum. In the formulas, F is FLOPs, P peak FLOP/s,
B bytes of memory traffic and BW the HBM bandwidth. Families are the kernel libraries of engines (`vllm`, `trtllm`,
`sglang`), because kernels were measured per engine. The fitted numbers are in `hardware_profiles/*.toml` under
`[step_time]`.
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
    """Source of a coefficient set, and its error on groups of measurements that were not used in the fit."""

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
        """Return a copy with the changed `values` and the basis "assumed"; `note` is added to the source."""
        source = self.fit.source if note is None else f"{self.fit.source}; {note}"
        fit = self.fit.model_copy(update={"basis": "assumed", "source": source})
        return self.model_copy(update={**values, "fit": fit})


class RooflineCoefficients(Coefficients):
    """Time of a kernel on the roofline: `norm(F/(compute·P), B/(bandwidth·BW)) + fixed`; subclasses add terms."""

    compute_fraction: Fraction
    bandwidth_fraction: Fraction
    sharpness: Sharpness
    fixed_s: Seconds


class GemmCoefficients(RooflineCoefficients):
    """Time of a GEMM: `norm(F/(compute·P), B/(bandwidth·BW)) + fixed + per_k·K + activation quantization`."""

    per_k_s: Seconds = 0.0  # serial loop over K in one thread block
    quantize_fraction: Fraction | None = (
        None  # of HBM bandwidth when quantizing activations; None: no quantization
    )


class AttentionCoefficients(RooflineCoefficients):
    """Time of attention: `norm(F/(compute·P), B/(bandwidth·BW), occupancy·batch·kv_heads/SMs, per_token·C) +
    per_doubling·log2(1 + C/64) + fixed`.

    C is the mean context length of the decode requests. A KV cache that is split over more thread blocks needs deeper
    reductions (`per_doubling`). A kernel that does not split it processes the whole context in one block, even when
    other blocks are idle (`per_token`). Also used for MLA.
    """

    occupancy_s: Seconds = 0.0
    per_doubling_s: Seconds = 0.0
    per_token_s: Seconds = 0.0  # per token of a context that one block processes alone


class MoeCoefficients(RooflineCoefficients):
    """Time of experts: `norm(F/(compute·P), B/(bandwidth·BW)) + routed bytes/(routed·BW) + fixed + per_k·K`.

    B: bytes of the distinct experts used. K: inner dimensions of an expert's first and last matrix multiplication,
    over which one thread block loops. `tile_rows`: rows of a tile, for kernels that process a buffer with room for one
    whole tile per expert on the rank, because the host does not know the counts: F and the routed bytes are then those
    of `tokens·k + experts·(tile_rows - 1)` rows. `tilt`: the whole time is multiplied by (tokens of the step /
    32)**tilt; it is calibrated on the user's own runs, and 0 in the fit.
    """

    routed_fraction: Fraction  # of HBM bandwidth when permuting and combining routed tokens
    per_k_s: Seconds = 0.0
    local_routing: bool = False  # only the rank's own tokens are permuted, not the whole batch
    tile_rows: Annotated[int, Field(ge=1)] = 1  # 1: no padding
    tilt: float = 0.0


class AllReduceCoefficients(Coefficients):
    """Time of an all-reduce: `per_rank·(n-1) + min(one_shot_fixed + S(n-1)/(one_shot·link), norm(two_shot_fixed,
    V/(two_shot·link)))`.

    n: ranks; S: bytes of the message; V = 2S(n-1)/n. `two_shot_gain` multiplies the two-shot fraction for each
    doubling of ranks from 2 to 8, because switches that reduce in the network (NVLS) help more with more ranks. A
    sharpness below 1 models bandwidth that rises slowly with the message size.
    """

    one_shot_fixed_s: Seconds
    one_shot_fraction: Fraction
    two_shot_fixed_s: Seconds
    two_shot_fraction: Fraction
    two_shot_gain: Annotated[float, Field(ge=0.5, le=2)] = 1.0
    per_rank_s: Seconds = 0.0
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class CollectiveCoefficients(Coefficients):
    """Time of an NCCL collective: `norm(fixed + per_rank·(n-1), V/(bandwidth·link))`, n: ranks, V: bytes a rank sends.

    A sharpness below 1 (more than the sum of both terms) models the low bandwidth of NCCL at medium sizes.
    """

    fixed_s: Seconds
    per_rank_s: Seconds
    bandwidth_fraction: Fraction
    sharpness: Annotated[float, Field(ge=0.3, le=16)] = 1.0


class ElementwiseCoefficients(Coefficients):
    """Time of norms, RoPE, activations, residuals and copies: `B/(bandwidth·BW) + fixed` per kernel."""

    bandwidth_fraction: Fraction
    fixed_s: Seconds


class KernelFamily(Spec):
    """Fitted constants of one engine's kernels; keys: kernel names (GEMM, experts) or KV cache types (attention)."""

    gemm: dict[str, GemmCoefficients] = Field(default_factory=dict)
    prefill_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    decode_attention: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_prefill: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    mla_decode: dict[str, AttentionCoefficients] = Field(default_factory=dict)
    moe: dict[str, MoeCoefficients] = Field(default_factory=dict)
    all_reduce: AllReduceCoefficients | None = None
    elementwise: ElementwiseCoefficients | None = None  # only if different from the GPU's

    def without_copies(self, other: KernelFamily | None) -> KernelFamily:
        """Return the family without the kernels whose constants are equal in `other`, the family of another GPU."""
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
    """5 % and 95 % quantiles of measured/predicted - 1 for whole `prefill`, `decode` or `decode_moe` steps."""

    low: Annotated[float, Field(gt=-1, le=0)]  # 5 %
    high: Annotated[float, Field(ge=0)]  # 95 %
    fit: Fit

    def widen(self, factor: float) -> Residuals:
        """Return the error interval, wider by `factor` in both directions; basis "assumed" unless `factor` is 1."""
        if factor == 1.0:
            return self
        return Residuals(
            low=(1 + self.low) / factor - 1,
            high=(1 + self.high) * factor - 1,
            fit=self.fit.model_copy(update={"basis": "assumed"}),
        )


class ChipShare(Coefficients):
    """Ratio of the rates that this chip achieves to those of another chip; latencies are divided by this ratio."""

    share: Fraction

    def convert_constants(self, constants: Coefficients) -> Coefficients:
        """Return the constants of one kernel on the other chip, converted to this chip."""
        found: dict[str, object] = {}
        for name, value in constants:
            if name.endswith("_fraction") and value is not None:
                found[name] = value * self.share
            elif name.endswith("_s"):
                found[name] = value / self.share
        return constants.mark_assumed(f"rates multiplied by {self.share:g}: {self.fit.source}", **found)


class StepCoefficients(Spec):
    """The `[step_time]` tables of one hardware profile.

    `gpu` names the profile that the tables were fitted for; a profile with another name rejects them. Missing constants
    are taken from the profile `transferred_from` and count as assumed. `chip_share` corrects those constants; it is
    fitted on requests served on this chip. `error_factor`, for a chip without measured kernels: 90 % of measured step
    times are within this factor of predicted times. `ttft_error_factor`: the same for TTFT, if it differs.
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
        """Return a copy without the constants that equal those of another GPU, `other`. If no constants remain, error
        intervals that are equal in `other` are also removed."""
        its, bands = other.families, self.residuals
        families = {name: family.without_copies(its.get(name)) for name, family in self.families.items()}
        own = {name: family for name, family in families.items() if family != KernelFamily()}
        bands = {name: band for name, band in bands.items() if own or band != other.residuals.get(name)}
        return self.model_copy(update={"families": own, "residuals": bands})

    @property
    def transferred(self) -> StepCoefficients:
        """Return these constants for use on another GPU, with error intervals 1.5 times as wide."""
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
"""Factor by which a step's error interval is wider with the constants of another GPU: assumed, 2026-11-21."""

UNIVERSAL = Path(__file__).with_name("universal.toml")


@cache
def universal() -> StepCoefficients:
    """Return the constants that apply to any GPU; their only kernel family is `universal`. Raises MalformedFile."""
    tables = dict(read_data(UNIVERSAL))
    fit = tables.pop("fit")
    return make_row(UNIVERSAL, "", StepCoefficients, _with_fit(tables, fit))


def _with_fit(table: Table, fit: Table) -> Table:
    if all(isinstance(value, dict) for value in table.values()):
        return {key: _with_fit(value, fit) for key, value in table.items()}
    return {"fit": fit, **table}


def universal_family() -> KernelFamily:
    """Return the only kernel family of the constants that apply to any GPU."""
    return universal().families["universal"]
