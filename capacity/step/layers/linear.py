"""Linear attention (gated DeltaNet): a recurrence on a state of fixed size for each sequence."""

from dataclasses import dataclass

from capacity.hardware.coefficients import AttentionCoefficients, Fit
from capacity.model.layers import LayerGroup, LinearAttention
from capacity.step import StepShape
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.layers.grouped import shard
from capacity.step.operators import ACTIVATION_BYTES, all_tokens

INTO = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
GATES = ("linear_attn.in_proj_ba",)  # a product of its own in every engine: checkpoints keep it at 16 bit
OUTPUT = ("linear_attn.out_proj",)
KERNELS_OF_LINEAR_ATTENTION = 6.0  # convolution, gates, norm of keys, gated norm, state bookkeeping
RECURRENCE_FLOPS_PER_S = (
    100e12  # of very many heads, whatever the GPU: chunks of a sequence wait for each other
)
HALF_RATE_HEADS = 16.0  # with so many value heads on a GPU it runs at half of that


def recurrence(heads: float, flops_per_s: float) -> AttentionCoefficients:
    """The chunked delta rule in Triton, of so many value heads on a GPU of this peak.

    Measured (flash-linear-attention 0.4.2, the four kernels, one prompt of 8,192 tokens; flashinfer PRs 3001, 3788 and
    3866, 2026): 0.26 ms of 8 heads and 1.05 ms of 64 on H100, 0.34 of 8, 0.42 of 16 and 0.65 of 48 on B200. The two
    constants above are within 25 % of these. Several prompts at once, which fill idle SMs, are not told apart.
    """
    rate = RECURRENCE_FLOPS_PER_S * heads / (heads + HALF_RATE_HEADS)
    return AttentionCoefficients(
        compute_fraction=min(1.0, rate / flops_per_s),
        bandwidth_fraction=0.6,
        sharpness=1.0,
        fixed_s=12e-6,
        fit=Fit(basis="fitted", source="flashinfer PRs 3001, 3788, 3866; traffic assumed", date="2026-11-22"),
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
                flops_per_s=build.peak("bf16"),
                constants=recurrence(heads, build.peak("bf16")),
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
