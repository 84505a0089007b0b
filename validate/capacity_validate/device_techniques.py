"""The techniques again, on the device that is measured and in the type that it serves in: its kernels, its graphs.

Float64 on a CPU says that an algorithm is right; only the device's own kernels can say that they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch

from capacity.model import ModelSpec
from capacity.model.quantization import find_format, uniform_scheme
from capacity_validate.capture import Captures
from capacity_validate.findings import Finding
from capacity_validate.graphs import GraphedTransformer
from capacity_validate.kernels.attention import reference_attention
from capacity_validate.kernels.paged import paged_decode_attention
from capacity_validate.small_models import small_model, small_model_names
from capacity_validate.step_inputs import Row
from capacity_validate.techniques import cached_against_uncached
from capacity_validate.transformer import Transformer

MODEL_TOLERANCES = {"bf16": 6e-2, "fp32": 1e-4}  # relative, of the last logits through six layers
KERNEL_TOLERANCES = {"bf16": 2e-2, "fp32": 1e-5}
GRAPH_DOUBT = 0.05  # gap of a graph's choice to eager's best logit, over the largest: bf16 can tell no better
GRAPHED = ("tiny", "tiny-moe", "tiny-mla", "tiny-sinks")
WINDOWS = ((32, 8, 128, None), (8, 8, 64, None), (28, 4, 128, 300))  # heads, KV heads, width, window
CONTEXTS = (1, 777, 2048)


def served_dtype(device: str) -> Literal["bf16", "fp32"]:
    return "fp32" if device == "cpu" else "bf16"


def model_on(device: str, name: str) -> ModelSpec:
    """A small model in the type that the device serves in."""
    spec, dtype = small_model(name), served_dtype(device)
    if dtype == spec.dtype:
        return spec
    half = find_format(dtype)
    return replace(spec, dtype=dtype, checkpoint=uniform_scheme(dtype, half, base=half))


def device_findings(device: str, captures: Captures | None) -> Iterator[Finding]:
    """One after the other, the broadest first: a run cut short has seen something of each kind."""
    dtype = served_dtype(device)
    for heads, kv_heads, width, window in WINDOWS:
        yield paged_finding(device, heads=heads, kv_heads=kv_heads, width=width, window=window)
    names = sorted(small_model_names(), key=lambda name: name not in GRAPHED)
    for name in names:
        model = Transformer(model_on(device, name), device=device, num_blocks=64)
        yield Finding(
            name=f"{name}: cached = uncached, on {device} in {dtype}",
            value=cached_against_uncached(model),
            limit=MODEL_TOLERANCES[dtype],
            detail="one prefill against two chunks and eight decode steps over a paged cache; relative",
        )
        if captures is not None and name in GRAPHED and model.capturable:
            yield Finding(
                name=f"{name}: graphs = eager, on {device} in {dtype}",
                value=graphs_against_eager(model, captures),
                limit=GRAPH_DOUBT,
                detail="decode steps of three rows and fewer, padded to graphs of two and four; gap to eager's choice",
            )


def paged_finding(
    device: str, *, heads: int, kv_heads: int, width: int, window: int | None, seed: int = 1
) -> Finding:
    """Decode attention through a scattered block table, windows included, against float64."""
    dtype = served_dtype(device)
    return Finding(
        name=f"paged attention, {heads}/{kv_heads} heads of {width}, window {window or 'none'}, on {device} in {dtype}",
        value=paged_error(device, heads=heads, kv_heads=kv_heads, width=width, window=window, seed=seed),
        limit=KERNEL_TOLERANCES[dtype],
        detail=f"contexts of {', '.join(map(str, CONTEXTS))} tokens; relative, against float64",
    )


def paged_error(
    device: str, *, heads: int, kv_heads: int, width: int, window: int | None, seed: int = 1
) -> float:
    """The largest relative error over contexts."""
    generator = torch.Generator(device=device).manual_seed(seed)
    kind = torch.float32 if served_dtype(device) == "fp32" else torch.bfloat16

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(kind)

    keys, values = (random(512, 16, kv_heads, width) for _ in range(2))
    query = random(len(CONTEXTS), heads, width)
    table = torch.randperm(512, generator=generator, device=device)[:384].view(len(CONTEXTS), 128)
    out = paged_decode_attention(
        query,
        keys,
        values,
        table,
        torch.tensor(CONTEXTS, device=device),
        max_context=max(CONTEXTS),
        contexts_cpu=list(CONTEXTS),
        window_tokens=window,
    )
    errors = []
    for row, context in enumerate(CONTEXTS):
        first = max(0, context - window) if window else 0
        k, v = (c[table[row]].flatten(0, 1)[first:context].transpose(0, 1)[None] for c in (keys, values))
        expected = reference_attention(torch, query[row][None, :, None], k, v)[0, :, 0]
        errors.append(float((out[row].double().to(expected.device) - expected).norm() / expected.norm()))
    return max(errors)


def graphs_against_eager(model: Transformer, captures: Captures) -> float:
    """The largest gap between eager's best logit and that of a graph's choice, over the largest logit."""
    generator = torch.Generator().manual_seed(9)
    rows = []
    for index, context in enumerate((30, 90, 17)):
        tokens = torch.randint(model.model.vocab_size, (context,), generator=generator).tolist()
        blocks = list(range(index * 8, index * 8 + 8))
        model.logits(model.inputs([Row(tokens=tokens[:-1], computed=0, blocks=blocks)]))
        rows.append(Row(tokens=tokens[-1:], computed=context - 1, blocks=blocks))
    graphed: Any = GraphedTransformer(model, captures, sizes=(2, 4), max_context=128)
    eager = model.logits(model.inputs(rows)).float()
    gaps = []
    for count in (3, 2, 1):
        for row, token in enumerate(graphed.next_tokens(graphed.inputs(rows[:count]))):
            gaps.append(float((eager[row].max() - eager[row, token]) / eager[row].abs().max()))
    return max(gaps)
