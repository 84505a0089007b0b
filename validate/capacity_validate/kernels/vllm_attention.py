"""Attention of an installed vLLM: FlashAttention, or FlashInfer on the GPUs where vLLM prefers it.

Source of the calls: vLLM 0.33.0 wheel, `vllm_flash_attn/flash_attn_interface.py`, `utils/flashinfer.py`,
`v1/attention/backends/flashinfer.py` and `platforms/cuda.py`; FlashInfer 0.7.4 wheel, `decode.py` and `prefill.py`. The
calls were checked against these signatures, but not run on a GPU. Not covered: FP8 KV caches and latent attention.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from capacity_validate.cases import Case
from capacity_validate.kernels import KernelContext, PreparedCase, attention, import_optional

FLASHINFER = range(100, 110)  # compute capabilities on which vLLM prefers FlashInfer to FlashAttention
PAGE_TOKENS = 16


def prefill_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare causal attention of whole prompts by vLLM's FlashAttention, or by FlashInfer where vLLM prefers it."""
    call = _flashinfer_prefill if bench.capability in FLASHINFER else _flash_prefill
    return attention.prepare_prefill(case, bench, partial(call, bench))


def decode_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare decode from a paged cache by vLLM's FlashAttention, or by FlashInfer where vLLM prefers it."""
    call = _flashinfer_decode if bench.capability in FLASHINFER else _flash_decode
    return attention.prepare_decode(case, bench, attention.paged_decode(case, bench, partial(call, bench)))


def _flashinfer_prefill(bench: KernelContext, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """Return FlashInfer's attention of whole prompts; TensorRT-LLM's kernel, if vLLM selects it, reads pages."""
    torch, (batch, heads, tokens, d), kv_heads = bench.torch, q.shape, k.shape[1]
    if not _uses_trtllm(q, kv_heads, batch * tokens, tokens, is_prefill=True):
        return attention.prefill_call("flashinfer", q, k, v)
    pages = -(-tokens // PAGE_TOKENS)

    def split_into_pages(x: Any) -> Any:
        padded = torch.nn.functional.pad(x, (0, 0, 0, pages * PAGE_TOKENS - tokens))
        split = padded.view(batch, kv_heads, pages, PAGE_TOKENS, d)
        return split.transpose(1, 2).reshape(batch * pages, kv_heads, PAGE_TOKENS, d)

    starts = _starts(bench, batch, tokens)
    run = partial(
        import_optional("flashinfer").prefill.trtllm_batch_context_with_kv_cache,
        q.transpose(1, 2).reshape(batch * tokens, heads, d),
        (split_into_pages(k), split_into_pages(v)),
        block_tables=torch.arange(batch * pages, device=bench.device, dtype=torch.int32).view(batch, pages),
        max_q_len=tokens,
        max_kv_len=tokens,
        batch_size=batch,
        cum_seq_lens_q=starts,
        cum_seq_lens_kv=starts,
        **_trtllm_settings(bench, batch, tokens, d),
    )
    return lambda: run().view(batch, tokens, heads, d).transpose(1, 2)


def _flashinfer_decode(
    bench: KernelContext, query: Any, keys: Any, values: Any, table: Any, *, context: int
) -> Callable[[], Any]:
    """Return FlashInfer's decode over pages [pages, tokens, KV heads, d]; TensorRT-LLM's kernel if vLLM selects it."""
    batch, _, d = query.shape
    if not _uses_trtllm(query, keys.shape[2], batch, context, is_prefill=False):
        return attention.paged_decode_call(bench, query, keys, values, table, context=context)
    return partial(
        import_optional("flashinfer").decode.trtllm_batch_decode_with_kv_cache,
        query,
        tuple(x.transpose(1, 2).contiguous() for x in (keys, values)),  # its pages have the KV heads first
        block_tables=table.to(bench.torch.int32),
        max_seq_len=context,
        **_trtllm_settings(bench, batch, context, d),
    )


def _uses_trtllm(q: Any, kv_heads: int, tokens: int, longest: int, *, is_prefill: bool) -> bool:
    uses = import_optional("vllm.utils.flashinfer").use_trtllm_attention
    return bool(uses(q.shape[1], kv_heads, tokens, longest, 1, "auto", q.dtype, is_prefill))


def _trtllm_settings(bench: KernelContext, batch: int, tokens: int, d: int) -> dict[str, Any]:
    torch = bench.torch
    return {
        "workspace_buffer": attention.flashinfer_workspace(torch, bench.device),
        "seq_lens": torch.full((batch,), tokens, device=bench.device, dtype=torch.int32),
        "bmm1_scale": d**-0.5,
        "bmm2_scale": 1.0,
    }


def _flash_attention() -> Callable[..., Any]:
    version = import_optional("vllm.v1.attention.backends.fa_utils").get_flash_attn_version()
    return partial(
        import_optional("vllm.vllm_flash_attn").flash_attn_varlen_func, causal=True, fa_version=version
    )


def _starts(bench: KernelContext, sequences: int, tokens: int) -> Any:
    """Return where each sequence begins among all query tokens, and their end."""
    torch = bench.torch
    return torch.arange(sequences + 1, device=bench.device, dtype=torch.int32) * tokens


def _flash_prefill(bench: KernelContext, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    batch, heads, tokens, d = q.shape
    rows = [x.transpose(1, 2).reshape(batch * tokens, -1, d) for x in (q, k, v)]
    starts = _starts(bench, batch, tokens)
    flash = partial(
        _flash_attention(), *rows, max_seqlen_q=tokens, cu_seqlens_q=starts, max_seqlen_k=tokens,
        cu_seqlens_k=starts,
    )  # fmt: skip
    return lambda: flash().view(batch, tokens, heads, d).transpose(1, 2)


def _flash_decode(
    bench: KernelContext, query: Any, keys: Any, values: Any, table: Any, *, context: int
) -> Callable[[], Any]:
    """Return a call over pages [pages, tokens, KV heads, d], `context` tokens per sequence."""
    torch, batch = bench.torch, query.shape[0]
    return partial(
        _flash_attention(),
        query,
        keys,
        values,
        max_seqlen_q=1,
        cu_seqlens_q=_starts(bench, batch, 1),
        max_seqlen_k=context,
        seqused_k=torch.full((batch,), context, device=bench.device, dtype=torch.int32),
        block_table=table.to(torch.int32),
    )
