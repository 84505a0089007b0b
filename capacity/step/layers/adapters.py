"""LoRA: two more kernels per linear layer, which multiply each token by the factors of its request's adapter.

The first kernel shrinks a token's input to the rank of the adapter; the second expands it and adds it to the layer's
output. Layers that engines pack (q, k and v; gate and up) share their kernels. Each kernel reads the factors of all
adapters in the step: at most the number of adapter slots, and at most the number of rows. Not modelled: adapters of
different ranks (kernels compute with `--max-lora-rank` for all), and steps without any adapter, for which newer
releases capture separate graphs.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.model.parameter_part import ParameterPart
from capacity.model.spec import ModelSpec
from capacity.step import Bound, StepShape
from capacity.step.layers.builder import Builder
from capacity.step.operators import Device, Repeated, p_norm
from capacity.step.row_counts import all_tokens

ADAPTED_KINDS = ("attention", "linear_attention", "dense_ffn", "shared_expert")
UNPACKED_ENDINGS = ("o_proj", "out_proj", "down_proj", "b_proj")  # name endings of layers that are not packed
FACTOR_BYTES = 2  # vLLM: --lora-dtype auto is the model's type, 16 bits
SHRUNK_BYTES = 8  # per row and unit of rank: written and read at 32 bits
KERNELS = 2.0  # per pack of layers: shrink, expand
# Seconds of a kernel with almost no work: Llama-2-7B without and with --enable-lora, no adapter active, takes 0.8445 s
# and 10.5 % more for 128 steps (vLLM PR 25914, 2025-10; GPU not stated), over 32 layers x 4 packed products x 2.
KERNEL_S = 2.7e-6
# Fraction of the tensor-core peak for tiles as narrow as a rank. Assumed, 2026-11-22; it matters only at ranks of
# hundreds.
COMPUTE_FRACTION = 0.25
SHARPNESS = 4.0  # as for the engine's other products, assumed
BOUNDS: tuple[Bound, ...] = ("launch", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayers:
    """Linear layers with the same input that share their LoRA kernels; inputs and outputs are per GPU."""

    slices: int
    inputs: float
    outputs: float
    layers: tuple[int, ...]  # indices in the model

    @property
    def factor_values(self) -> float:
        """Return the number of values in both factors of one adapter of rank 1."""
        return self.slices * self.inputs + self.outputs


def packed_layers(model: ModelSpec, tensor_parallel_size: int) -> Iterator[PackedLayers]:
    """Yield the linear layers that LoRA adapts, on one tensor-parallel GPU, grouped in packs that share kernels.

    TP divides either inputs or outputs of a layer, and so one of an adapter's two factors; the other is replicated
    (vLLM without --fully-sharded-loras: lora/layers/column_parallel_linear.py, row_parallel_linear.py).
    """
    packs: dict[tuple[object, ...], list[ParameterPart]] = defaultdict(list)
    for part in model.parameter_parts():
        if part.kind in ADAPTED_KINDS and part.columns > 1:
            alone = part.name if part.name.endswith(UNPACKED_ENDINGS) else ""
            packs[part.kind, part.columns, part.layers, alone].append(part)
    for parts in packs.values():
        first = parts[0]
        divides_inputs = first.rows == model.hidden_size and first.name.endswith(UNPACKED_ENDINGS)
        ranks = [  # number of GPUs that each part is divided over
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
    """LoRA's shrink and expand kernels of all `PackedLayers`, for all rows of a step."""

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
        """Return the seconds of the kernel launches, and the seconds to move and multiply the data."""
        flops_per_s = COMPUTE_FRACTION * self.flops_per_s
        bytes_per_s = self.bandwidth_fraction * self.device.hbm_bytes_per_s
        moving = 0.0
        for pack in self.packs:
            flops, moved = self._flops(pack, rows), self._bytes(pack, rows)
            moving += len(pack.layers) * p_norm(flops / flops_per_s, moved / bytes_per_s, SHARPNESS)
        return KERNELS * KERNEL_S * sum(len(pack.layers) for pack in self.packs), moving

    def _flops(self, pack: PackedLayers, rows: float) -> float:
        return 2.0 * rows * self.rank * pack.factor_values

    def _bytes(self, pack: PackedLayers, rows: float) -> float:
        """Return the bytes of the adapters' factors and, for each row, of the input, shrunk values and output."""
        factors = min(self.max_loras, rows) * self.rank * pack.factor_values * FACTOR_BYTES
        of_row = 2 * pack.inputs + SHRUNK_BYTES * pack.slices * self.rank + 2 * 2 * pack.outputs
        return factors + rows * of_row


def operators(build: Builder) -> list[AdapterProducts]:
    """Build the LoRA operators of a step; empty if the engine accepts no adapters."""
    setting = build.setting
    if not setting.max_loras:
        return []
    packs = tuple(packed_layers(build.model, setting.tensor_parallel_size))
    kernels = KERNELS * sum(len(pack.layers) for pack in packs)
    build.notes.append(
        f"LoRA adds {kernels:,.0f} kernels per step of {KERNEL_S * 1e6:.1f} us each (vLLM, no adapter in use), "
        f"plus the time to read adapters and inputs; every request is assumed to use one of {setting.max_loras} "
        "adapters per step"
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
