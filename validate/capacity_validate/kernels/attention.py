"""Attention over a KV cache: prefill by backend, contiguous and paged decode, and MLA with absorbed projections.

If FlashAttention 3 and FlashInfer are installed, they are measured too, to show the performance of engines' kernels on
this GPU. Step-model constants are fitted only to the kernels of torch and of this package. Source of the calls:
Dao-AILab/flash-attention, hopper/flash_attn_interface.py; docs.flashinfer.ai, 2026-11.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from capacity_validate.cases import Case
from capacity_validate.kernels import (
    KernelContext,
    PreparedCase,
    Unsupported,
    attempt,
    import_optional,
    peak_bytes,
    relative_error,
)

# parts of a result that are checked against a float64 reference
CHECKED_ROWS = 8
CHECKED_SEQUENCES = 2
CHECKED_KV_HEADS = 2
CHECKED_LATENT_HEADS = 4
_BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}

DecodeParts = tuple[Sequence[Callable[[], Any]], Callable[[], float], float]
"""Calls of a kernel, the check of their result, and the bytes of the KV cache."""


def prefill_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare causal attention of whole prompts by one SDPA backend or package."""
    if case.variant in PACKAGES:
        return prepare_prefill(case, bench, partial(prefill_call, case.variant))
    return prepare_prefill(case, bench, partial(_sdpa_call, bench, _backend(bench, case.variant)))


def prepare_prefill(
    case: Case, bench: KernelContext, make_call: Callable[[Any, Any, Any], Callable[[], Any]]
) -> PreparedCase:
    """Prepare causal attention of whole prompts, with a measurement of its memory. `make_call` returns the call for
    queries, keys and values [batch, heads, tokens, d]."""
    batch, heads, kv_heads, d = case["batch"], case["heads"], case["kv_heads"], case["head_dim"]
    tokens, dtype = case["tokens"], bench.dtype(case.kernel)
    item = dtype.itemsize
    moved = item * batch * tokens * d * (2 * heads + 2 * kv_heads)

    def inputs() -> tuple[Any, Any, Any]:
        q = bench.random(batch, heads, tokens, d, dtype=dtype)
        k, v = (bench.random(batch, kv_heads, tokens, d, dtype=dtype) for _ in range(2))
        return q, k, v

    sets = [inputs() for _ in range(2)]  # not cold: queries, keys and values have just been written
    calls = [make_call(*one) for one in sets]
    attempt(calls[0])

    return PreparedCase(
        calls=calls,
        check=partial(_prefill_error, bench.torch, *sets[0], calls[0]),
        flops=4.0 * batch * heads * d * tokens * (tokens + 1) / 2,
        bytes=float(moved),
        extra_bytes=lambda: peak_bytes(bench, calls[0]),
    )


def _backend(bench: KernelContext, name: str) -> Any:
    from torch.nn.attention import SDPBackend

    if not name:
        return None
    if name not in _BACKENDS or (name in ("efficient", "cudnn") and not bench.on_cuda):
        raise Unsupported(f"SDPA backend {name!r} does not exist on {bench.device}")
    return getattr(SDPBackend, _BACKENDS[name])


def _sdpa_call(bench: KernelContext, backend: Any, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    from torch.nn.attention import sdpa_kernel

    sdpa = bench.torch.nn.functional.scaled_dot_product_attention
    if k.shape[1] != q.shape[1] and not bench.on_cuda:
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    call = partial(sdpa, q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
    if backend is None:
        return call

    def by_backend() -> Any:
        with sdpa_kernel([backend]):
            return call()

    return by_backend


def reference_attention(torch: Any, q: Any, k: Any, v: Any, *, positions: Any = None) -> Any:
    """Return softmax attention in float64 on the inputs' device. Tensors are [batch, heads, tokens, d]; `k` and `v`
    may have fewer heads (GQA).

    The causal mask uses the `positions` of the queries in the context; without, every query attends to every key.
    """
    q, k, v = (x.detach().double() for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if positions is not None:
        places = torch.tensor(list(positions), device=q.device)
        seen = torch.arange(k.shape[2], device=q.device)
        scores = scores.masked_fill(seen[None, :] > places[:, None], float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def sample_indices(count: int, most: int) -> list[int]:
    """Return up to `most` evenly spaced indices below `count`, including the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def sampled_error(torch: Any, q: Any, k: Any, v: Any, out: Any, *, positions: Any = None) -> float:
    """Return the relative error of `out` for a sample of KV heads, because all heads in float64 would take seconds."""
    groups = q.shape[1] // k.shape[1]
    chosen = sample_indices(k.shape[1], CHECKED_KV_HEADS)
    queries = [head * groups + member for head in chosen for member in range(groups)]
    reference = reference_attention(torch, q[:, queries], k[:, chosen], v[:, chosen], positions=positions)
    return relative_error(torch, out[:, queries], reference)


def _prefill_error(torch: Any, q: Any, k: Any, v: Any, call: Callable[[], Any]) -> float:
    """Return the relative error of `call` for a sample of query positions of the first prompt."""
    places = sample_indices(q.shape[2], CHECKED_ROWS)
    out = call()[:1, :, places]
    return sampled_error(torch, q[:1, :, places], k[:1], v[:1], out, positions=places)


def decode_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare decode of one token per sequence, all with equal contexts, from a contiguous or a paged cache."""
    if case.variant == "flashinfer":
        return prepare_decode(case, bench, paged_decode(case, bench, partial(paged_decode_call, bench)))
    if case.variant == "paged":
        return prepare_decode(case, bench, paged_decode(case, bench, own_paged_call))
    return prepare_decode(case, bench, _contiguous_decode(case, bench))


def prepare_decode(case: Case, bench: KernelContext, parts: DecodeParts) -> PreparedCase:
    calls, check, cache_bytes = parts
    values = case["batch"] * case["heads"] * case["head_dim"]  # number of query values
    return PreparedCase(
        calls=calls,
        check=check,
        flops=4.0 * values * case["context"],
        bytes=cache_bytes + 2.0 * values * bench.dtype(case.kernel).itemsize,
    )


def _contiguous_decode(case: Case, bench: KernelContext) -> DecodeParts:
    batch, heads, kv_heads, d = case["batch"], case["heads"], case["kv_heads"], case["head_dim"]
    context, dtype = case["context"], bench.dtype(case.kernel)
    cache_bytes = 2 * batch * kv_heads * context * d * dtype.itemsize
    sdpa = bench.torch.nn.functional.scaled_dot_product_attention

    # a group's query heads become query rows of their KV head, so the cache is not copied per head
    q = bench.random(batch, kv_heads, heads // kv_heads, d, dtype=dtype)
    copies = bench.copy_count(cache_bytes)
    keys, values = (
        bench.rotating_tensors(copies, batch, kv_heads, context, d, dtype=dtype, part=part)
        for part in range(2)
    )
    sets = [(q, k, v) for k, v in zip(keys, values, strict=True)]
    calls = [partial(sdpa, *one) for one in sets]

    def check() -> float:
        rows = sample_indices(batch, CHECKED_SEQUENCES)
        q, k, v = (x[rows] for x in sets[0])
        q, out = (x.flatten(1, 2).unsqueeze(2) for x in (q, calls[0]()[rows]))
        return sampled_error(bench.torch, q, k, v, out)

    return calls, check, cache_bytes


def own_paged_call(q: Any, keys: Any, values: Any, table: Any, *, context: int) -> Callable[[], Any]:
    """Return a call of the harness's own decode kernel over pages [pages, tokens, KV heads, d]."""
    from capacity_validate.kernels.paged import paged_decode_attention

    contexts = table.new_full((q.shape[0],), context).int()
    ours = partial(paged_decode_attention, max_context=context, contexts_cpu=[context] * q.shape[0])
    return partial(ours, q, keys, values, table, contexts)


def paged_decode(
    case: Case, bench: KernelContext, make_call: Callable[..., Callable[[], Any]]
) -> DecodeParts:
    """Return the calls of a decode kernel over a paged cache. `make_call` takes queries, keys, values, block table and
    `context`."""
    torch = bench.torch
    batch, heads, kv_heads, d = case["batch"], case["heads"], case["kv_heads"], case["head_dim"]
    context, block, dtype = case["context"], case.get("block", 16), bench.dtype(case.kernel)
    cached = torch.float8_e4m3fn if case.kernel == "fp8" else dtype  # the cache only; queries stay 16 bit
    blocks_each = -(-context // block)
    total = batch * blocks_each
    cache_bytes = 2 * total * block * kv_heads * d * cached.itemsize

    q = bench.random(batch, heads, d, dtype=dtype)
    copies = bench.copy_count(cache_bytes)
    keys, values = (
        [
            one.to(cached)
            for one in bench.rotating_tensors(copies, total, block, kv_heads, d, dtype=dtype, part=part)
        ]
        for part in range(2)
    )

    def table() -> Any:
        order = torch.randperm(total, generator=bench.generator, device=bench.device)
        return order.view(batch, blocks_each)

    sets = [(q, k, v, table()) for k, v in zip(keys, values, strict=True)]
    calls = [make_call(*one, context=context) for one in sets]
    if case.variant != "paged":  # kernels of other packages may reject the device
        attempt(calls[0])

    return calls, partial(_paged_decode_error, torch, *sets[0], context, calls[0]), cache_bytes


def _paged_decode_error(
    torch: Any, q: Any, keys: Any, values: Any, table: Any, context: int, call: Callable[[], Any]
) -> float:
    """Return the relative error of `call` for a sample of sequences, whose blocks are gathered for the reference."""
    rows = sample_indices(q.shape[0], CHECKED_SEQUENCES)
    blocks = table[rows].long()
    k, v = (x.to(q.dtype)[blocks].flatten(1, 2)[:, :context].transpose(1, 2) for x in (keys, values))
    return sampled_error(torch, q[rows].unsqueeze(2), k, v, call()[rows].unsqueeze(2))


def mla_prefill(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare causal MLA attention of whole prompts, with expanded keys and (narrower) values."""
    from capacity_validate.kernels.paged import causal_attention

    batch, heads, tokens, dtype = case["batch"], case["heads"], case["tokens"], bench.dtype(case.kernel)
    keys, width = case["nope"] + case["rope"], case["value"]

    def inputs() -> tuple[Any, Any, Any]:
        q, k = (bench.random(batch, heads, tokens, keys, dtype=dtype) for _ in range(2))
        return q, k, bench.random(batch, heads, tokens, width, dtype=dtype)

    sets = [inputs() for _ in range(2)]
    used: Counter[str] = Counter()
    calls = [partial(causal_attention, *one, used=used) for one in sets]
    attempt(calls[0])

    return PreparedCase(
        calls=calls,
        check=partial(_prefill_error, bench.torch, *sets[0], calls[0]),
        flops=2.0 * batch * heads * (keys + width) * tokens * (tokens + 1) / 2,
        bytes=float(dtype.itemsize * batch * tokens * heads * (2 * keys + 2 * width)),
        note=f"ran as {', '.join(used)}" if used else "",
    )


def mla_decode(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare absorbed MLA decode: every head reads one shared latent cache of `latent + rope` values per token."""
    torch = bench.torch
    batch, heads, latent, rope = case["batch"], case["heads"], case["latent"], case["rope"]
    context, dtype = case["context"], bench.dtype(case.kernel)
    cache_bytes = batch * context * (latent + rope) * dtype.itemsize
    scale = (case.get("nope", 128) + rope) ** -0.5

    query = bench.random(batch, heads, latent + rope, dtype=dtype)
    caches = bench.rotating_tensors(bench.copy_count(cache_bytes), batch, context, latent + rope, dtype=dtype)
    sets = [(query, cache) for cache in caches]
    calls = [partial(absorbed_decode, torch, *one, latent=latent, scale=scale) for one in sets]

    def check() -> float:
        rows, some = sample_indices(batch, CHECKED_SEQUENCES), sample_indices(heads, CHECKED_LATENT_HEADS)
        q, cache = (x[rows].detach().double() for x in sets[0])
        weights = torch.softmax(q[:, some] @ cache.transpose(1, 2) * scale, dim=-1)
        return relative_error(torch, calls[0]()[rows][:, some], weights @ cache[..., :latent])

    return PreparedCase(
        calls=calls,
        check=check,
        flops=2.0 * batch * heads * context * (2 * latent + rope),
        bytes=cache_bytes + batch * heads * (2 * latent + rope) * float(dtype.itemsize),
    )


def absorbed_decode(torch: Any, query: Any, cache: Any, *, latent: int, scale: float) -> Any:
    """Return softmax(q · cacheᵀ) · cache[..., :latent]; the cache serves as keys and values."""
    scores = torch.bmm(query, cache.transpose(1, 2)) * scale
    weights = torch.softmax(scores.float(), dim=-1).to(cache.dtype)
    return torch.bmm(weights, cache[..., :latent])


PACKAGES = {"fa3": "flash_attn_interface", "flashinfer": "flashinfer"}
WORKSPACE_BYTES = 128 * 2**20  # required by FlashInfer


@cache
def flashinfer_workspace(torch: Any, device: str) -> Any:
    """Return zeros for FlashInfer's partial results, one buffer for all calls on a device."""
    return torch.zeros(WORKSPACE_BYTES, device=device, dtype=torch.uint8)


def prefill_call(name: str, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """Return a call of a package's causal attention on [batch, heads, tokens, d], converted to the package's
    layout."""
    found = import_optional(PACKAGES[name])
    rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # [batch, tokens, heads, d]
    if name == "fa3":

        def flash() -> Any:
            out = found.flash_attn_func(*rows, causal=True)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return flash
    if q.shape[0] != 1:
        raise Unsupported("FlashInfer needs ragged tensors for several prompts; measure one prompt")
    single = partial(found.single_prefill_with_kv_cache, *(x[0] for x in rows), causal=True)
    return lambda: single().unsqueeze(0).transpose(1, 2)


def paged_decode_call(
    bench: KernelContext, query: Any, keys: Any, values: Any, table: Any, *, context: int
) -> Callable[[], Any]:
    """Return a FlashInfer decode call over pages [pages, tokens, KV heads, d], `context` tokens per sequence."""
    found, torch = import_optional("flashinfer"), bench.torch
    batch, heads, d = query.shape
    block, kv_heads = keys.shape[1], keys.shape[2]
    pages = table.shape[1]

    def places(*values: int) -> Any:
        return torch.tensor(values, device=bench.device, dtype=torch.int32)

    wrapper = found.BatchDecodeWithPagedKVCacheWrapper(
        flashinfer_workspace(torch, bench.device), "NHD", use_tensor_cores=heads != kv_heads
    )
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
