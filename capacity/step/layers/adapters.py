"""LoRA: two more kernels for each linear layer, which multiply every row with the factors of its request's adapter.

The first shrinks a row to the rank of the adapter, the second expands it and adds to the layer's output; layers that
engines pack (q, k and v; gate and up) share their kernels. Each reads the factors of all adapters of the step, as many
as there are slots or rows. Left out: that adapters differ in rank (all have `--max-lora-rank`, as the kernels compute),
and steps without any adapter, for which newer releases capture graphs of their own.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.model.parameter_part import ParameterPart
from capacity.model.spec import ModelSpec
from capacity.step import Bound, StepShape
from capacity.step.layers.builder import Builder
from capacity.step.operators import Device, Repeated, norm
from capacity.step.row_counts import all_tokens

ADAPTED = ("attention", "linear_attention", "dense_ffn", "shared_expert")
OUTPUTS = (
    "o_proj",
    "out_proj",
    "down_proj",
    "b_proj",
)  # ends of names of layers that are packed with no other
FACTOR_BYTES = 2  # vLLM: --lora-dtype auto is the model's, 16 bit
SHRUNK_BYTES = 8  # of a row and rank: written and read at 32 bits
KERNELS = 2.0  # of packed layers: shrink, expand
# A kernel that finds next to nothing to do: Llama-2-7B without and with --enable-lora, no adapter active, 0.8445 s and
# 10.5 % more for 128 steps (vLLM PR 25914, 2025-10; the GPU is not stated), over 32 layers x 4 packed products x 2.
KERNEL_S = 2.7e-6
# Of the tensor cores' peak: tiles as narrow as a rank. Assumed, 2026-11-22; it decides at ranks of hundreds alone.
COMPUTE_FRACTION = 0.25
SHARPNESS = 4.0  # as products of the engine's own, assumed
BOUNDS: tuple[Bound, ...] = ("launch", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayers:
    """Linear layers of one input that share their LoRA kernels: how many, and their inputs and outputs on a GPU."""

    slices: int
    inputs: float
    outputs: float
    layers: tuple[int, ...]  # of the model

    @property
    def factor_values(self) -> float:
        """Values of both factors of one adapter, of rank 1."""
        return self.slices * self.inputs + self.outputs


def packed_layers(model: ModelSpec, tensor_parallel_size: int) -> Iterator[PackedLayers]:
    """The adapted layers of a model on one of its tensor-parallel GPUs, in packs.

    Of the two factors the one at the matrix's divided side is divided as well, the other is whole on every GPU
    (vLLM without --fully-sharded-loras: lora/layers/column_parallel_linear.py, row_parallel_linear.py).
    """
    packs: dict[tuple[object, ...], list[ParameterPart]] = defaultdict(list)
    for part in model.parameter_parts():
        if part.kind in ADAPTED and part.columns > 1:
            alone = part.name if part.name.endswith(OUTPUTS) else ""
            packs[part.kind, part.columns, part.layers, alone].append(part)
    for parts in packs.values():
        first = parts[0]
        divides_inputs = first.rows == model.hidden_size and first.name.endswith(OUTPUTS)
        ranks = [  # GPUs that each is divided over
            1 if part.sharding == "replicated" else min(tensor_parallel_size, part.shard_limit or 1 << 20)
            for part in parts
        ]
        yield PackedLayers(
            slices=len(parts) * first.matrices_per_layer,
            inputs=first.columns / (ranks[0] if divides_inputs else 1),
            outputs=sum(
                part.rows / (1 if divides_inputs else count) for part, count in zip(parts, ranks, strict=True)
            ),
            layers=first.layers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterProducts(Repeated):
    """Shrink and expand of all packs of layers, for all rows of a step."""

    packs: tuple[PackedLayers, ...]
    rank: int
    max_loras: int
    flops_per_s: float
    bandwidth_fraction: float
    device: Device

    def seconds(self, shape: StepShape) -> float:
        rows = all_tokens(shape)
        return sum(self._parts(rows)) if rows > 0 else 0.0

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        rows = all_tokens(shape)
        parts = dict(zip(BOUNDS, self._parts(rows), strict=True))
        flops, moved = (
            sum(len(pack.layers) * of(pack, rows) for pack in self.packs) for of in (self._flops, self._bytes)
        )
        return flops, moved, max(BOUNDS, key=lambda bound: parts[bound])

    def _parts(self, rows: float) -> tuple[float, float]:
        """Seconds of launched kernels, and of what they move and multiply."""
        flops_per_s = COMPUTE_FRACTION * self.flops_per_s
        bytes_per_s = self.bandwidth_fraction * self.device.hbm_bytes_per_s
        moving = 0.0
        for pack in self.packs:
            flops, moved = self._flops(pack, rows), self._bytes(pack, rows)
            moving += len(pack.layers) * norm(flops / flops_per_s, moved / bytes_per_s, SHARPNESS)
        return KERNELS * KERNEL_S * sum(len(pack.layers) for pack in self.packs), moving

    def _flops(self, pack: PackedLayers, rows: float) -> float:
        return 2.0 * rows * self.rank * pack.factor_values

    def _bytes(self, pack: PackedLayers, rows: float) -> float:
        """Factors of the step's adapters; of each row the input, what is shrunk, and the output that is added to."""
        factors = min(self.max_loras, rows) * self.rank * pack.factor_values * FACTOR_BYTES
        of_row = 2 * pack.inputs + SHRUNK_BYTES * pack.slices * self.rank + 2 * 2 * pack.outputs
        return factors + rows * of_row


def operators(build: Builder) -> list[AdapterProducts]:
    """What LoRA adds to a step; nothing where the engine takes no adapters."""
    setting = build.setting
    if not setting.max_loras:
        return []
    packs = tuple(packed_layers(build.model, setting.tensor_parallel_size))
    kernels = KERNELS * sum(len(pack.layers) for pack in packs)
    build.notes.append(
        f"LoRA kernels, {kernels:,.0f} a step, take what vLLM showed of them without work, {KERNEL_S * 1e6:.1f} us "
        f"each, and the time to read factors and rows: every row is taken to have an adapter, and "
        f"{setting.max_loras} of them to be in a step"
    )
    return [
        AdapterProducts(
            name="LoRA",
            count=1,
            packs=packs,
            rank=setting.max_lora_rank,
            max_loras=setting.max_loras,
            flops_per_s=build.peak("bf16"),
            bandwidth_fraction=build.lookup.elementwise().bandwidth_fraction,
            device=build.device,
        )
    ]
