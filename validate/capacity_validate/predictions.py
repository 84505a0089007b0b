"""Predict the times of single cases with the formulas that the step model uses for whole steps."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from capacity.hardware import HardwareProfile
from capacity.hardware.kernel_lookup import KernelLookup
from capacity.model import ModelSpec
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.step.collectives import all_reduce_seconds, nccl_seconds, ring_all_reduce_bytes
from capacity.step.expert_load import Experts
from capacity.step.model import StepModel
from capacity.step.operators import ACTIVATION_BYTES, Device, attention_seconds, gemm_seconds
from capacity.step.setting import HostTime, StepSetting, coefficient_sources
from capacity_validate.cases import FORMATS, OPERATORS, Case


def step_shape(case: Case, window_tokens: int | None = None) -> StepShape:
    """Return the step shape of a whole-model case: one whole prompt, or a decode batch of equal contexts."""
    if case.operator.endswith(" prefill"):
        return prefill_shape(1, case["tokens"], window_tokens=window_tokens)
    return decode_shape(case["batch"], case["context"], window_tokens=window_tokens)


FAMILY = "torch"  # the kernels that the harness runs


@dataclass(frozen=True, slots=True)
class Target:
    """The step-model constants that a case calibrates: entry `key` of the `KernelFamily` field `operator`, or of the
    table `nccl`. `engine`: `name@version` if they are those of an engine's own operators, else an empty string."""

    operator: str
    key: str
    engine: str = ""

    @property
    def label(self) -> str:
        return " ".join(part for part in (self.operator, self.key, self.engine) if part)


def calibration_target(case: Case) -> Target | None:
    """Return the step-model constants that a case can calibrate; None if the step model has none for it."""
    target = _kernel_target(case)
    return target if target is None else replace(target, engine=case.engine)


def _kernel_target(case: Case) -> Target | None:
    if case.operator == "gemm":
        key = case.of_format("calibrates", case.kernel)
        return Target("gemm", key) if key else None
    if case.operator in ("prefill_attention", "decode_attention", "mla_decode", "mla_prefill"):
        return Target(case.operator, "8bit" if case.kernel == "fp8" else "16bit")
    if case.operator == "moe":
        return Target("moe", case.kernel)
    if case.operator == "elementwise":
        return Target("elementwise", "")
    if case.operator == "collective":
        return Target("all_reduce", "") if case.engine else Target("nccl", case.variant)
    return None


def is_calibration_case(case: Case, profile: HardwareProfile) -> bool:
    """Return whether a case is used to fit constants of `profile`, because engines run its kernel variant."""
    engines_run = OPERATORS.get(case.operator, {}).get("engines_run")
    follows = (
        bool(case.engine)
        or engines_run is None
        or case.variant == engines_run["cuda" if profile.architecture != "cpu" else "cpu"]
    )
    return follows and calibration_target(case) is not None


Formula = Callable[[Any], float]  # constants of one family -> seconds


def formula(case: Case, profile: HardwareProfile) -> Formula | None:
    """Return the function that computes a case's seconds from its kernel's constants, for fits and predictions."""
    builder = _FORMULAS.get(case.operator)
    return None if builder is None else builder(case, profile)


def peak_flops_per_s(profile: HardwareProfile, kernel: str) -> float | None:
    """Return the profile's peak FLOP/s for a kernel's format; None if the profile does not state it."""
    return profile.dense_flops_per_s.get(FORMATS.get(kernel, {}).get("peak", kernel))


def _gemm(case: Case, profile: HardwareProfile) -> Formula | None:
    peak = peak_flops_per_s(profile, case.kernel)
    if peak is None:
        return None
    n, k, bits = case["n"], case["k"], case.of_format("bits", 16.0)

    return lambda constants: gemm_seconds(
        case["m"],
        n,
        k,
        weight_bytes=n * k * case.of_format("weight_bits", bits) / 8,
        activation_bits=bits,
        flops_per_s=peak,
        hbm_bytes_per_s=profile.hbm_bytes_per_s,
        # an engine's operators quantize activations too; the harness's own kernels get quantized ones
        constants=constants
        if case.engine
        else SimpleNamespace(**{**vars(constants), "quantize_fraction": None}),  # type: ignore[arg-type]
    )


def _kv_value_bytes(case: Case) -> float:
    return float(case.of_format("bits", 16.0) / 8)


def _attention(
    case: Case,
    profile: HardwareProfile,
    flops: float,
    moved: float,
    rows: float,
    *,
    mean_context: float = 0.0,
) -> Formula:
    rates = profile.dense_flops_per_s
    peak = rates["fp32" if case.kernel == "fp32" else "bf16"]

    return lambda constants: attention_seconds(
        flops,
        moved,
        kv_head_rows=rows,
        mean_context=mean_context,
        sm_count=profile.sm_count,
        flops_per_s=peak,
        hbm_bytes_per_s=profile.hbm_bytes_per_s,
        constants=constants,
    )


def _prefill(case: Case, profile: HardwareProfile) -> Formula:
    batch, tokens, width = case["batch"], case["tokens"], case["heads"] * case["head_dim"]
    kv_bytes = 2 * case["kv_heads"] * case["head_dim"] * _kv_value_bytes(case)
    pairs = batch * tokens * (tokens + 1) / 2
    moved = batch * tokens * (kv_bytes + 2 * width * ACTIVATION_BYTES)
    return _attention(case, profile, 4.0 * width * pairs, moved, batch * case["kv_heads"])


def _decode(case: Case, profile: HardwareProfile) -> Formula:
    batch, context, width = case["batch"], case["context"], case["heads"] * case["head_dim"]
    kv_bytes = 2 * case["kv_heads"] * case["head_dim"] * _kv_value_bytes(case)
    moved = batch * (context * kv_bytes + 2 * width * ACTIVATION_BYTES)
    rows = batch * case["kv_heads"]
    return _attention(case, profile, 4.0 * width * batch * context, moved, rows, mean_context=context)


def _latent_prefill(case: Case, profile: HardwareProfile) -> Formula:
    batch, heads, tokens = case["batch"], case["heads"], case["tokens"]
    keys, values = case["nope"] + case["rope"], case["value"]
    pairs = batch * tokens * (tokens + 1) / 2
    moved = batch * tokens * heads * (2 * keys + 2 * values) * ACTIVATION_BYTES
    return _attention(case, profile, 2.0 * heads * (keys + values) * pairs, moved, batch * heads)


def _latent_decode(case: Case, profile: HardwareProfile) -> Formula:
    batch, heads, context = case["batch"], case["heads"], case["context"]
    latent, rope = case["latent"], case["rope"]
    flops = 2.0 * heads * (2 * latent + rope) * batch * context
    moved = batch * (
        context * (latent + rope) * _kv_value_bytes(case) + heads * (2 * latent + rope) * ACTIVATION_BYTES
    )
    return _attention(case, profile, flops, moved, batch, mean_context=context)


def _moe(case: Case, profile: HardwareProfile) -> Formula | None:
    peak = peak_flops_per_s(profile, case.kernel)
    if peak is None:
        return None
    bits = case.of_format("bits", 16.0)
    weight_bits, activation_bits = (case.of_format(f"{of}_bits", bits) for of in ("weight", "activation"))
    device = Device(hbm_bytes_per_s=profile.hbm_bytes_per_s, sm_count=profile.sm_count)
    shape = StepShape(prefill_sequences=1, prefill_tokens=case["tokens"])

    return lambda constants: Experts(
        name="experts",
        count=1,
        hidden=case["hidden"],
        intermediate=case["intermediate"],
        matrices=3,
        num_experts=case["experts"],
        experts_per_token=case["top_k"],
        expert_ranks=1,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        flops_per_s=peak,
        device=device,
        constants=constants,
    ).seconds(shape)


def _elementwise(case: Case, profile: HardwareProfile) -> Formula:
    parts = ("norm", "norm", "rope", "activation") if case.variant == "layer" else (case.variant,)
    moved = sum(_row_bytes(case, part) for part in parts)

    def seconds(constants: Any) -> float:
        streaming = case["rows"] * moved / (constants.bandwidth_fraction * profile.hbm_bytes_per_s)
        return float(streaming + len(parts) * constants.fixed_s)

    return seconds


def _row_bytes(case: Case, part: str) -> float:
    """Return the bytes read and written per token in the step model, for one elementwise kernel (`part`)."""
    if part == "norm":
        return 4 * case["hidden"] * ACTIVATION_BYTES
    if part == "rope":
        width = (case["heads"] + case["kv_heads"]) * case["head_dim"]
        return 2 * width * ACTIVATION_BYTES + 2 * case["kv_heads"] * case["head_dim"] * _kv_value_bytes(case)
    return 3 * case["intermediate"] * ACTIVATION_BYTES


def _collective(case: Case, profile: HardwareProfile) -> Formula:
    ranks, size = case["ranks"], case["bytes"]
    sent = {"all_reduce": ring_all_reduce_bytes(size, ranks), "all_gather": size * (ranks - 1.0)}.get(
        case.variant, float(size)
    )
    link_bytes_per_s = profile.link_for(ranks).bytes_per_s
    if case.engine:
        return lambda constants: all_reduce_seconds(
            size, ranks, link_bytes_per_s=link_bytes_per_s, constants=constants
        )
    return lambda constants: nccl_seconds(sent, ranks, link_bytes_per_s=link_bytes_per_s, constants=constants)


_FORMULAS: Mapping[str, Callable[[Case, HardwareProfile], Formula | None]] = {
    "gemm": _gemm,
    "prefill_attention": _prefill,
    "decode_attention": _decode,
    "mla_decode": _latent_decode,
    "mla_prefill": _latent_prefill,
    "moe": _moe,
    "elementwise": _elementwise,
    "collective": _collective,
}


def profile_lookup(profile: HardwareProfile, engine: str = "") -> KernelLookup:
    """Return a lookup of kernel constants: the profile's for the harness, then for engines, then those for any GPU.

    With an `engine` (`name@version`), the engine's constants come first.
    """
    return KernelLookup(coefficient_sources(profile), engine.partition("@")[0] or FAMILY, engine=engine)


def case_constants(case: Case, lookup: KernelLookup) -> Any:
    """Return the constants that the step model uses for a case; None if it has none."""
    target = calibration_target(case)
    if target is None:
        return None
    if target.operator == "elementwise":
        return lookup.elementwise()
    if target.operator == "all_reduce":
        return lookup.all_reduce()
    if target.operator == "nccl":
        return lookup.nccl(target.key)
    return lookup.kernel(target.operator, target.key)


@dataclass(frozen=True)
class Predictor:
    """Predicts a case's time. Whole-model steps need `model` (or `unseen`, a second model) and `host` time."""

    profile: HardwareProfile
    _: KW_ONLY
    model: ModelSpec | None = None
    host: HostTime | None = None
    unseen: ModelSpec | None = None
    _steps: dict[tuple[str, int], StepModel] = field(default_factory=dict)
    _lookups: dict[str, KernelLookup] = field(default_factory=dict)

    def step_model(self, layers: int | None = None) -> StepModel:
        if self.model is None:
            raise ValueError("no model was given")
        return self._step_model(self.model, layers or self.model.num_layers)

    def _step_model(self, model: ModelSpec, depth: int) -> StepModel:
        from capacity_validate.small_models import cut_layers

        key = (model.name, depth)
        if key not in self._steps:
            self._steps[key] = StepModel(
                StepSetting(
                    model=cut_layers(model, depth),
                    profile=self.profile,
                    host=self.host or HostTime(),
                    kernel_family=FAMILY,
                )
            )
        return self._steps[key]

    def seconds(self, case: Case) -> float | None:
        """Return the predicted seconds; None if the step model does not cover the case."""
        if case.is_step:
            model = self.model if case.operator.startswith("model ") else self.unseen
            if model is None:
                return None
            steps = self._step_model(model, case["layers"])
            return steps.step_seconds(step_shape(case, steps.model.window_tokens))
        if case.operator == "bandwidth":
            moved = case["bytes"] * (2 if case.variant == "copy" else 1)
            return moved / self.profile.hbm_bytes_per_s
        if case.operator == "transfer":
            return case["bytes"] / self.profile.pcie.bytes_per_s
        if case.engine not in self._lookups:
            self._lookups[case.engine] = profile_lookup(self.profile, case.engine)
        constants = case_constants(case, self._lookups[case.engine])
        function = formula(case, self.profile)
        return None if constants is None or function is None else function(constants)
