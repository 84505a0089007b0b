"""What all layers are built with: one setting's rates and links, and products, norms and attention made of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.hardware.attention_kernels import find_attention_kernel
from capacity.hardware.coefficients import AttentionCoefficients, GemmCoefficients
from capacity.hardware.kernel_lookup import AttentionOperator
from capacity.hardware.weight_kernels import WeightKernel, weight_kernels
from capacity.model.layers import LayerGroup
from capacity.model.parameter_part import PartKind
from capacity.model.parts import Product
from capacity.model.quantization import Execution, WeightFormat
from capacity.step import StepShape
from capacity.step.collectives import AllReduce, Transfer
from capacity.step.operators import ACTIVATION_BYTES, Attention, Device, Gemm, Operator, Traffic
from capacity.step.row_counts import RowCount, all_tokens, decoded_tokens, prompt_tokens, sampled_tokens
from capacity.step.setting import StepSetting

# Small kernels of one layer, as vLLM 0.2x and SGLang 0.5 launch them in decode (read off their model code): two
# norms with the residual, rope with the cache write; and what some layers have besides.
KERNELS_PER_LAYER = 3.0
ASSUMED_LAYERS = 1.5  # by how much times of a model read by its fields' names may be off; assumed, 2026-11
KERNELS_OF_MOE = 2.0  # top-k of the router, sum with the shared experts or padding of the batch

FLOATS = ("fp32", "fp16", "bf16")  # a GPU without rates of the one multiplies in another

AttentionWork = Callable[[StepShape], tuple[float, float, float, float]]
"""FLOPs, bytes, rows of KV heads and the mean context of decode rows, of one layer. A frozen dataclass, so that equal
operators merge, and that `capacity.step.export` finds the constants of its own formula in it."""
NO_WORK = (0.0, 0.0, 0.0, 0.0)


class MixerOperators(NamedTuple):
    """Of the layers of one group: what depends on the rows alone, and what depends on their contexts."""

    products: list[Operator]
    attention: list[Operator]


@dataclass(frozen=True, slots=True)
class Stored:
    """Format and kernel of a matrix in `count` layers; `bits_per_weight` is the mean over its parts by size."""

    weight_format: WeightFormat
    execution: Execution
    bits_per_weight: float
    count: int


class Builder:
    """Makes the operators of one setting; `notes` say what stands in for a missing kernel.

    `error_factor`: by how much kernels that others measured may be off, up or down; 1: there are none.
    """

    def __init__(self, setting: StepSetting) -> None:
        profile = setting.profile
        self.setting = setting
        self.model = setting.model
        self.lookup = setting.lookup()
        self.notes: list[str] = []
        self.error_factor = ASSUMED_LAYERS if self.model.assumed else 1.0
        self.device = Device(hbm_bytes_per_s=profile.hbm_bytes_per_s, sm_count=profile.sm_count)
        self.flops_per_s = profile.dense_flops_per_s
        self.kv_cache = setting.kv_cache
        # asked for in place of the fitted one
        self.attention_kernel = find_attention_kernel(setting.attn_implementation, profile.architecture)
        if self.attention_kernel is not None:
            self.assume(self.attention_kernel.remark, self.attention_kernel.error_factor)

    def formats(self, kind: PartKind, parts: Sequence[str], group: LayerGroup | None) -> Iterator[Stored]:
        """In which formats these parts of a group's layers (None: what stands outside of layers) are multiplied.

        Layers that differ in a part are told apart. Parts of one product in several formats: the bits of all of them,
        by the kernel of the one that holds most. Raises InvalidInput as `execution`.
        """
        scheme = self.setting.weights
        usual = scheme.format_of(kind)
        layers: tuple[int | None, ...] = (None,) if group is None else group.layers
        if group is None or not any(exception.part_name in parts for exception in scheme.exceptions):
            yield Stored(usual, self.execution(usual), usual.bits_per_weight, len(layers))
            return
        sizes = {part.name: part.rows * part.columns for part in self.model.group_parts(group)}
        shares = [sizes[part] / sum(sizes[other] for other in parts) for part in parts]
        alike = Counter(tuple(scheme.format_in(part, kind, layer) for part in parts) for layer in layers)
        for formats, count in alike.items():
            bits = sum(share * stored.bits_per_weight for share, stored in zip(shares, formats, strict=True))
            held: Counter[WeightFormat] = Counter()
            for share, stored in zip(shares, formats, strict=True):
                held[stored] += share  # type: ignore[assignment]
            main = held.most_common(1)[0][0]
            yield Stored(main, self.execution(main), bits, count)

    def execution(self, stored: WeightFormat) -> Execution:
        """What multiplies a format here.

        Raises InvalidInput for what this GPU has neither tensor cores nor a fallback for.
        """
        execution = self.setting.execution(stored)
        dtype = execution.compute_dtype
        if dtype not in self.flops_per_s and dtype != "fp32":
            raise InvalidInput(
                f"{stored.name} multiplies in {dtype}, which {self.setting.profile.name} has no tensor cores for "
                f"(it has {', '.join(self.flops_per_s)}); use a weight-only format such as awq, or another GPU"
            )
        if execution.note:
            self.notes.append(execution.note)
        return execution

    def assume(self, note: str, factor: float) -> None:
        """An operator's time has no measurement behind it: say so, and by how much it may be off."""
        self.notes.append(note)
        self.error_factor = max(self.error_factor, factor)

    def untabled(self, kernel: str) -> WeightKernel | None:
        """The kernel, where its times are published figures of others, and so how far off they may be."""
        found = weight_kernels().get(kernel)
        if found is not None:
            self.error_factor = max(self.error_factor, found.error_factor)
        return found

    def peak(self, compute_dtype: str) -> float:
        """Dense FLOP/s in a format. FP32 is FP32: PyTorch's matmul precision is "highest" unless changed, not TF32."""
        rates, sixteen = self.flops_per_s, self.setting.profile.sixteen_bit
        return rates.get(compute_dtype, rates[sixteen]) if compute_dtype in FLOATS else rates[compute_dtype]

    def gemm(
        self,
        name: str,
        kind: PartKind,
        *,
        k: float,
        n: float,
        parts: Sequence[str] = (),
        group: LayerGroup | None = None,
        repeats: int = 1,
        rows: RowCount = all_tokens,
    ) -> list[Gemm]:
        """Products of [rows, k] with [k, n] weights of `parts`, `repeats` in each layer of a group (None: once).

        Several where layers or numbers of rows take different kernels. Of layers of one phase, its rows alone.
        """
        rows = self.rows_of(group, rows)
        return [
            gemm
            for stored in self.formats(kind, parts, group)
            for gemm in self._by_rows(
                name,
                stored,
                k=k,
                n=n,
                count=stored.count * repeats,
                rows=rows,
                device=self.device,
                activation_bits=activation_bits(stored.execution.compute_dtype),
                host_share=0.0 if group is None else self.setting.host_weight_share,
            )
        ]

    def projections(
        self, group: LayerGroup, kind: PartKind, module: str, *rows: tuple[str, float, float, Sequence[str]]
    ) -> list[Gemm]:
        """Products of each layer's own matrices: each with its name, inputs, outputs, and its parts in `module`."""
        return [
            gemm
            for name, k, n, parts in rows
            for gemm in self.gemm(
                name, kind, k=k, n=n, parts=[f"{module}.{part}" for part in parts], group=group
            )
        ]

    def rows_of(self, group: LayerGroup | None, rows: RowCount = all_tokens) -> RowCount:
        """The rows that go through these layers: all of them, but for those of an encoder or its decoder."""
        if group is None or rows is not all_tokens:
            return rows
        return {"all": all_tokens, "prompt": prompt_tokens, "output": sampled_tokens}[group.phase]

    def products(
        self, name: str, products: Sequence[Product], group: LayerGroup, *, rows: RowCount = all_tokens
    ) -> list[Gemm]:
        """One product of each layer of the group for each of these, on the busiest tensor-parallel rank."""
        ranks = self.setting.tensor_parallel_size
        return [
            gemm
            for product in products
            for gemm in self.gemm(
                name,
                product.kind,
                k=product.columns / (ranks if product.divided == "columns" else 1),
                n=product.rows / (ranks if product.divided == "rows" else 1),
                parts=(product.name,),
                group=group,
                rows=rows,
            )
        ]

    def _by_rows(self, name: str, stored: Stored, *, k: float, n: float, **product: Any) -> Iterator[Gemm]:
        """A product by each of the kernels that steps of few or many rows take."""
        kernel, native = stored.execution.kernel, stored.execution.compute_dtype
        weights, copied = k * n * (stored.bits_per_weight / 8), k * n * ACTIVATION_BYTES
        share = product.pop("host_share")
        found = self.untabled(kernel)

        def gemm(
            name: str, k: float, n: float, moved: float, constants: GemmCoefficients, share: float
        ) -> Gemm:
            slowdown = self.setting.weight_slowdown(constants.bandwidth_fraction, share=share)
            own: Any = {"weight_bytes": moved, "constants": constants, "weight_slowdown": slowdown}
            return Gemm(name=name, k=k, n=n, **own, **product)

        if found is None:
            product["flops_per_s"] = self.peak(native)
            yield gemm(name, k, n, weights, self.lookup.kernel("gemm", kernel), share)
            return
        starts = [0.0, *(path.from_rows for path in found.paths[1:]), inf]
        for path, start, end in zip(found.paths, starts, starts[1:], strict=False):
            product |= {"from_rows": start, "below_rows": end, "flops_per_s": self.peak(path.roof or native)}
            moved, read = weights, share
            if path.dequantize is not None:
                writing = self.lookup.adjusted("gemm", path.dequantize.as_gemm)
                both = weights + copied
                yield gemm(f"dequantize {name}", 0.0, 0.0, both, writing, share * weights / both)
                moved, read = copied, 0.0
            constants = (
                self.lookup.kernel("gemm", path.product or "bf16")
                if path.gemm is None
                else self.lookup.adjusted("gemm", path.gemm)
            )
            yield gemm(name, k, n, moved, constants, read)

    def attention(
        self, name: str, kernel: AttentionOperator, work: AttentionWork, *, count: int
    ) -> Attention:
        """Attention of `count` layers in one phase, by one of the measured kernels."""
        dtype = "8bit" if self.kv_cache.value_bits <= 8 else "16bit"
        constants = self.lookup.kernel(kernel, dtype)
        rate = self.peak("fp32" if self.model.dtype == "fp32" else "bf16")
        return self.attention_with(name, work, count=count, constants=constants, flops_per_s=rate)

    def attention_with(
        self,
        name: str,
        work: AttentionWork,
        *,
        count: int,
        constants: AttentionCoefficients,
        flops_per_s: float | None = None,
    ) -> Attention:
        """Attention of `count` layers with these constants: for what no table holds, the layer's own."""
        rate = flops_per_s or self.peak("bf16")
        return Attention(
            name=name, count=count, work=work, flops_per_s=rate, device=self.device, constants=constants
        )

    def all_reduce(
        self, name: str, *, count: int, values_per_row: float, before_norm: bool = False
    ) -> AllReduce:
        """All-reduces among the tensor-parallel ranks, by the kernels that the engine calls.

        `before_norm`: a norm follows, which engines fuse with it.
        """
        setting, family, one_shot_rows = self.setting, None, 0.0
        if before_norm and setting.engine is not None:
            family = setting.engine.all_reduce_families.get(setting.profile.architecture)
            one_shot_rows = setting.engine.all_reduce_one_shot_rows or 0.0
        ranks = setting.tensor_parallel_size
        return AllReduce(
            name=name,
            count=count,
            ranks=ranks,
            values_per_row=values_per_row,
            link=setting.link_of(ranks),
            constants=self.lookup.all_reduce(family),
            nccl=self.lookup.nccl("all_reduce"),
            two_shot_from_rows=one_shot_rows + 1.0 if one_shot_rows else 0.0,
        )

    def context_exchange(self, layers: int, *, query_values: float, output_values: float) -> list[Transfer]:
        """What ranks that share the contexts of decodes send each other: queries before attention, outputs after it.

        Each computes the heads of all of them over its part of the tokens. Values are of one rank's heads, 16 bit; the
        sums of exponents are left out, and so is the context of a later prompt chunk, which is gathered.
        """
        ranks = self.setting.decode_context_parallel_size
        if ranks == 1:
            return []
        values = {"gather queries": query_values, "scatter outputs": output_values}
        return [
            Transfer(
                name=name,
                count=layers,
                kind="all_gather",
                ranks=ranks,
                bytes_per_row=each * ACTIVATION_BYTES * (ranks - 1),
                link=self.setting.link_of(ranks),
                constants=self.lookup.nccl("all_gather"),
                rows=decoded_tokens,
            )
            for name, each in values.items()
        ]

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
        norms = self.model.norms_per_layer if group.norms is None else group.norms
        hidden = self.model.hidden_size
        routing = KERNELS_OF_MOE if group.is_moe else 0.0
        per_layer = norms * 4 * hidden * ACTIVATION_BYTES + 2 * rope_values * ACTIVATION_BYTES
        return self.traffic(
            "norms, rope, activation",
            kernels=group.num_layers * max(KERNELS_PER_LAYER + norms - 2 + kernels + routing, 1.0),
            bytes_per_row=group.num_layers * (per_layer + cache_bytes),
            flops_per_row=group.num_layers * 6.0 * norms * hidden,
            rows=self.rows_of(group),
        )


def activation_bits(compute_dtype: str) -> float:
    """Bits of an activation as a product reads it; a group's scales are included."""
    return {"fp32": 32.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5}.get(compute_dtype, 16.0)
