"""Attention kernels that engines bring, where they are installed here: FlashAttention 3 and FlashInfer.

They are measured beside torch's to show what a card gives to engines; the fit follows the harness's own.
Source of the calls: Dao-AILab/flash-attention, hopper/flash_attn_interface.py; docs.flashinfer.ai, 2026-11.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from capacity_validate.kernels.prepared import KernelBench, Unsupported

PACKAGES = {"fa3": "flash_attn_interface", "flashinfer": "flashinfer"}
WORKSPACE_BYTES = 128 * 2**20  # that FlashInfer asks for


def package(name: str) -> Any:
    """The package of a backend. Raises Unsupported where it is not installed, or does not load."""
    try:
        return importlib.import_module(PACKAGES[name])
    except (ImportError, OSError, RuntimeError) as error:
        raise Unsupported(f"{PACKAGES[name]} is not installed here ({error})") from None


def prefill_call(name: str, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """Causal attention of [batch, heads, tokens, d] by a package, in its own order of dimensions."""
    found = package(name)
    rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # [batch, tokens, heads, d]
    if name == "fa3":

        def flash() -> Any:
            out = found.flash_attn_func(*rows, causal=True)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return flash
    if q.shape[0] != 1:
        raise Unsupported(
            "FlashInfer's prefill of several prompts needs ragged tensors: one prompt is measured"
        )
    single = partial(found.single_prefill_with_kv_cache, *(x[0] for x in rows), causal=True)
    return lambda: single().unsqueeze(0).transpose(1, 2)


def paged_decode_call(
    bench: KernelBench, query: Any, keys: Any, values: Any, table: Any, *, context: int
) -> Callable[[], Any]:
    """FlashInfer's decode over pages [pages, tokens, KV heads, d]; every sequence has `context` tokens."""
    found, torch = package("flashinfer"), bench.torch
    batch, heads, d = query.shape
    block, kv_heads = keys.shape[1], keys.shape[2]
    pages = table.shape[1]

    def places(*values: int) -> Any:
        return torch.tensor(values, device=bench.device, dtype=torch.int32)

    workspace = torch.empty(WORKSPACE_BYTES, device=bench.device, dtype=torch.uint8)
    wrapper = found.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=heads != kv_heads)
    wrapper.plan(
        places(*range(0, (batch + 1) * pages, pages)),
        table.flatten().to(torch.int32),
        places(*[context - (pages - 1) * block] * batch),
        heads,
        kv_heads,
        d,
        block,
        q_data_type=query.dtype,
        kv_data_type=keys.dtype,
    )
    return partial(wrapper.run, query, (keys, values))
