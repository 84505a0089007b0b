"""Layers that keep a fixed-size state per sequence: linear attention and other recurrences.

Gated DeltaNet has measured constants. Kernels of Mamba, Mamba-2, Kimi's delta attention, lightning attention and
convolutions were not measured.
"""

from dataclasses import dataclass

from capacity.hardware.coefficients import AttentionCoefficients, Fit
from capacity.model.layers import LayerGroup, LinearAttention
from capacity.model.recurrent import Recurrence
from capacity.step import StepShape
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.layers.grouped import shard
from capacity.step.operators import ACTIVATION_BYTES, Operator
from capacity.step.row_counts import all_tokens

KERNELS_OF_LINEAR_ATTENTION = 6.0  # convolution, gates, norm of keys, gated norm, state bookkeeping
# limit for very many heads on any GPU, because chunks of a sequence wait for each other
RECURRENCE_FLOPS_PER_S = 100e12
HALF_RATE_HEADS = 16.0  # value heads per GPU at which it runs at half of that rate
ROOFLINE_ERROR = 1.5  # possible error of such a kernel's roofline, up or down; assumed, 2026-11
# Chunked scans multiply small tiles one after another; gated DeltaNet, which is measured, reaches a tenth of an H100's
# peak with many heads. The bandwidth fraction is that of its state updates.
_SCAN = AttentionCoefficients(
    compute_fraction=0.1,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=12e-6,
    fit=Fit(basis="assumed", source="roofline with the fractions of gated DeltaNet", date="2026-11-22"),
)


def recurrence_constants(heads: float, flops_per_s: float) -> AttentionCoefficients:
    """Return constants of the chunked delta rule in Triton, for `heads` value heads on a GPU of peak `flops_per_s`.

    Measured (flash-linear-attention 0.4.2, the four kernels, one prompt of 8,192 tokens; flashinfer PRs 3001, 3788 and
    3866, 2026): 0.26 ms for 8 heads and 1.05 ms for 64 on H100; 0.34 for 8, 0.42 for 16 and 0.65 for 48 on B200. Times
    with `RECURRENCE_FLOPS_PER_S` and `HALF_RATE_HEADS` are within 25 % of these. Not modelled: several prompts at
    once, which fill idle SMs.
    """
    rate = RECURRENCE_FLOPS_PER_S * heads / (heads + HALF_RATE_HEADS)
    return AttentionCoefficients(
        compute_fraction=min(1.0, rate / flops_per_s),
        bandwidth_fraction=0.6,
        sharpness=1.0,
        fixed_s=12e-6,
        fit=Fit(
            basis="fitted", source="flashinfer PRs 3001, 3788, 3866; HBM bytes assumed", date="2026-11-22"
        ),
    )


def operators(mixer: LinearAttention, group: LayerGroup, build: Builder) -> MixerOperators:
    """Build the input and output GEMMs of linear attention, and its recurrence."""
    hidden, ranks, layers = build.model.hidden_size, build.setting.tensor_parallel_size, group.num_layers
    keys, values = mixer.key_dim / ranks, mixer.value_dim / ranks
    heads = shard(mixer.num_value_heads, ranks)
    into = 2 * keys + 2 * values
    work = RecurrenceWork(
        flops_per_pair=heads * 8.0 * mixer.key_head_dim * mixer.value_head_dim,
        row_bytes=(2 * keys + 2 * values) * ACTIVATION_BYTES,
        context_bytes=2.0 * mixer.state_bytes_per_sequence / ranks,  # read and written
    )
    return MixerOperators(
        products=[
            *build.projections(
                group,
                "linear_attention",
                "linear_attn",
                ("linear qkvz", hidden, into, ("in_proj_qkv", "in_proj_z")),
                # a separate product in every engine, because checkpoints keep it at 16 bits
                ("linear gates", hidden, 2 * heads, ("in_proj_ba",)),
                ("linear output", values, hidden, ("out_proj",)),
            ),
            build.elementwise(
                group, rope_values=2 * keys + 2 * values, cache_bytes=0.0, kernels=KERNELS_OF_LINEAR_ATTENTION
            ),
        ],
        attention=[
            build.attention_with(
                "linear attention",
                work,
                count=layers,
                constants=recurrence_constants(heads, build.peak("bf16")),
            )
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceWork:
    """FLOPs and bytes (see `AttentionWork`) of the recurrence. Each sequence's state is read and written once."""

    flops_per_pair: float  # per token
    row_bytes: float
    context_bytes: float  # of one sequence's state

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        tokens, sequences = all_tokens(shape), shape[0] + shape[7]
        moved = tokens * self.row_bytes + sequences * self.context_bytes
        return tokens * self.flops_per_pair, moved, sequences, 0.0


def recurrence_operators(
    mixer: Recurrence, group: LayerGroup, build: Builder, *, norms: bool = True
) -> MixerOperators:
    """Build the GEMMs of a recurrence, and its state updates: one read and write per sequence and step.

    `norms`: whether the layer has its own norms; False if it shares them with parallel attention.
    """
    build.assume(
        f"times of {mixer.kind} layers are roofline estimates (assumed), because their kernels were not measured",
        ROOFLINE_ERROR,
    )
    ranks = build.setting.tensor_parallel_size
    share = shard(mixer.num_heads, ranks) / mixer.num_heads
    into = sum(product.rows for product in mixer.products[:-1])
    row_bytes = (into + mixer.products[-1].columns) * share * ACTIVATION_BYTES
    work = RecurrenceWork(
        flops_per_pair=mixer.flops_per_token * share,
        row_bytes=row_bytes,
        context_bytes=2.0 * mixer.state_bytes_per_sequence * share,  # read and written
    )
    products: list[Operator] = [*build.products(f"{mixer.kind} products", mixer.products, group)]
    if norms:
        products.append(
            build.elementwise(
                group, rope_values=into * share, cache_bytes=0.0, kernels=KERNELS_OF_LINEAR_ATTENTION
            )
        )
    return MixerOperators(
        products=products,
        attention=[
            build.attention_with(f"{mixer.kind} recurrence", work, count=group.num_layers, constants=_SCAN)
        ],
    )
