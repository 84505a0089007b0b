"""Builder of a step's operators (GEMMs, norms, attention, communication) with the GPU's rates and links."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.base.platforms import TITLES
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

# Small decode kernels of one layer in vLLM 0.2x and SGLang 0.5 (counted in their model code): two norms with the
# residual, and rope with the cache write. Some layers have the additional kernels below.
KERNELS_PER_LAYER = 3.0
ASSUMED_LAYERS_ERROR = 1.5  # possible error for a model that is read by its field names; assumed, 2026-11
KERNELS_OF_MOE = 2.0  # top-k of the router, and the sum with the shared experts or the padding of the batch

FLOATS = ("fp32", "fp16", "bf16")  # a GPU without rates of one of these multiplies in another

AttentionWork = Callable[[StepShape], tuple[float, float, float, float]]
"""Function that returns FLOPs, bytes, requests x KV heads and mean decode context of one layer in a step. It is an
instance of a frozen dataclass, so that equal operators merge, and `capacity.step.export` reads its fields."""
NO_WORK = (0.0, 0.0, 0.0, 0.0)


class MixerOperators(NamedTuple):
    """Operators of a group of layers: the time of `products` depends on rows, that of `attention` on contexts."""

    products: list[Operator]
    attention: list[Operator]


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """Format and kernel of a matrix in `count` layers; `bits_per_weight`: mean over the matrix's weights."""

    weight_format: WeightFormat
    execution: Execution
    bits_per_weight: float
    count: int


EARLY_PLATFORM = (
    "{} on {}: times are from later releases; this release was up to {:g} times slower with some models"
)


class Builder:
    """Builder of the operators of one setting; `notes` name the substitutes that it uses for missing kernels.

    `error_factor`: possible error, up or down, of kernels that only third parties measured; 1 if there are none.
    """

    def __init__(self, setting: StepSetting) -> None:
        profile = setting.profile
        self.setting = setting
        self.model = setting.model
        self.lookup = setting.lookup()
        self.notes: list[str] = []
        self.error_factor = ASSUMED_LAYERS_ERROR if self.model.assumed else 1.0
        self.device = Device(hbm_bytes_per_s=profile.hbm_bytes_per_s, sm_count=profile.sm_count)
        self.flops_per_s = profile.dense_flops_per_s
        self.kv_cache = setting.kv_cache
        # selected by the user instead of the fitted kernel
        self.attention_kernel = find_attention_kernel(setting.attn_implementation, profile.architecture)
        if self.attention_kernel is not None:
            self.assume(self.attention_kernel.remark, self.attention_kernel.error_factor)
        engine = setting.engine
        if engine is not None and (factor := engine.early_platforms.get(profile.platform)) is not None:
            self.assume(EARLY_PLATFORM.format(engine.label, TITLES[profile.platform], factor), factor)

    def formats(
        self, kind: PartKind, parts: Sequence[str], group: LayerGroup | None
    ) -> Iterator[StoredFormat]:
        """Yield the storage formats of a matrix that consists of the weights `parts`, in the layers of `group`.

        `group` None: a matrix outside of layers. Layers with different formats are separate items. If the parts of the
        matrix have several formats, the item has their mean bits and the kernel of the format with the most weights.
        Raises InvalidInput as `execution` does.
        """
        scheme = self.setting.weights
        usual = scheme.format_of(kind)
        layers: tuple[int | None, ...] = (None,) if group is None else group.layers
        if group is None or not any(exception.part_name in parts for exception in scheme.exceptions):
            yield StoredFormat(usual, self.execution(usual), usual.bits_per_weight, len(layers))
            return
        sizes = {part.name: part.rows * part.columns for part in self.model.group_parts(group)}
        shares = [sizes[part] / sum(sizes[other] for other in parts) for part in parts]
        alike = Counter(tuple(scheme.part_format(part, kind, layer) for part in parts) for layer in layers)
        for formats, count in alike.items():
            bits = sum(share * stored.bits_per_weight for share, stored in zip(shares, formats, strict=True))
            held: Counter[WeightFormat] = Counter()
            for share, stored in zip(shares, formats, strict=True):
                held[stored] += share  # type: ignore[assignment]
            main = held.most_common(1)[0][0]
            yield StoredFormat(main, self.execution(main), bits, count)

    def execution(self, stored: WeightFormat) -> Execution:
        """Return the kernel and compute type for weights in the format `stored`.

        Raises InvalidInput if this GPU has neither tensor cores for the format nor a fallback.
        """
        execution = self.setting.execution(stored)
        dtype = execution.compute_dtype
        if dtype not in self.flops_per_s and dtype != "fp32":
            raise InvalidInput(
                f"{stored.name} needs {dtype} tensor cores, but {self.setting.profile.name} has only "
                f"{', '.join(self.flops_per_s)}; use a weight-only format such as awq, or another GPU"
            )
        if execution.note:
            self.notes.append(execution.note)
        return execution

    def assume(self, note: str, factor: float) -> None:
        """Record that an operator's time is not measured: add a note, and raise the error factor."""
        self.notes.append(note)
        self.error_factor = max(self.error_factor, factor)

    def kernel_without_table(self, kernel: str) -> WeightKernel | None:
        """Return the constants of a GEMM kernel that only third parties measured, and raise the error factor to the
        kernel's; None for other kernels."""
        found = weight_kernels().get(kernel)
        if found is not None:
            self.error_factor = max(self.error_factor, found.error_factor)
        return found

    def peak(self, compute_dtype: str) -> float:
        """Return the dense FLOP/s of a compute type.

        FP32 means FP32, not TF32, because PyTorch's matmul precision is "highest" by default.
        """
        rates, sixteen = self.flops_per_s, self.setting.profile.compute_type_16_bit
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
        """Build the GEMMs of [rows, k] activations with [k, n] weights, which consist of the weights `parts`.

        There are `repeats` per layer of `group`, or per step if `group` is None; they are several operators if layers
        or numbers of rows use different kernels. In encoder or decoder layers, only the rows of their phase count.
        """
        rows = self.group_rows(group, rows)
        return [
            gemm
            for stored in self.formats(kind, parts, group)
            for gemm in self._gemms_by_rows(
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
        """Build the GEMMs of each layer; each item of `rows` is a name, inputs, outputs, and weights in `module`."""
        return [
            gemm
            for name, k, n, parts in rows
            for gemm in self.gemm(
                name, kind, k=k, n=n, parts=[f"{module}.{part}" for part in parts], group=group
            )
        ]

    def group_rows(self, group: LayerGroup | None, rows: RowCount = all_tokens) -> RowCount:
        """Return the function that counts the rows of `group`: prompt tokens in encoder layers, sampled tokens in
        decoder layers, `rows` in others."""
        if group is None or rows is not all_tokens:
            return rows
        return {"all": all_tokens, "prompt": prompt_tokens, "output": sampled_tokens}[group.phase]

    def products(
        self, name: str, products: Sequence[Product], group: LayerGroup, *, rows: RowCount = all_tokens
    ) -> list[Gemm]:
        """Build a GEMM for each of `products`, once per layer of the group, on the busiest tensor-parallel rank."""
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

    def _gemms_by_rows(
        self, name: str, stored: StoredFormat, *, k: float, n: float, **product: Any
    ) -> Iterator[Gemm]:
        """Yield a GEMM for each kernel that the engine uses, with the range of rows for which it uses the kernel."""
        kernel, native = stored.execution.kernel, stored.execution.compute_dtype
        weights, copied = k * n * (stored.bits_per_weight / 8), k * n * ACTIVATION_BYTES
        share = product.pop("host_share")
        found = self.kernel_without_table(kernel)

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
                writing = self.lookup.adjust("gemm", path.dequantize.as_gemm)
                both = weights + copied
                yield gemm(f"dequantize {name}", 0.0, 0.0, both, writing, share * weights / both)
                moved, read = copied, 0.0
            constants = (
                self.lookup.kernel("gemm", path.product or "bf16")
                if path.gemm is None
                else self.lookup.adjust("gemm", path.gemm)
            )
            yield gemm(name, k, n, moved, constants, read)

    def attention(
        self, name: str, kernel: AttentionOperator, work: AttentionWork, *, count: int
    ) -> Attention:
        """Build the attention of `count` layers in one phase, with the profile's constants for the engine's kernel."""
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
        """Build the attention of `count` layers with the given constants, which need not come from a profile."""
        rate = flops_per_s or self.peak("bf16")
        return Attention(
            name=name, count=count, work=work, flops_per_s=rate, device=self.device, constants=constants
        )

    def all_reduce(
        self, name: str, *, count: int, values_per_row: float, before_norm: bool = False
    ) -> AllReduce:
        """Build the all-reduces among the tensor-parallel ranks, with the kernels that the engine uses.

        `before_norm`: whether a norm follows, which engines fuse with the all-reduce.
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
            link=setting.find_link(ranks),
            constants=self.lookup.all_reduce(family),
            nccl=self.lookup.nccl("all_reduce"),
            two_shot_from_rows=one_shot_rows + 1.0 if one_shot_rows else 0.0,
        )

    def context_exchange(self, layers: int, *, query_values: float, output_values: float) -> list[Transfer]:
        """Build the transfers of decode context parallelism: queries before attention, outputs after it.

        Each rank computes the heads of all ranks over its part of the tokens. `query_values` and `output_values`:
        number of 16-bit values in one rank's heads. Not modelled: the sums of exponents, and gathering the context of
        later prompt chunks.
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
                link=self.setting.find_link(ranks),
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
        """Build memory-bound kernels that move `bytes_per_row` for each row."""
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
        """Build the small kernels of each layer: norms with the residual (read and written), RoPE in place, KV cache
        write."""
        norms = self.model.norms_per_layer if group.norms is None else group.norms
        hidden = self.model.hidden_size
        routing = KERNELS_OF_MOE if group.is_moe else 0.0
        per_layer = norms * 4 * hidden * ACTIVATION_BYTES + 2 * rope_values * ACTIVATION_BYTES
        return self.traffic(
            "norms, rope, activation",
            kernels=group.num_layers * max(KERNELS_PER_LAYER + norms - 2 + kernels + routing, 1.0),
            bytes_per_row=group.num_layers * (per_layer + cache_bytes),
            flops_per_row=group.num_layers * 6.0 * norms * hidden,
            rows=self.group_rows(group),
        )


def activation_bits(compute_dtype: str) -> float:
    """Return the bits per activation that a GEMM of this compute type reads, including group scales."""
    return {"fp32": 32.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5}.get(compute_dtype, 16.0)
