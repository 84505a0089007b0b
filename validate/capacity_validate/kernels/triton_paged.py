"""Triton kernels of paged decode attention. Imported on GPUs only: Triton comes with torch's CUDA builds."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803
# Triton reads compile-time constants by their capitals.

import triton
import triton.language as tl


@triton.jit
def paged_decode(
    query, keys, values, block_table, contexts, partial, summary,
    query_row, query_head, cache_block, cache_token, cache_head, table_row,
    scale, window_tokens,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One slice of one sequence and KV head: online softmax over tiles of tokens, found through the block table."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    slice_id = tl.program_id(2)
    context = tl.load(contexts + row)
    first = tl.where(window_tokens > 0, tl.maximum(context - window_tokens, 0), 0)
    length = tl.cdiv(context - first, SPLITS)
    begin = first + slice_id * length
    end = tl.minimum(begin + length, context)

    heads = tl.arange(0, GROUP_PADDED)
    dims = tl.arange(0, D)
    head_ok = heads < GROUP
    query_head_ids = kv_head * GROUP + heads
    q = tl.load(
        query + row * query_row + query_head_ids[:, None] * query_head + dims[None, :],
        mask=head_ok[:, None],
        other=0.0,
    )

    best = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    weighted = tl.zeros([GROUP_PADDED, D], tl.float32)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        token_ok = tokens < end
        blocks = tl.load(block_table + row * table_row + tokens // BLOCK, mask=token_ok, other=0).to(tl.int64)
        places = blocks * cache_block + (tokens % BLOCK) * cache_token + kv_head * cache_head
        k = tl.load(keys + places[None, :] + dims[:, None], mask=token_ok[None, :], other=0.0)
        scores = tl.dot(q, k).to(tl.float32) * scale
        scores = tl.where(token_ok[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        shrink = tl.exp(best - new_best)
        weights = tl.exp(scores - new_best[:, None])
        v = tl.load(values + places[:, None] + dims[None, :], mask=token_ok[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        best = new_best

    place = (row * HEADS + query_head_ids) * SPLITS + slice_id
    tl.store(partial + place[:, None] * D + dims[None, :], weighted, mask=head_ok[:, None])
    tl.store(summary + place * 2, best, mask=head_ok)
    tl.store(summary + place * 2 + 1, total, mask=head_ok)


@triton.jit
def combine_slices(
    partial,
    summary,
    out,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Slices joined by their maxima and sums; empty slices weigh nothing."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    slices = tl.arange(0, SPLITS_PADDED)
    dims = tl.arange(0, D)
    ok = slices < SPLITS
    place = (row * HEADS + head) * SPLITS + slices
    best = tl.load(summary + place * 2, mask=ok, other=float("-inf"))
    total = tl.load(summary + place * 2 + 1, mask=ok, other=0.0)
    parts = tl.load(partial + place[:, None] * D + dims[None, :], mask=ok[:, None], other=0.0)
    scale = tl.where(total > 0, tl.exp(best - tl.max(best, axis=0)), 0.0)
    joined = tl.sum(parts * scale[:, None], axis=0) / tl.sum(total * scale, axis=0)
    tl.store(out + (row * HEADS + head) * D + dims, joined.to(out.dtype.element_ty))
