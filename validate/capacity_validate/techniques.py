"""The techniques of inference engines, held to what they promise: the same result, for fewer bytes or steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from capacity_validate.findings import Finding
from capacity_validate.kernels.attention import reference_attention
from capacity_validate.small_models import small_model, small_model_names
from capacity_validate.step_inputs import Row
from capacity_validate.transformer import Transformer

TOKENS = 96
EXACT = 1e-9  # float64 against float64
SINGLE = 1e-4  # fp32 through six layers


def technique_findings() -> list[Finding]:
    """All of them; some seconds on a CPU core."""
    findings = [online_softmax(), sliding_window(), attention_sinks()]
    for name in small_model_names():
        findings += model_findings(name)
    return findings


def online_softmax(*, tokens: int = 1000, block: int = 64, seed: int = 0) -> Finding:
    """Block by block, rescaling as the maximum grows, against plain softmax attention."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, 32, generator=generator, dtype=torch.float64) * 3 for n in (5, tokens, tokens))
    best = torch.full((5, 1), float("-inf"), dtype=torch.float64)
    total, weighted = torch.zeros(5, 1, dtype=torch.float64), torch.zeros(5, 32, dtype=torch.float64)
    for start in range(0, tokens, block):
        scores = q @ k[start : start + block].T * 32**-0.5
        new_best = torch.maximum(best, scores.amax(dim=-1, keepdim=True))
        shrink, weights = torch.exp(best - new_best), torch.exp(scores - new_best)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        weighted = weighted * shrink + weights @ v[start : start + block]
        best = new_best
    plain = torch.softmax(q @ k.T * 32**-0.5, dim=-1) @ v
    return Finding(
        name="online softmax = softmax",
        value=float((weighted / total - plain).abs().max()),
        limit=EXACT,
        detail=f"{tokens} tokens in blocks of {block}, float64",
    )


def sliding_window(*, window: int = 64, context: int = 200, seed: int = 0) -> Finding:
    """Decode over only the last `window` tokens of a paged cache, against a masked score matrix."""
    from capacity_validate.kernels.paged import paged_decode_attention

    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(16, 16, 2, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    q = torch.randn(1, 8, 32, generator=generator, dtype=torch.float64)
    table = torch.randperm(16, generator=generator)[None, :]
    contexts = torch.tensor([context])
    out = paged_decode_attention(
        q, keys, values, table, contexts, max_context=context, contexts_cpu=[context], window_tokens=window
    )
    k, v = (
        cache[table[0]].flatten(0, 1)[context - window : context].transpose(0, 1)[None]
        for cache in (keys, values)
    )
    expected = reference_attention(torch, q.transpose(0, 1)[None], k, v)[0].transpose(0, 1)
    return Finding(
        name="sliding window = masked attention",
        value=float((out - expected).abs().max()),
        limit=EXACT,
        detail=f"window {window} of {context} tokens through a block table, float64",
    )


def attention_sinks(*, sinks: int = 4, window: int = 32, context: int = 128, seed: int = 0) -> Finding:
    """Keeping the first `sinks` and last `window` tokens equals masking the middle: the softmax renormalises."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, 4, n, 32, generator=generator, dtype=torch.float64) for n in (1, context, context)
    )
    kept = torch.cat([torch.arange(sinks), torch.arange(context - window, context)])
    short = reference_attention(torch, q, k[:, :, kept], v[:, :, kept])
    scores = q @ k.transpose(-1, -2) * 32**-0.5
    mask = torch.full((context,), float("-inf"), dtype=torch.float64)
    mask[kept] = 0.0
    return Finding(
        name="attention sinks = masked attention",
        value=float((torch.softmax(scores + mask, dim=-1) @ v - short).abs().max()),
        limit=EXACT,
        detail=f"{sinks} sinks and a window of {window}: {len(kept)} of {context} tokens kept",
    )


def model_findings(name: str) -> list[Finding]:
    """A small model: cached against uncached, and the bytes of its cache against those of the memory model."""
    spec = small_model(name)
    model = Transformer(spec, device="cpu", num_blocks=32)
    allocated = sum(cache.nbytes for cache in model.cache_tensors)
    slots = model.cache_slots
    promised = slots * sum(group.bytes_per_token for group in spec.kv_cache_groups())
    return [
        Finding(
            name=f"{name}: cached = uncached",
            value=cached_against_uncached(model),
            limit=SINGLE,
            detail=f"{TOKENS} tokens: one prefill against two chunks and eight decode steps; relative, fp32",
        ),
        Finding(
            name=f"{name}: cache bytes",
            value=float(allocated),
            limit=float(promised),
            detail=f"{spec.attention_kind}, {slots} tokens: tensors allocated against the memory model, to the byte",
            exact=True,
        ),
    ]


def cached_against_uncached(model: Transformer) -> float:
    """Relative difference of the last logits: all at once, or in chunks and single tokens over a paged cache."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.model.vocab_size, (TOKENS,), generator=generator).tolist()
    order = torch.randperm(model.num_blocks, generator=generator).tolist()
    first, second = order[:8], order[8:16]
    whole = model.logits(model.inputs([Row(tokens=tokens, computed=0, blocks=first)]))
    last: Any = None
    stops = [0, TOKENS // 2, TOKENS - 8, *range(TOKENS - 7, TOKENS + 1)]
    for start, stop in pairwise(stops):
        last = model.logits(model.inputs([Row(tokens=tokens[start:stop], computed=start, blocks=second)]))
    return float((whole - last).abs().max() / whole.abs().max())
