"""HBM traffic and memory of attention: naive, and tiled through on-chip memory.

Naive attention writes the N x N scores and probabilities to HBM and reads them back: O(N^2). Tiled attention
(FlashAttention) keeps a tile of them on chip and reads the keys and values once for each tile of queries: O(N^2 d^2 /
M) for M values of on-chip memory. The FLOPs are the same. Source: Dao et al., arXiv 2205.14135.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capacity.base.checked import validate_arguments
from capacity.base.data_files import read_data
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.deployment import DeploymentFile, Pool, make_deployment
from capacity.hardware import HardwareProfile
from capacity.hardware.attention_kernels import attention_kernels
from capacity.model import ModelSpec
from capacity.model.layers import Attention
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.techniques.one_pool import Contexts, PoolAnswer, pool_notes, require_one_rank, shared_fields

OTHER_SHARED_MEMORY_KIB = 64  # of all other GPUs: assumed, 2026-11-21


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTraffic:
    """Attention of one head over one sequence: HBM bytes, extra memory in HBM, and FLOPs."""

    hbm_bytes: float
    extra_memory_bytes: float  # in addition to queries, keys, values and outputs
    flops: float


def naive_attention(
    tokens: int, head_dim: int, *, value_bytes: float = 2.0, causal: bool = False
) -> AttentionTraffic:
    """Return the HBM traffic of naive attention: Q, K, V, O move once (4Nd values), scores and probabilities twice
    (4N^2).

    Naive causal attention still computes and stores the whole N x N square; `causal` halves only the reported FLOPs.
    Dropout and the traffic of the mask are not modelled.
    """
    _check_sizes(tokens, head_dim)
    moved = (4.0 * tokens * head_dim + 4.0 * tokens * tokens) * value_bytes
    return AttentionTraffic(
        hbm_bytes=moved,
        extra_memory_bytes=2.0 * tokens * tokens * value_bytes,
        flops=_flops(tokens, head_dim, causal=causal),
    )


def tiled_attention(
    tokens: int, head_dim: int, *, on_chip_bytes: float, value_bytes: float = 2.0, causal: bool = False
) -> AttentionTraffic:
    """Return the traffic of FlashAttention: Q and O move once (2Nd values), K and V once for each tile of queries (2Nd
    · N/B; half of that if causal).

    A tile of queries has B = M/(4 d) rows, where M is the number of values that fit on chip, so that tiles of Q, K, V
    and O fit together (algorithm 1 of the paper). The row statistics (2 FP32 per row) are the extra memory. This is an
    upper bound for a kernel whose blocks share K and V through the L2 cache.
    """
    _check_sizes(tokens, head_dim)
    rows = query_tile_rows(head_dim, on_chip_bytes=on_chip_bytes, value_bytes=value_bytes)
    tiles = math.ceil(tokens / rows)
    passes = (tiles + 1) / 2 if causal else float(tiles)
    moved = (2.0 * tokens * head_dim + 2.0 * tokens * head_dim * passes) * value_bytes
    return AttentionTraffic(
        hbm_bytes=moved, extra_memory_bytes=8.0 * tokens, flops=_flops(tokens, head_dim, causal=causal)
    )


def query_tile_rows(head_dim: int, *, on_chip_bytes: float, value_bytes: float = 2.0) -> int:
    """Return the number of queries in a tile: M/(4 d), at least 1, where M is the number of on-chip values."""
    if not on_chip_bytes > 0:
        raise InvalidInput(f"{on_chip_bytes} bytes of on-chip memory: must be above 0")
    return max(1, int(on_chip_bytes / value_bytes / (4 * head_dim)))


def shared_memory_bytes(profile: HardwareProfile) -> int:
    """Return the on-chip memory that one block of a kernel may use on this GPU."""
    known = read_data(Path(__file__).with_name("shared_memory.toml"))
    return 1024 * int(known.get(profile.architecture, OTHER_SHARED_MEMORY_KIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Attention time of one prefill step and one decode step with one kernel, from the step model, over all layers.

    Times are None if the kernel's speed on this GPU is not published. `times_fitted`: prefill time divided by that of
    the kernel to which the step model was fitted.
    """

    kernel: str
    title: str
    prefill_s: float | None
    decode_s: float | None
    times_fitted: float | None
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionIo:
    """Prefill attention of a whole model on one sequence: naive and tiled traffic, and kernel times.

    `kernels`: times without FlashAttention and with each of its versions. `naive_seconds`, `tiled_seconds`: roofline
    limits.
    """

    tokens: int
    naive_bytes: float
    tiled_bytes: float
    naive_extra_bytes: float  # of one layer, all heads: must fit in addition to the model
    tiled_extra_bytes: float
    flops: float
    naive_seconds: float  # roofline: the larger of FLOPs and bytes at the GPU's peaks
    tiled_seconds: float
    kernel_seconds: float  # the step model's, fitted to measured kernels
    traffic_ratio: float  # naive bytes over tiled ones
    kernels: tuple[KernelTime, ...]


def attention_io(resolved: ResolvedPool, tokens: int) -> AttentionIo:
    """Return naive and tiled prefill attention of `tokens` tokens, summed over all layers, on one GPU of the pool.

    Raises InvalidInput if a layer is neither multi-head, grouped-query nor multi-query attention.
    """
    profile, model, ranks = resolved.profile, resolved.model, resolved.pool.tensor_parallel_size
    on_chip = shared_memory_bytes(profile)
    naive_bytes = tiled_bytes = naive_extra = tiled_extra = flops = 0.0
    for group in model.layer_groups:
        mixer = group.mixer
        if not isinstance(mixer, Attention):
            raise InvalidInput(
                f"{model.name} has {mixer.kind} layers; attention IO is computed only for mha, gqa and mqa"
            )
        heads = max(1, mixer.num_heads // ranks)
        naive = naive_attention(tokens, mixer.head_dim, causal=True)
        tiled = tiled_attention(tokens, mixer.head_dim, on_chip_bytes=on_chip, causal=True)
        count = group.num_layers * heads
        naive_bytes += count * naive.hbm_bytes
        tiled_bytes += count * tiled.hbm_bytes
        flops += count * naive.flops
        naive_extra = max(naive_extra, heads * naive.extra_memory_bytes)
        tiled_extra = max(tiled_extra, heads * tiled.extra_memory_bytes)
    compute_s = flops / profile.dense_flops_per_s[profile.compute_type_16_bit]
    fitted_s = _attention_s(resolved.step_model, tokens, "prefill")
    return AttentionIo(
        tokens=tokens,
        naive_bytes=naive_bytes,
        tiled_bytes=tiled_bytes,
        naive_extra_bytes=naive_extra,
        tiled_extra_bytes=tiled_extra,
        flops=flops,
        naive_seconds=max(compute_s, naive_bytes / profile.hbm_bytes_per_s),
        tiled_seconds=max(compute_s, tiled_bytes / profile.hbm_bytes_per_s),
        kernel_seconds=fitted_s,
        traffic_ratio=naive_bytes / tiled_bytes,
        kernels=tuple(_kernel_times(resolved, tokens, fitted_s)),
    )


def _kernel_times(resolved: ResolvedPool, tokens: int, fitted_s: float) -> Iterator[KernelTime]:
    for name, kernel in attention_kernels().items():
        prefill_s = decode_s = None
        if kernel.runs_on(resolved.profile.architecture):
            steps = StepModel(replace(resolved.step_setting, attn_implementation=name))
            prefill_s, decode_s = (_attention_s(steps, tokens, phase) for phase in ("prefill", "decode"))
        yield KernelTime(
            kernel=name,
            title=kernel.title,
            prefill_s=prefill_s,
            decode_s=decode_s,
            times_fitted=None if prefill_s is None else prefill_s / fitted_s,
            source=kernel.source,
            date=kernel.date,
        )


def _attention_s(steps: StepModel, tokens: int, phase: str) -> float:
    """Return the attention time (s) of all layers for one prompt of `tokens`, or one decode with this context."""
    make = prefill_shape if phase == "prefill" else decode_shape
    operators = steps.step_cost(make(1, tokens, window_tokens=steps.model.window_tokens)).operators
    return sum(op.seconds for op in operators if op.name.startswith(f"attention {phase}"))


def _flops(tokens: int, head_dim: int, *, causal: bool) -> float:
    pairs = tokens * (tokens + 1) / 2 if causal else float(tokens) * tokens
    return 4.0 * pairs * head_dim


def _check_sizes(tokens: int, head_dim: int) -> None:
    if tokens < 1 or head_dim < 1:
        raise InvalidInput(f"{tokens} tokens and a head of {head_dim} values: both must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTrafficTable(PoolAnswer):
    """Naive and tiled prefill attention, one row for each context length."""

    SCHEMA: ClassVar[str] = "capacity/attention-io/v1"

    on_chip_bytes: int
    rows: tuple[AttentionIo, ...]
    warnings: tuple[str, ...]


@document_options(Pool)
@validate_arguments
def attention_traffic(
    model: str | ModelSpec | DeploymentFile,
    *,
    contexts: Contexts = (1024, 4096, 16384, 65536),
    **options: Any,
) -> AttentionTrafficTable:
    """Return HBM traffic and memory of naive and tiled attention, and the time of each kernel. Raises InvalidInput."""
    deployment = make_deployment(model, pool=split(options, Pool)[0], question="attention-io")
    resolved = resolve(deployment.model, require_one_rank(deployment.pool, "attention-io"))
    return AttentionTrafficTable(
        **shared_fields(resolved),
        on_chip_bytes=shared_memory_bytes(resolved.profile),
        rows=tuple(attention_io(resolved, tokens) for tokens in contexts),
        warnings=pool_notes(resolved),
    )
