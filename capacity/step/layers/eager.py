"""Attention kernels that the user may select instead of the fitted ones: eager, or old FlashAttention."""

from dataclasses import dataclass, fields, replace

from capacity.model.layers import Attention as AttentionMixer
from capacity.step import Bound, StepShape
from capacity.step.layers.builder import Builder
from capacity.step.operators import ACTIVATION_BYTES, Attention, Device, Operator, Repeated, largest_bound

PASSES_OVER_SCORES = 4.0  # scores written and read, probabilities written and read
KERNELS = 3.0  # scores, softmax, output


def select_attention_kernel(
    prefill: Attention,
    decode: Attention,
    build: Builder,
    *,
    mixer: AttentionMixer,
    heads: float,
    kv_heads: float,
) -> tuple[Operator, Operator]:
    """Return prefill and decode attention with the kernel that the user named, or the fitted one."""
    kernel = build.attention_kernel
    engine, architecture = build.setting.engine, build.setting.profile.architecture
    if kernel is None:
        if not mixer.sinks or engine is None:
            return prefill, decode
        return _slow_down(prefill, engine.sinks_prefill_slowdown.get(architecture, 1.0)), decode
    if kernel.scores_in_hbm:
        return (
            _eager_attention(prefill, build, mixer, decode=False, heads=heads, kv_heads=kv_heads),
            _eager_attention(decode, build, mixer, decode=True, heads=heads, kv_heads=kv_heads),
        )
    if not kernel.split_decode:
        own = {field.name: getattr(decode, field.name) for field in fields(decode)}
        decode = UnsplitDecode(**own, heads=heads)
    return _slow_down(prefill, kernel.prefill_slowdown[architecture]), decode


def _slow_down(prefill: Attention, slowdown: float) -> Attention:
    fraction = prefill.constants.compute_fraction / slowdown
    return replace(prefill, constants=prefill.constants.model_copy(update={"compute_fraction": fraction}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsplitDecode(Attention):
    """Decode attention that does not split contexts, so that at most one SM works for each query head in the batch."""

    heads: float  # query heads per GPU

    def seconds(self, shape: StepShape) -> float:
        blocks = shape.decode_sequences * self.heads
        slowdown = max(1.0, self.device.sm_count / blocks) if blocks else 1.0
        return slowdown * Attention.seconds(self, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerAttention(Repeated):
    """`count` layers of attention without fusion: it computes all query-key pairs, and scores are written to HBM.

    `decode`: attention of decode, otherwise of prefill. Masked causal scores are computed and moved too, and so are
    scores outside of a prompt's window. The prompts of a step count as equally long. The time is at least that of the
    `fitted` kernel, because this formula has no lower bound of its own.
    """

    fitted: Attention
    decode: bool
    windowed: bool  # decode: the cache holds only a window
    heads: float
    flops_per_pair: float
    kv_bytes: float  # per token in the cache
    row_bytes: float
    copied_bytes: float  # a token's keys and values, copied for every query head; 0: each head has its own
    value_bytes: float
    flops_per_s: float
    compute_fraction: float  # for 16-bit matrix products
    bandwidth_fraction: float  # for elementwise kernels
    fixed_s: float
    device: Device

    def _work(self, shape: StepShape) -> tuple[float, float]:
        """Return the FLOPs and bytes of one layer."""
        if self.decode:
            sequences, queries = shape[7], shape[7] + shape[8]
            context = shape[10] if self.windowed else shape[9]
        else:
            sequences, queries, context = shape[0], shape[1], shape[3]
        if not sequences:
            return 0.0, 0.0
        pairs = queries * context / sequences
        moved = context * (self.kv_bytes + 2.0 * self.copied_bytes) + queries * self.row_bytes
        return pairs * self.flops_per_pair, moved + PASSES_OVER_SCORES * pairs * self.heads * self.value_bytes

    def _parts(self, flops: float, moved: float) -> tuple[float, float]:
        compute_s = flops / (self.compute_fraction * self.flops_per_s)
        return compute_s, moved / (self.bandwidth_fraction * self.device.hbm_bytes_per_s)

    def seconds(self, shape: StepShape) -> float:
        flops, moved = self._work(shape)
        own = self.count * (sum(self._parts(flops, moved)) + self.fixed_s) if moved else 0.0
        return max(own, self.fitted.seconds(shape))

    def key(self) -> "EagerAttention":
        return replace(self, count=0, fitted=self.fitted.key())

    def add(self, other: "EagerAttention") -> "EagerAttention":
        return replace(self, count=self.count + other.count, fitted=self.fitted.add(other.fitted))

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        flops, moved = self._work(shape)
        compute_s, memory_s = self._parts(flops, moved)
        return flops, moved, largest_bound(compute=compute_s, memory=memory_s, launch=self.fixed_s)


def _eager_attention(
    fitted: Attention, build: Builder, mixer: AttentionMixer, *, decode: bool, heads: float, kv_heads: float
) -> EagerAttention:
    small, wide = build.lookup.elementwise(), 2.0 if build.model.dtype == "fp32" else 1.0
    width = heads * (mixer.head_dim + mixer.value_head_dim)
    return EagerAttention(
        name=fitted.name,
        count=fitted.count,
        fitted=fitted,
        decode=decode,
        windowed=mixer.window_tokens is not None,
        heads=heads,
        flops_per_pair=2.0 * width,
        kv_bytes=mixer.kv_bytes_per_token(build.kv_cache) * kv_heads / mixer.num_kv_heads,
        row_bytes=width * ACTIVATION_BYTES * wide,
        copied_bytes=width * ACTIVATION_BYTES * wide if heads > kv_heads else 0.0,
        value_bytes=ACTIVATION_BYTES * wide,
        flops_per_s=fitted.flops_per_s,
        compute_fraction=build.lookup.kernel("gemm", "bf16").compute_fraction,
        bandwidth_fraction=small.bandwidth_fraction,
        fixed_s=KERNELS * small.fixed_s,
        device=build.device,
    )
