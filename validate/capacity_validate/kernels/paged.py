"""Attention over a KV cache: decode from a paged cache, and causal attention of a context's last tokens.

Decode runs a Triton kernel that reads a block table on a GPU, and gathers the blocks on a CPU. Caches are [blocks,
block size, KV heads, head size]; row i of the block table lists the block ids of sequence i.

Causal attention serves prefill, chunked prefill, and verification. FlashAttention does not accept a boolean mask, and
other kernels may store all scores in memory. The mask is therefore given as lower-right aligned, which FlashAttention
accepts. The kernels that ran are counted because the step model assumes FlashAttention.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from capacity_validate.kernels.fused import load_triton_kernels, power_of_two


def paged_decode_attention(
    query: Any,
    keys: Any,
    values: Any,
    block_table: Any,
    contexts: Any,
    *,
    max_context: int,
    contexts_cpu: Sequence[int] | None = None,
    window_tokens: int | None = None,
    chunked: bool = False,
    sinks: Any = None,
) -> Any:
    """Return decode attention [batch, heads, d] of one query per sequence; sequence i has `contexts[i]` tokens.

    With `window_tokens`, a query sees only the last tokens of its sequence, or with `chunked` only its own chunk.
    `sinks` has one logit per head, of an additional key that every query sees and whose value is zero. `contexts_cpu`
    are the contexts on the host for the CPU version; if omitted, they are read from the device.
    """
    if query.is_cuda:
        return _triton_decode(
            query,
            keys,
            values,
            block_table,
            contexts,
            max_context,
            window_tokens or 0,
            chunked=chunked,
            sinks=sinks,
        )
    _, heads, d = query.shape
    kv_heads = keys.shape[2]
    out = torch.empty_like(query)
    # one sequence at a time, so that time depends on the sum of contexts, not on the longest
    for row, context in enumerate(contexts.tolist() if contexts_cpu is None else contexts_cpu):
        first = first_visible_token(context, window_tokens, chunked=chunked)
        k, v = (
            gather_context(cache, block_table[row], context, first=first).to(query.dtype)
            for cache in (keys, values)
        )
        q = query[row].view(kv_heads, heads // kv_heads, d)
        bias = None
        if sinks is not None:
            visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
            k, v, bias = append_sink(k, v, sinks.view(kv_heads, -1), visible)
        attended = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=None if bias is None else bias[None]
        )
        out[row] = attended[0].reshape(heads, d)
    return out


def first_visible_token(context: int, window_tokens: int | None, *, chunked: bool) -> int:
    """Return the position of the first token that the last token of a context of `context` tokens attends to."""
    if window_tokens is None:
        return 0
    return (context - 1) // window_tokens * window_tokens if chunked else max(0, context - window_tokens)


def append_sink(k: Any, v: Any, sinks: Any, visible: Any) -> tuple[Any, Any, Any]:
    """Append a zero token to k and v; return both, and the attention bias, which gives this token the sink's logit.

    k, v [heads, tokens, d]; `sinks` [heads, queries or 1]; `visible` [queries, tokens]. Source: gpt-oss's model card.
    """
    k, v = (torch.cat([part, torch.zeros_like(part[:, :1])], dim=1) for part in (k, v))
    bias = torch.zeros(visible.shape, device=k.device, dtype=k.dtype).masked_fill(~visible, float("-inf"))
    last = sinks.to(k.dtype).expand(-1, visible.shape[0])[..., None]
    return k, v, torch.cat([bias.expand(k.shape[0], -1, -1), last], dim=-1)


def gather_context(cache: Any, blocks: Any, tokens: int, *, first: int = 0) -> Any:
    """Return the cached tokens `first` to `tokens` - 1 of one sequence as [KV heads, tokens, d]."""
    block_size = cache.shape[1]
    used = blocks[first // block_size : -(-tokens // block_size)]
    start = first - first // block_size * block_size
    return cache.index_select(0, used).flatten(0, 1)[start : start + tokens - first].transpose(0, 1)


def _triton_decode(
    query: Any,
    keys: Any,
    values: Any,
    block_table: Any,
    contexts: Any,
    max_context: int,
    window_tokens: int,
    *,
    chunked: bool = False,
    sinks: Any = None,
) -> Any:
    """Run split-K flash decoding: one program per context slice and KV head; a second kernel merges the slices."""
    query = query.contiguous()
    batch, heads, d = query.shape
    kv_heads, block_size = keys.shape[2], keys.shape[1]
    group, width = heads // kv_heads, power_of_two(d)
    longest = min(max_context, window_tokens) if window_tokens else max_context
    splits = _split_count(batch * kv_heads, longest, query.device.index)
    partial = torch.empty(batch, heads, splits, d, device=query.device, dtype=torch.float32)
    summary = torch.empty(batch, heads, splits, 2, device=query.device, dtype=torch.float32)
    out = torch.empty_like(query)
    load_triton_kernels().paged_decode[(batch, kv_heads, splits)](
        query, keys, values, block_table, contexts, partial, summary,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), keys.stride(2), block_table.stride(0),
        d**-0.5, window_tokens,
        GROUP=group, GROUP_PADDED=max(16, power_of_two(group)), D=d, WIDTH=width, BLOCK=block_size,
        TILE=64, SPLITS=splits, HEADS=heads, CHUNKED=chunked, num_warps=4, num_stages=2,
    )  # fmt: skip
    load_triton_kernels().combine_slices[(batch, heads)](
        partial, summary, out, summary if sinks is None else sinks,
        D=d, WIDTH=width, SPLITS=splits, SPLITS_PADDED=power_of_two(splits), HEADS=heads, SINKS=sinks is not None,
    )  # fmt: skip
    return out


@lru_cache(maxsize=512)
def _split_count(programs: int, max_context: int, index: int | None) -> int:
    """Return how many slices to split a context into: a power of two up to 64, with at most two programs per SM and at
    least 256 tokens per slice."""
    units = torch.cuda.get_device_properties(index or 0).multi_processor_count
    wanted = max(1, min(2 * units // max(1, programs), max_context // 256, 64))
    return 1 << (int(wanted).bit_length() - 1)


FLASH = "flash"


def causal_attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, used: Counter[str] | None = None
) -> Any:
    """Return causal attention of q [1, heads, new, d], a context's last tokens, to k and v [1, KV heads, context, d].

    Query i sees the first context - new + i + 1 tokens. `used` counts calls by kernel. As in MLA, v may be narrower.
    """
    if not q.is_cuda:
        return _run_with_mask(q, k, v, scale=scale)
    width = v.shape[-1]
    if width < q.shape[-1]:  # FlashAttention needs equal widths; engines pad the values too
        v = functional.pad(v, (0, q.shape[-1] - width))
    flash = supports_flash(q, k, v)
    if used is not None:
        used[FLASH if flash else "masked"] += 1
    attended = _flash_attention(q, k, v, scale=scale) if flash else _run_with_mask(q, k, v, scale=scale)
    return attended.narrow(-1, 0, width)


def supports_flash(q: Any, k: Any, v: Any) -> bool:
    """Return whether torch would run FlashAttention on these tensors, given dtype, shape, GQA groups and card."""
    from torch.backends.cuda import SDPAParams, can_use_flash_attention

    grouped = k.shape[1] != q.shape[1]
    return bool(can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, grouped)))


def _flash_attention(q: Any, k: Any, v: Any, *, scale: float | None) -> Any:
    """Run FlashAttention or raise an error; never fall back to another kernel silently."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    square = q.shape[2] == k.shape[2]
    bias: Any = None if square else causal_lower_right(q.shape[2], k.shape[2])
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=square, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
        )


def _run_with_mask(q: Any, k: Any, v: Any, *, scale: float | None) -> Any:
    """Run attention with an explicit mask (or torch's causal flag if all tokens are new); KV heads are repeated."""
    new, context = q.shape[2], k.shape[2]
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    mask = None
    if new < context:
        mask = torch.ones(new, context, dtype=torch.bool, device=q.device).tril(context - new)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
    )
