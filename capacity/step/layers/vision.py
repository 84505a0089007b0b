"""Vision and audio encoders, which process patches or frames as a model prefills a prompt."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.model.audio import AudioEncoder
from capacity.model.vision_towers import VisionEncoder
from capacity.step import OpCost, StepShape
from capacity.step.layers.builder import Builder
from capacity.step.layers.grouped import PrefillWork, shard
from capacity.step.operators import ACTIVATION_BYTES, Gemm, Operator

KERNELS_PER_LAYER = 3.0  # two layer norms with the residual, and the activation
ROUNDING = 1e-9  # rounding error of whole quotients
WEIGHT_BITS = 16.0  # quantized checkpoints keep their encoders at 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOperator:
    """A vision or audio encoder as one row of the cost table, the sum of its operators over patches and over tokens."""

    name: str
    hears: bool  # audio clips instead of images
    patches_per_token: int
    tile_patches: int | None
    padded_patches: int | None
    window_patches: int
    of_patches: tuple[Operator, ...]
    of_tokens: tuple[Operator, ...]

    def seconds(self, shape: StepShape) -> float:
        return sum(operator.seconds(own) for operator, own in self._parts(shape))

    def cost(self, shape: StepShape) -> OpCost:
        costs = [operator.cost(own) for operator, own in self._parts(shape)]
        return OpCost(
            name=self.name,
            flops=sum(cost.flops for cost in costs),
            bytes=sum(cost.bytes for cost in costs),
            seconds=sum(cost.seconds for cost in costs),
            bound=max(costs, key=lambda cost: cost.seconds).bound if costs else "launch",
        )

    def _parts(self, shape: StepShape) -> list[tuple[Operator, StepShape]]:
        tokens, pairs = shape.encoder_tokens, shape.encoder_pairs
        if self.hears:
            tokens, pairs = shape.audio_tokens, shape.audio_pairs
        if not tokens:
            return []
        patches = self._patches(tokens, pairs)
        attended = patches * self.tile_patches if self.tile_patches else pairs * self.patches_per_token**2
        through = StepShape(
            prefill_sequences=1,
            prefill_tokens=patches,
            prefill_pairs=attended,
            prefill_context_tokens=patches,
            prefill_window_pairs=patches * self.window_patches,
            prefill_window_context_tokens=patches,
        )
        projected = StepShape(prefill_tokens=tokens)
        before = [(operator, through) for operator in self.of_patches]
        return before + [(operator, projected) for operator in self.of_tokens]

    def _patches(self, tokens: int, pairs: int) -> int:
        """Return the number of patches of a step's images or clips (assumed equally large); `pairs`: sum of tokens²."""
        patches = tokens * self.patches_per_token
        if self.padded_patches is None:
            return patches
        of_chunk = math.ceil(self.padded_patches / self.patches_per_token)
        chunks = math.ceil(pairs / tokens / of_chunk - ROUNDING)
        return round(tokens**2 / pairs * chunks) * self.padded_patches


def encoder_operator(build: Builder, encoder: VisionEncoder) -> EncoderOperator:
    """Build the operator of an encoder; tensor parallelism divides its heads and widths, and replicates its projector.

    Each GPU processes all patches. The images of a step are one batch (vLLM groups them by kind), so a step pays its
    fixed times once.
    """
    ranks, layers, width = build.setting.tensor_parallel_size, encoder.num_layers, encoder.hidden_size
    heads = shard(encoder.num_heads, ranks)
    attended = encoder.attention_size or width
    inner, wide = attended * heads / encoder.num_heads, encoder.intermediate_size / ranks
    up = 2 if encoder.gated else 1
    of_patches: list[Operator] = [
        _product(build, encoder.patch_inputs, width),
        _product(build, width, 3 * inner, layers),
        _product(build, inner, width, layers),
        _product(build, width, up * wide, layers),
        _product(build, wide, width, layers),
        *_attention(build, encoder, heads, inner),
        build.traffic(
            "encoder norms, activation",
            kernels=KERNELS_PER_LAYER * layers,
            bytes_per_row=layers * (8 * width + (1 + up) * wide) * ACTIVATION_BYTES,
        ),
    ]
    if ranks > 1:
        of_patches.append(build.all_reduce("encoder all-reduce", count=2 * layers, values_per_row=width))
    return EncoderOperator(
        name=encoder.row_name,
        hears=isinstance(encoder, AudioEncoder),
        patches_per_token=encoder.patches_per_token,
        tile_patches=encoder.tile_patches,
        padded_patches=encoder.padded_patches,
        window_patches=encoder.window_patches,
        of_patches=tuple(of_patches),
        of_tokens=tuple(_product(build, inputs, outputs) for inputs, outputs in encoder.projections),
    )


def _attention(build: Builder, encoder: VisionEncoder, heads: float, width: float) -> Iterator[Operator]:
    """Build the attention of the encoder's layers; `heads` and their total `width` are those of one GPU."""
    attending = {False: encoder.num_layers - encoder.windowed_layers, True: encoder.windowed_layers}
    for windowed, count in attending.items():
        if count:
            work = PrefillWork(
                windowed=windowed,
                heads=heads,
                flops_per_pair=4.0 * width,
                context_bytes=2 * width * ACTIVATION_BYTES,
                row_bytes=2 * width * ACTIVATION_BYTES,
            )
            constants = build.lookup.kernel("prefill_attention", "16bit")
            yield build.attention_with("encoder attention", work, count=count, constants=constants)


def _product(build: Builder, inputs: float, outputs: float, count: int = 1) -> Gemm:
    return Gemm(
        name="encoder products",
        count=count,
        k=inputs,
        n=outputs,
        weight_bytes=inputs * outputs * WEIGHT_BITS / 8,
        activation_bits=16.0,
        flops_per_s=build.peak("bf16"),
        device=build.device,
        constants=build.lookup.kernel("gemm", "bf16"),
    )
