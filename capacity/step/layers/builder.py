"""What all layers are built with: one setting's rates and links, and products, norms and attention made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from capacity.base.errors import InvalidInput
from capacity.hardware.coefficients import AttentionCoefficients, AttentionOperator
from capacity.model.layers import LayerGroup
from capacity.model.quantization import Execution, PartKind, WeightFormat
from capacity.step import StepShape
from capacity.step.operators import (
    ACTIVATION_BYTES,
    Attention,
    Device,
    Gemm,
    Operator,
    RowCount,
    Traffic,
    all_tokens,
)
from capacity.step.setting import StepSetting

# Small kernels of one layer, as vLLM 0.2x and SGLang 0.5 launch them in decode (read off their model code): two
# norms with the residual, rope with the cache write; and what some layers have besides.
KERNELS_PER_LAYER = 3.0
KERNELS_OF_MOE = 2.0  # top-k of the router, sum with the shared experts or padding of the batch

AttentionWork = Callable[[StepShape], tuple[float, float, float, float]]
"""FLOPs, bytes, rows of KV heads and the mean context of decode rows, of one layer. A frozen dataclass, so that equal
operators merge, and that `capacity.step.export` finds the constants of its own formula in it."""
NO_WORK = (0.0, 0.0, 0.0, 0.0)


class MixerOperators(NamedTuple):
    """Of the layers of one group: what depends on the rows alone, and what depends on their contexts."""

    products: list[Operator]
    attention: list[Operator]


class Builder:
    """Makes the operators of one setting; `notes` say what stands in for a missing kernel."""

    def __init__(self, setting: StepSetting) -> None:
        profile = setting.profile
        self.setting = setting
        self.model = setting.model
        self.lookup = setting.lookup()
        self.notes: list[str] = []
        self.device = Device(hbm_bytes_per_s=profile.hbm_bytes_per_s, sm_count=profile.sm_count)
        self.flops_per_s = profile.dense_flops_per_s
        self.kv_cache = setting.kv_cache

    def weights(self, kind: PartKind) -> tuple[WeightFormat, Execution]:
        """Format of a kind of parameters, and what multiplies it here.

        Raises InvalidInput for what this GPU has neither tensor cores nor a fallback for.
        """
        stored = self.setting.weights.format_of(kind)
        execution = stored.execution(self.flops_per_s)
        dtype = execution.compute_dtype
        if dtype not in self.flops_per_s and dtype != "fp32":
            raise InvalidInput(
                f"{stored.name} multiplies in {dtype}, which {self.setting.profile.name} has no tensor cores for "
                f"(it has {', '.join(self.flops_per_s)}); use a weight-only format such as awq, or another GPU"
            )
        if execution.note:
            self.notes.append(execution.note)
        return stored, execution

    def peak(self, compute_dtype: str) -> float:
        """Dense FLOP/s of the tensor cores; fp32 runs as TF32 where there is one."""
        rates = self.flops_per_s
        if compute_dtype == "fp32":
            return rates.get("tf32", rates.get("fp32", rates["bf16"]))
        return rates[compute_dtype]

    def gemm(
        self, name: str, kind: PartKind, *, k: float, n: float, count: int, rows: RowCount = all_tokens
    ) -> Gemm:
        """`count` products of [rows, k] with [k, n] weights of a kind."""
        stored, execution = self.weights(kind)
        return Gemm(
            name=name,
            count=count,
            k=k,
            n=n,
            weight_bytes=k * n * stored.bytes_per_weight,
            activation_bits=activation_bits(execution.compute_dtype),
            flops_per_s=self.peak(execution.compute_dtype),
            device=self.device,
            constants=self.lookup.kernel("gemm", execution.kernel),
            rows=rows,
        )

    def attention(
        self, name: str, kernel: AttentionOperator, work: AttentionWork, *, count: int
    ) -> Attention:
        """Attention of `count` layers in one phase, by one of the measured kernels."""
        dtype = "8bit" if self.kv_cache.value_bits <= 8 else "16bit"
        constants = self.lookup.kernel(kernel, dtype)
        rate = self.peak("fp32" if self.model.dtype == "fp32" else "bf16")
        return self.attention_with(name, work, count=count, flops_per_s=rate, constants=constants)

    def attention_with(
        self,
        name: str,
        work: AttentionWork,
        *,
        count: int,
        flops_per_s: float,
        constants: AttentionCoefficients,
    ) -> Attention:
        """Attention of `count` layers with these constants: for what no table holds, the layer's own."""
        return Attention(
            name=name,
            count=count,
            work=work,
            flops_per_s=flops_per_s,
            device=self.device,
            constants=constants,
        )

    def traffic(
        self,
        name: str,
        *,
        kernels: float,
        bytes_per_row: float,
        flops_per_row: float = 0.0,
        rows: RowCount = all_tokens,
    ) -> Traffic:
        """Memory-bound kernels."""
        return Traffic(
            name=name,
            kernels=kernels,
            bytes_per_row=bytes_per_row,
            flops_per_row=flops_per_row,
            device=self.device,
            constants=self.lookup.elementwise(),
            rows=rows,
        )

    def elementwise(
        self, group: LayerGroup, *, rope_values: float, cache_bytes: float, kernels: float = 0.0
    ) -> Traffic:
        """Two norms with the residual (read and write both), rope in place, and the write of the KV cache."""
        norms, hidden = self.model.norms_per_layer, self.model.hidden_size
        routing = KERNELS_OF_MOE if group.is_moe else 0.0
        per_layer = norms * 4 * hidden * ACTIVATION_BYTES + 2 * rope_values * ACTIVATION_BYTES
        return self.traffic(
            "norms, rope, activation",
            kernels=group.num_layers * (KERNELS_PER_LAYER + norms - 2 + kernels + routing),
            bytes_per_row=group.num_layers * (per_layer + cache_bytes),
            flops_per_row=group.num_layers * 6.0 * norms * hidden,
        )


def activation_bits(compute_dtype: str) -> float:
    """Bits of an activation as a product reads it; a group's scales are included."""
    return {"fp32": 32.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5}.get(compute_dtype, 16.0)
