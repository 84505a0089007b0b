"""Triton kernels that engines fuse between matrix multiplications, and paged decode attention.

Imported on GPUs only, because torch's CUDA builds include Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803
# Compile-time constants are upper case, by Triton's convention.

import triton
import triton.language as tl


@triton.jit
def add_norm(x, residual, weight, out, total, epsilon, HIDDEN: tl.constexpr, WIDTH: tl.constexpr):
    """Compute x + residual and its RMS norm for one row. WIDTH is HIDDEN rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    columns = tl.arange(0, WIDTH)
    ok = columns < HIDDEN
    a = tl.load(x + row + columns, mask=ok, other=0.0)
    b = tl.load(residual + row + columns, mask=ok, other=0.0)
    summed = (a + b).to(total.dtype.element_ty)
    tl.store(total + row + columns, summed, mask=ok)
    wide = summed.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / HIDDEN + epsilon)
    scale = tl.load(weight + columns, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (wide * inverse * scale).to(out.dtype.element_ty), mask=ok)


@triton.jit
def rope_and_cache(
    q, k, v, out, keys, values, cosines, sines, positions, slots,
    q_row, k_row, v_row, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Process one head of one token: write a rotated query to `out`, or a rotated key and its value to the caches.

    HALF is D / 2, WIDTH is HALF rounded up to a power of two. Caches are [slots, KV heads, D].
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, WIDTH)
    ok = half < HALF
    place = tl.load(positions + row).to(tl.int64) * HALF
    cosine = tl.load(cosines + place + half, mask=ok, other=0.0).to(tl.float32)
    sine = tl.load(sines + place + half, mask=ok, other=0.0).to(tl.float32)
    if head < HEADS:
        source = q + row * q_row + head * D
        target = out + (row * HEADS + head) * D
    else:
        source = k + row * k_row + (head - HEADS) * D
        target = keys + (tl.load(slots + row).to(tl.int64) * KV_HEADS + head - HEADS) * D
    first = tl.load(source + half, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + half, mask=ok, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(target + half, (first * cosine - second * sine).to(kind), mask=ok)
    tl.store(target + HALF + half, (second * cosine + first * sine).to(kind), mask=ok)
    if head >= HEADS:
        source = v + row * v_row + (head - HEADS) * D
        target = values + (tl.load(slots + row).to(tl.int64) * KV_HEADS + head - HEADS) * D
        tl.store(target + half, tl.load(source + half, mask=ok, other=0.0), mask=ok)
        tl.store(target + HALF + half, tl.load(source + HALF + half, mask=ok, other=0.0), mask=ok)


@triton.jit
def silu_and_multiply(gate_up, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute SiLU(gate) · up for one block of one token; [tokens, 2·COLUMNS] -> [tokens, COLUMNS]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = columns < COLUMNS
    gate = tl.load(gate_up + row * 2 * COLUMNS + columns, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * COLUMNS + COLUMNS + columns, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["table_row", "window_tokens"])
def paged_decode(
    query, keys, values, block_table, contexts, partial, summary,
    query_row, query_head, cache_block, cache_token, cache_head, table_row,
    scale, window_tokens,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, CHUNKED: tl.constexpr, SPLITS, HEADS,
):  # fmt: skip
    """Attend to a context slice for one KV head by online softmax over tiles. WIDTH: D rounded up to a power of 2."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    slice_id = tl.program_id(2)
    context = tl.load(contexts + row)
    window = tl.maximum(window_tokens, 1)
    if CHUNKED:
        start_of_window = (context - 1) // window * window
    else:
        start_of_window = tl.maximum(context - window, 0)
    first = tl.where(window_tokens > 0, start_of_window, 0)
    length = tl.cdiv(context - first, SPLITS)
    begin = first + slice_id * length
    end = tl.minimum(begin + length, context)

    heads = tl.arange(0, GROUP_PADDED)
    dims = tl.arange(0, WIDTH)
    dim_ok = dims < D
    head_ok = heads < GROUP
    query_head_ids = kv_head * GROUP + heads
    q = tl.load(
        query + row * query_row + query_head_ids[:, None] * query_head + dims[None, :],
        mask=head_ok[:, None] & dim_ok[None, :],
        other=0.0,
    )

    best = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    weighted = tl.zeros([GROUP_PADDED, WIDTH], tl.float32)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        token_ok = tokens < end
        blocks = tl.load(block_table + row * table_row + tokens // BLOCK, mask=token_ok, other=0).to(tl.int64)
        places = blocks * cache_block + (tokens % BLOCK) * cache_token + kv_head * cache_head
        k_ok = token_ok[None, :] & dim_ok[:, None]
        k = tl.load(keys + places[None, :] + dims[:, None], mask=k_ok, other=0.0).to(q.dtype)
        scores = tl.dot(q, k).to(tl.float32) * scale
        scores = tl.where(token_ok[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        shrink = tl.exp(best - new_best)
        weights = tl.exp(scores - new_best[:, None])
        v_ok = token_ok[:, None] & dim_ok[None, :]
        v = tl.load(values + places[:, None] + dims[None, :], mask=v_ok, other=0.0).to(q.dtype)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        best = new_best

    place = (row * HEADS + query_head_ids) * SPLITS + slice_id
    tl.store(partial + place[:, None] * D + dims[None, :], weighted, mask=head_ok[:, None] & dim_ok[None, :])
    tl.store(summary + place * 2, best, mask=head_ok)
    tl.store(summary + place * 2 + 1, total, mask=head_ok)


@triton.jit
def combine_slices(
    partial, summary, out, sinks, D: tl.constexpr, WIDTH: tl.constexpr, SPLITS_PADDED: tl.constexpr,
    SINKS: tl.constexpr, SPLITS, HEADS,
):  # fmt: skip
    """Merge a context's slices by their softmax maxima and sums. Empty slices weigh 0; a sink adds only to the sum."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    slices = tl.arange(0, SPLITS_PADDED)
    dims = tl.arange(0, WIDTH)
    ok = slices < SPLITS
    dim_ok = dims < D
    place = (row * HEADS + head) * SPLITS + slices
    best = tl.load(summary + place * 2, mask=ok, other=float("-inf"))
    total = tl.load(summary + place * 2 + 1, mask=ok, other=0.0)
    parts_ok = ok[:, None] & dim_ok[None, :]
    parts = tl.load(partial + place[:, None] * D + dims[None, :], mask=parts_ok, other=0.0)
    top = tl.max(best, axis=0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, sink)
    scale = tl.where(total > 0, tl.exp(best - top), 0.0)
    weight = tl.sum(total * scale, axis=0)
    if SINKS:
        weight += tl.exp(sink - top)
    joined = tl.sum(parts * scale[:, None], axis=0) / weight
    tl.store(out + (row * HEADS + head) * D + dims, joined.to(out.dtype.element_ty), mask=dim_ok)
