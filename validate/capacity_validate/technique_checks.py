"""Checks that inference techniques (online softmax, sliding window, paged KV cache, ...) do not change the result.

Float64 on a CPU verifies an algorithm; only the device's own kernels, in the device's serving dtype, verify the
implementation. A model's allocated memory is also checked against the memory model.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import torch

from capacity.deployment import Pool
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import ModelSpec
from capacity.model.feed_forward import DenseFeedForward
from capacity.model.layers import Attention
from capacity.model.quantization import weight_bytes
from capacity.pool.activations import activation_bytes
from capacity.pool.resolve import with_defaults
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import Finding
from capacity_validate.kernels.attention import reference_attention
from capacity_validate.kernels.paged import paged_decode_attention
from capacity_validate.small_models import change_dtype, small_model, small_model_names
from capacity_validate.step_inputs import InputRow
from capacity_validate.transformer import GraphedTransformer, Transformer

TOKENS = 96
EXACT = 1e-9  # float64 against float64
SINGLE = 1e-4  # fp32 through six layers


def technique_findings() -> list[Finding]:
    """Return the results of all checks on the CPU, which take a few seconds on one core."""
    findings = [online_softmax(), sliding_window(), attention_sinks()]
    for name in small_model_names():
        findings += model_findings(name)
    return findings


def online_softmax(*, tokens: int = 1000, block: int = 64, seed: int = 0) -> Finding:
    """Check softmax by blocks, rescaled when the maximum grows, against plain softmax attention."""
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
    """Check decode over the last `window` tokens of a paged cache against attention over only these tokens."""
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
    """Check that attention over the first `sinks` and last `window` tokens equals attention with all other tokens
    masked."""
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
    """Check a small model: cached against uncached results, and cache bytes against the memory model."""
    model = Transformer(small_model(name), device="cpu", num_blocks=32)
    return [
        Finding(
            name=f"{name}: cached = uncached",
            value=cache_difference(model),
            limit=SINGLE,
            detail=f"{TOKENS} tokens in fp32: relative difference between one prefill, and two chunks and eight "
            "decode steps",
        ),
        _cache_finding(model, f"{name}: cache bytes"),
    ]


def _cache_finding(model: Transformer, name: str) -> Finding:
    spec, slots = model.model, model.allocated_blocks * model.block_size
    return Finding(
        name=name,
        value=float(sum(cache.nbytes for cache in model.cache_tensors)),
        limit=float(slots * sum(group.bytes_per_token for group in spec.kv_cache_groups())),
        detail=f"{spec.attention_kind}, {slots} tokens: allocated tensors compared with the memory model, exact",
        exact=True,
    )


def cache_difference(model: Transformer) -> float:
    """Return the largest relative difference between last logits of one prefill, and of chunks plus decode steps."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.model.vocab_size, (TOKENS,), generator=generator).tolist()
    order = torch.randperm(model.num_blocks, generator=generator).tolist()
    first, second = order[:8], order[8:16]
    whole = model.logits(model.inputs([InputRow(tokens=tokens, computed=0, blocks=first)]))
    last: Any = None
    stops = [0, TOKENS // 2, TOKENS - 8, *range(TOKENS - 7, TOKENS + 1)]
    for start, stop in pairwise(stops):
        last = model.logits(
            model.inputs([InputRow(tokens=tokens[start:stop], computed=start, blocks=second)])
        )
    return float((whole - last).abs().max() / whole.abs().max())


MODEL_TOLERANCES = {"bf16": 6e-2, "fp32": 1e-4}  # relative, of the last logits through six layers
KERNEL_TOLERANCES = {"bf16": 2e-2, "fp32": 1e-5}
GRAPH_DOUBT = 0.05  # limit of `graph_logit_gap`, from bf16 precision
GRAPHED = ("tiny", "tiny-moe", "tiny-mla", "tiny-sinks")
WINDOWS = ((32, 8, 128, None), (8, 8, 64, None), (28, 4, 128, 300))  # heads, KV heads, width, window
CONTEXTS = (1, 777, 2048)


def served_dtype(device: str) -> Literal["bf16", "fp32"]:
    return "fp32" if device == "cpu" else "bf16"


def device_model(device: str, name: str) -> ModelSpec:
    """Return a small model in the dtype in which the device serves models (bf16 on a GPU)."""
    spec, dtype = small_model(name), served_dtype(device)
    if dtype == spec.dtype:
        return spec
    return change_dtype(spec, dtype)


def device_findings(device: str, captures: GraphCapturer | None) -> Iterator[Finding]:
    """Yield results of checks on the device one by one, the most general first in case the run is interrupted."""
    dtype = served_dtype(device)
    for heads, kv_heads, width, window in WINDOWS:
        yield paged_finding(device, heads=heads, kv_heads=kv_heads, width=width, window=window)
    names = sorted(small_model_names(), key=lambda name: name not in GRAPHED)
    for name in names:
        model = Transformer(device_model(device, name), device=device, num_blocks=64)
        yield Finding(
            name=f"{name}: cached = uncached, on {device} in {dtype}",
            value=cache_difference(model),
            limit=MODEL_TOLERANCES[dtype],
            detail="relative difference between one prefill, and two chunks and eight decode steps over a paged cache",
        )
        if captures is not None and name in GRAPHED and model.capturable:
            yield Finding(
                name=f"{name}: graphs = eager, on {device} in {dtype}",
                value=graph_logit_gap(model, captures),
                limit=GRAPH_DOUBT,
                detail="decodes of up to three sequences, padded to graphs of two and four; logit gap to the eager "
                "choice",
            )


def paged_finding(
    device: str, *, heads: int, kv_heads: int, width: int, window: int | None, seed: int = 1
) -> Finding:
    """Check decode attention with a scattered block table and optionally a window, against float64."""
    dtype = served_dtype(device)
    generator = torch.Generator(device=device).manual_seed(seed)
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(kind)

    keys, values = (random(512, 16, kv_heads, width) for _ in range(2))
    query = random(len(CONTEXTS), heads, width)
    table = torch.randperm(512, generator=generator, device=device)[:384].view(len(CONTEXTS), 128)
    contexts, longest = torch.tensor(CONTEXTS, device=device), max(CONTEXTS)
    out = paged_decode_attention(
        query, keys, values, table, contexts, max_context=longest, contexts_cpu=CONTEXTS, window_tokens=window
    )
    errors = []
    for row, context in enumerate(CONTEXTS):
        first = max(0, context - window) if window else 0
        k, v = (c[table[row]].flatten(0, 1)[first:context].transpose(0, 1)[None] for c in (keys, values))
        expected = reference_attention(torch, query[row][None, :, None], k, v)[0, :, 0]
        errors.append(float((out[row].double().to(expected.device) - expected).norm() / expected.norm()))
    return Finding(
        name=f"paged attention, {heads}/{kv_heads} heads of {width}, window {window or 'none'}, on {device} in {dtype}",
        value=max(errors),
        limit=KERNEL_TOLERANCES[dtype],
        detail=f"contexts of {', '.join(map(str, CONTEXTS))} tokens; relative, compared with float64",
    )


def graph_logit_gap(model: Transformer, captures: GraphCapturer) -> float:
    """Return the largest gap between the top eager logit and the eager logit of the token that the CUDA graph chose,
    relative to the largest logit."""
    generator = torch.Generator().manual_seed(9)
    rows = []
    for index, context in enumerate((30, 90, 17)):
        tokens = torch.randint(model.model.vocab_size, (context,), generator=generator).tolist()
        blocks = list(range(index * 8, index * 8 + 8))
        model.logits(model.inputs([InputRow(tokens=tokens[:-1], computed=0, blocks=blocks)]))
        rows.append(InputRow(tokens=tokens[-1:], computed=context - 1, blocks=blocks))
    graphed: Any = GraphedTransformer(model, captures, sizes=(2, 4), max_context=128)
    eager = model.logits(model.inputs(rows)).float()
    gaps = []
    for count in (3, 2, 1):
        for row, token in enumerate(graphed.next_tokens(graphed.inputs(rows[:count]))):
            gaps.append(float((eager[row].max() - eager[row, token]) / eager[row].abs().max()))
    return max(gaps)


HIDDEN_COPIES = 2  # the residual and the normalised input
FUSED_FFN_COPIES = 3  # gate and up in one tensor, and SiLU(gate) · up
UNFUSED_FFN_COPIES = 4
ACTIVATION_TOLERANCE = 0.05  # allocators round up, and masks and positions are not counted


def exact_findings(model: Transformer) -> list[Finding]:
    """Check that weights and KV cache take exactly the bytes of the memory model."""
    spec = model.model
    weights = sum(tensor.nbytes for tensor in model.weight_tensors)
    return [
        Finding(
            name=f"{spec.name}: weight bytes",
            value=float(weights),
            limit=float(weight_bytes(spec)),
            detail="allocated parameters compared with the memory model, exact",
            exact=True,
        ),
        _cache_finding(model, f"{spec.name}: KV bytes"),
    ]


def peak_activation_bytes(torch: Any, model: Transformer, tokens: int) -> float:
    """Return a prefill's bytes in addition to weights and cache: allocator peak on a GPU, live tensors on a CPU."""
    from capacity_validate.kernels import KernelContext, peak_bytes

    step = model.inputs(
        [InputRow(tokens=[1] * tokens, computed=0, blocks=list(range(-(-tokens // model.block_size))))]
    )
    model.logits(step)
    bench = KernelContext(torch, model.device, 0, None, 0.0)
    return peak_bytes(bench, lambda: model.logits(step))


def fused_activation_bytes(model: Transformer, tokens: int) -> float:
    """Return the activation bytes that the memory model reserves for an engine step of `tokens` tokens."""
    pool = Pool(gpu="h100", max_num_seqs=1, max_num_batched_tokens=tokens)
    profile, engine = load_profile(pool.gpu), find_engine(pool.engine)
    halves = activation_bytes(with_defaults(pool, model.model, profile=profile, engine=engine))
    return float(halves * model.dtype.itemsize / 2)


def activation_findings(model: Transformer, tokens: int, measured_bytes: float) -> list[Finding]:
    """Check the activation peak against the memory model's formula, if the widest layer is a dense one.

    Gate, up and their product exist at the same time; on a CPU, without a fused activation, SiLU(gate) does too.
    """
    copies = UNFUSED_FFN_COPIES if model.device == "cpu" else FUSED_FFN_COPIES
    widest = _widest_dense(model.model)
    if widest is None:
        return []
    values = tokens * (HIDDEN_COPIES * model.model.hidden_size + copies * widest)
    expected = float(values * model.dtype.itemsize)
    return [
        Finding(
            name=f"{model.model.name}: activation peak",
            value=abs(measured_bytes / expected - 1.0),
            limit=ACTIVATION_TOLERANCE,
            detail=f"relative difference in a prefill of {tokens} tokens: {measured_bytes / 2**20:.2f} MiB measured, "
            f"{expected / 2**20:.2f} MiB by tokens x ({HIDDEN_COPIES} x hidden size + {copies} x FFN width)",
        )
    ]


def _widest_dense(model: ModelSpec) -> int | None:
    """Return the largest intermediate size of dense layers; None if experts or attention may need more memory."""
    widths = []
    for group in model.layer_groups:
        mixer, feed_forward = group.mixer, group.feed_forward
        if not isinstance(mixer, Attention) or not isinstance(feed_forward, DenseFeedForward):
            return None
        if 3 * mixer.num_heads * mixer.head_dim > 2 * feed_forward.intermediate_size:
            return None
        widths.append(feed_forward.intermediate_size)
    return max(widths)


def gpu_memory(torch: Any, device: str, *, alone: bool = True) -> dict[str, float]:
    """Return a GPU's memory use in bytes: torch's allocator, and the remaining memory in use (context, libraries).

    The remaining memory is included only if `alone`, because it would contain the memory of other processes.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    besides = {"nontorch_bytes": float(max(0, total - free - reserved))} if alone else {}
    return {
        "total_bytes": float(total),
        "reserved_bytes": float(reserved),
        "allocated_bytes": float(torch.cuda.memory_allocated(device)),
        **besides,
        "nontorch_bytes_of_an_engine": float(find_engine("vllm").nontorch_bytes_tp1),
    }


def pool_bytes(torch: Any, pool: Any) -> float:
    """Return the bytes of CUDA graphs in one memory pool, from the segments of torch's allocator."""
    segments = torch.cuda.memory_snapshot()
    return float(sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(pool)))
