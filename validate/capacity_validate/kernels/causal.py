"""Causal attention of new tokens at the end of a longer context: prefill, chunked prefill, and verification.

FlashAttention does not accept a boolean mask, and other kernels may store all scores in memory. The mask is therefore
given as lower-right aligned, which FlashAttention accepts. The kernels that ran are counted because the step model
assumes FlashAttention.
"""

from collections import Counter
from typing import Any

import torch
from torch.nn import functional

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
