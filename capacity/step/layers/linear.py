"""Linear attention (gated DeltaNet): a recurrence on a state of fixed size for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.hardware.coefficients import AttentionCoefficients
from capacity.hardware.fits import Fit
from capacity.model.layers import LayerGroup, LinearAttention
from capacity.step import StepShape
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.layers.grouped import shard
from capacity.step.operators import ACTIVATION_BYTES, all_tokens

INTO = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
GATES = ("linear_attn.in_proj_ba",)  # a product of its own in every engine: checkpoints keep it at 16 bit
OUTPUT = ("linear_attn.out_proj",)
KERNELS_OF_LINEAR_ATTENTION = 6.0  # convolution, gates, norm of keys, gated norm, state bookkeeping
_RECURRENCE = AttentionCoefficients(
    compute_fraction=0.2,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=12e-6,
    fit=Fit(
        basis="assumed",
        source="chunked delta rule in Triton, three kernels; no table at hand",
        date="2026-11-21",
    ),
)


def operators(mixer: LinearAttention, group: LayerGroup, build: Builder) -> MixerOperators:
    """Products in and out, and the recurrence."""
    hidden, ranks, layers = build.model.hidden_size, build.setting.tensor_parallel_size, group.num_layers
    keys, values = mixer.key_dim / ranks, mixer.value_dim / ranks
    heads = shard(mixer.num_value_heads, ranks)
    into = 2 * keys + 2 * values
    work = RecurrenceWork(
        flops_per_token=heads * 8.0 * mixer.key_head_dim * mixer.value_head_dim,
        row_bytes=(2 * keys + 2 * values) * ACTIVATION_BYTES,
        state_bytes=2.0 * mixer.state_bytes_per_sequence / ranks,  # read and written
    )
    return MixerOperators(
        products=[
            *build.gemm("linear qkvz", "linear_attention", k=hidden, n=into, parts=INTO, group=group),
            *build.gemm("linear gates", "linear_attention", k=hidden, n=2 * heads, parts=GATES, group=group),
            *build.gemm("linear output", "linear_attention", k=values, n=hidden, parts=OUTPUT, group=group),
            build.elementwise(
                group, rope_values=2 * keys + 2 * values, cache_bytes=0.0, kernels=KERNELS_OF_LINEAR_ATTENTION
            ),
        ],
        attention=[
            build.attention_with(
                "linear attention",
                work,
                count=layers,
                flops_per_s=build.flops_per_s["bf16"],
                constants=_RECURRENCE,
            )
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceWork:
    """Of the recurrence: products and traffic of each token, and each sequence's state read and written."""

    flops_per_token: float
    row_bytes: float
    state_bytes: float

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        tokens, sequences = all_tokens(shape), shape[0] + shape[7]
        moved = tokens * self.row_bytes + sequences * self.state_bytes
        return tokens * self.flops_per_token, moved, sequences, 0.0
