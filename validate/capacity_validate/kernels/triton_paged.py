"""Triton kernels of paged decode attention. Imported on GPUs only: Triton comes with torch's CUDA builds."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803
# Triton reads compile-time constants by their capitals.

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["table_row", "window_tokens"])
def paged_decode(
    query, keys, values, block_table, contexts, partial, summary,
    query_row, query_head, cache_block, cache_token, cache_head, table_row,
    scale, window_tokens,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, CHUNKED: tl.constexpr, SPLITS, HEADS,
):  # fmt: skip
    """One slice of one sequence and KV head: online softmax over tiles of tokens, found through the block table.

    WIDTH is D rounded up to a power of two.
    """
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
    partial,
    summary,
    out,
    sinks,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    SINKS: tl.constexpr,
    SPLITS,
    HEADS,
):
    """Slices joined by their maxima and sums; empty slices weigh nothing, a sink weighs and adds nothing."""
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
