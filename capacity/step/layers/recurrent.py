"""Recurrences without measured kernels: Mamba, Mamba-2, Kimi's delta and lightning attention, convolutions."""

from capacity.hardware.coefficients import AttentionCoefficients, Fit
from capacity.model.layers import LayerGroup
from capacity.model.recurrent import Recurrence
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.layers.grouped import shard
from capacity.step.layers.linear import KERNELS_OF_LINEAR_ATTENTION, RecurrenceWork
from capacity.step.operators import ACTIVATION_BYTES, Operator

ROOFLINE_ERROR = 1.5  # by how much such a kernel may be off its roofline, up or down; assumed, 2026-11
# Chunked scans multiply small tiles one after another; gated DeltaNet, which is measured (see `linear`), reaches a
# tenth of an H100's peak with many heads. Their bandwidth is taken as that of its state updates.
_SCAN = AttentionCoefficients(
    compute_fraction=0.1,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=12e-6,
    fit=Fit(basis="assumed", source="roofline with the fractions of gated DeltaNet", date="2026-11-22"),
)


def operators(mixer: Recurrence, group: LayerGroup, build: Builder, *, norms: bool = True) -> MixerOperators:
    """Its products, and the state moved on by every token: read and written once a step by each sequence.

    `norms`: whether the layer's norms are its own, as against those of the attention beside it.
    """
    build.assume(
        f"the time of {mixer.kind} layers is a roofline (assumed): no kernel of theirs was measured",
        ROOFLINE_ERROR,
    )
    ranks = build.setting.tensor_parallel_size
    share = shard(mixer.num_heads, ranks) / mixer.num_heads
    into = sum(product.rows for product in mixer.products[:-1])
    row_bytes = (into + mixer.products[-1].columns) * share * ACTIVATION_BYTES
    work = RecurrenceWork(
        flops_per_token=mixer.flops_per_token * share,
        row_bytes=row_bytes,
        state_bytes=2.0 * mixer.state_bytes_per_sequence * share,  # read and written
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
            build.attention_with(
                f"{mixer.kind} recurrence",
                work,
                count=group.num_layers,
                flops_per_s=build.peak("bf16"),
                constants=_SCAN,
            )
        ],
    )
