"""Operators of an installed vLLM, called as vLLM's layers call them, so that their times are those of this engine.

Source of the calls: vLLM 0.33.0 wheel, `_custom_ops.py`, `vllm_flash_attn/flash_attn_interface.py`,
`layers/quantization/utils/marlin_utils.py` and `platforms/cuda.py`; of `layers/fused_moe`: `fused_moe.py`, `config.py`,
`experts/marlin_moe.py`, and `oracle`, which chooses the kernels; of `distributed/device_communicators`:
`cuda_communicator.py` and the all-reduces that it chooses from (`custom_all_reduce.py`, `symm_mem.py`, `pynccl.py`,
`flashinfer_all_reduce.py`). The calls were checked against these signatures, but not run on a GPU. Not covered: FP4
experts, the experts of FlashInfer and DeepGEMM, block-scaled FP8 products, FP8 KV caches, latent attention, and the
all-reduce that is fused with a norm.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from capacity_validate.cases import Case
from capacity_validate.kernels import (
    KernelContext,
    PreparedCase,
    Unsupported,
    attempt,
    attention,
    experts,
    relative_error,
)
from capacity_validate.kernels import gemm as products
from capacity_validate.kernels.fused import plain_add_norm, rope_tables, silu_and_mul

FLASHINFER_CAPABILITY = 10  # compute capability (major) on which vLLM prefers FlashInfer to FlashAttention
MARLIN_GROUP = 128
MARLIN_BLOCKS_PER_SM = 4  # of the experts' kernel: MARLIN_MAX_BLOCKS_PER_SM
PAGE_TOKENS, POSITIONS, EPSILON = 16, 4096, 1e-6


def import_vllm(module: str) -> Any:
    """Import a module of vLLM. Raises Unsupported if this release has none of that name or it fails to load."""
    from importlib import import_module

    try:
        return import_module(f"vllm.{module}")
    except (ImportError, OSError, RuntimeError) as error:
        raise Unsupported(f"vllm.{module} cannot be imported ({error})") from None


def gemm(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare a quantized product, including the quantization of its activations."""
    builders = {"fp8": _fp8_product, "nvfp4": _nvfp4_product, "w4a16": _marlin_product}
    return products.prepare_products(case, bench, builders[case.kernel])


def _fp8_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return dynamic quantization by token and a CUTLASS product; the product uses values quantized before, so that
    its result can be checked."""
    ops, torch = import_vllm("_custom_ops"), bench.torch
    m, n, k = case["m"], case["n"], case["k"]
    a, w = (products.quantize_fp8(bench, rows, k, 1, k) for rows in (m, n))
    x = bench.random(m, k, dtype=torch.bfloat16)

    def call() -> Any:
        ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return ops.cutlass_scaled_mm(
            a.values, w.values.T, scale_a=a.scales, scale_b=w.scales, out_dtype=torch.bfloat16
        )

    attempt(call)
    return products.check_product(bench, call, a.corner, w.corner)


def _nvfp4_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return quantization of activations to NVFP4 and a CUTLASS product of values quantized before."""
    ops, torch, k = import_vllm("_custom_ops"), bench.torch, case["k"]
    a, w = (products.quantize_nvfp4(bench, rows, k, weights=False) for rows in (case["m"], case["n"]))
    width = -(-k // products.NVFP4_BLOCK // products.SCALE_COLUMNS) * products.SCALE_COLUMNS
    scale_a, scale_b = (each.scales.view(-1, width) for each in (a, w))
    x = bench.random(case["m"], k, dtype=torch.bfloat16)
    one = torch.ones(1, device=bench.device)

    def call() -> Any:
        ops.scaled_fp4_quant(x, one)
        values = (each.values.view(torch.uint8) for each in (a, w))
        return ops.cutlass_scaled_fp4_mm(*values, scale_a, scale_b, one, torch.bfloat16)

    attempt(call)
    return products.check_product(bench, call, a.corner, w.corner)


def _marlin_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return Marlin's product with INT4 weights in groups of 128, as GPTQ stores them (zero point 8)."""
    ops, torch = import_vllm("_custom_ops"), bench.torch
    utils = import_vllm("model_executor.layers.quantization.utils.marlin_utils")
    int4 = import_vllm("scalar_type").scalar_types.uint4b8
    m, n, k = case["m"], case["n"], case["k"]
    if k % MARLIN_GROUP or n % MARLIN_GROUP:
        raise Unsupported(f"Marlin needs n and k in multiples of {MARLIN_GROUP}")
    codes = torch.randint(0, 16, (k, n), generator=bench.generator, device=bench.device, dtype=torch.int32)
    scales = bench.random(k // MARLIN_GROUP, n, dtype=torch.bfloat16, scale=0.01).abs() + 0.01
    weights = ops.gptq_marlin_repack(_pack_int4(codes), k, n, 4)
    permuted = utils.marlin_permute_scales(scales, k, n, MARLIN_GROUP)
    workspace = utils.marlin_make_workspace_new(torch.device(bench.device))
    a = bench.random(m, k, dtype=torch.bfloat16)

    def call() -> Any:
        return ops.marlin_gemm(
            a, None, weights, None, permuted, None, None, None, workspace, int4, m, n, k, use_fp32_reduce=True
        )

    attempt(call)
    few = slice(products.CHECK_COLUMNS)
    groups = codes[:, few].T.reshape(-1, k // MARLIN_GROUP, MARLIN_GROUP).double() - 8
    w = (groups * scales[:, few].T.double().unsqueeze(-1)).reshape(-1, k)
    return products.check_product(bench, call, a, w)


def _pack_int4(codes: Any) -> Any:
    """Return codes [k, n] of 4 bits as GPTQ packs them: eight of a column in one integer."""
    eights = codes.reshape(-1, 8, codes.shape[1])
    packed = eights[:, 0].clone()
    for place in range(1, 8):
        packed |= eights[:, place] << (4 * place)
    return packed


def prefill_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare causal attention of whole prompts by vLLM's FlashAttention, or by FlashInfer where vLLM prefers it."""
    if _prefers_flashinfer(bench):
        return attention.prepare_prefill(case, bench, partial(attention.prefill_call, "flashinfer"))
    return attention.prepare_prefill(case, bench, partial(_flash_prefill, bench))


def decode_attention(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare decode from a paged cache by vLLM's FlashAttention, or by FlashInfer where vLLM prefers it."""
    call = attention.paged_decode_call if _prefers_flashinfer(bench) else _flash_decode
    return attention.prepare_decode(case, bench, attention.paged_decode(case, bench, partial(call, bench)))


def _prefers_flashinfer(bench: KernelContext) -> bool:
    return _capability(bench) == FLASHINFER_CAPABILITY


def _capability(bench: KernelContext) -> int:
    return bench.torch.cuda.get_device_capability(bench.device)[0] if bench.on_cuda else 0


def _flash_attention() -> Callable[..., Any]:
    version = import_vllm("v1.attention.backends.fa_utils").get_flash_attn_version()
    return partial(import_vllm("vllm_flash_attn").flash_attn_varlen_func, causal=True, fa_version=version)


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


def moe(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare experts by vLLM's `fused_experts` (Triton) in 16 bit or FP8, or by `fused_marlin_moe` in INT4.

    FP8 has one scale per expert's matrix, or per 128 x 128 weights; activations are quantized in the call.
    """
    if case.kernel == "w4a16":
        return _marlin_experts(case, bench)
    if case.kernel != "fp8" and _capability(bench) >= FLASHINFER_CAPABILITY:
        raise Unsupported("vLLM prefers experts of FlashInfer or DeepGEMM on this GPU")
    run = import_vllm("model_executor.layers.fused_moe.fused_moe").fused_experts
    make_config = import_vllm("model_executor.layers.fused_moe.config").fp8_w8a8_moe_quant_config
    block = [products.FP8_BLOCK] * 2 if case.kernel == "fp8_block" else None

    def quantize(weights: experts.ExpertWeights) -> tuple[Any, Any, Any]:
        if case.of_format("bits", 16) != 8:
            return weights.gate_up, weights.down, None
        (gate_up, first), (down, second) = (
            _quantize(bench, each, block or each.shape[1:], -5, lambda x: x.to(bench.torch.float8_e4m3fn))
            for each in weights.tensors
        )
        scales = [(each if block else each.flatten()).float() for each in (first, second)]
        return gate_up, down, make_config(*scales, block_shape=block)

    def call(weights: tuple[Any, Any, Any], x: Any, shares: Any, chosen: Any) -> Any:
        gate_up, down, config = weights
        return run(x, gate_up, down, shares.float(), chosen.to(bench.torch.int32), quant_config=config)

    return experts.prepare_experts(case, bench, call, quantize)


def _quantize(
    bench: KernelContext, weights: Any, block: Sequence[int], low: int, cast: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return values of [experts, n, k] and their scale per `block` of n and k; round `weights` to their products.

    Scales are random powers of two from 2^low, so that the products are exact in bf16.
    """
    torch, (count, n, k), (high, wide) = bench.torch, weights.shape, block
    if n % high or k % wide:
        raise Unsupported(f"scales per block need sizes in multiples of {wide}, not {n} x {k}")
    blocks = weights.view(count, n // high, high, k // wide, wide)
    shape = (count, n // high, k // wide)
    exponents = torch.randint(low, low + 4, shape, generator=bench.generator, device=bench.device)
    scales = torch.exp2(exponents.to(weights.dtype))
    each = scales[:, :, None, :, None]
    values = cast(blocks / each)
    blocks.copy_(values.to(weights.dtype) * each)
    return values.view(weights.shape), scales


def _marlin_experts(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare experts with INT4 weights in groups of 128, as GPTQ stores them (zero point 8)."""
    ops, torch = import_vllm("_custom_ops"), bench.torch
    utils = import_vllm("model_executor.layers.quantization.utils.marlin_utils")
    run = import_vllm("model_executor.layers.fused_moe.experts.marlin_moe").fused_marlin_moe
    int4 = import_vllm("scalar_type").scalar_types.uint4b8
    workspace = utils.marlin_make_workspace_new(torch.device(bench.device), MARLIN_BLOCKS_PER_SM)

    def quantize(weights: Any) -> tuple[Any, Any]:
        _, n, k = weights.shape
        codes, scales = _quantize(bench, weights, (1, MARLIN_GROUP), -1, lambda x: x.round_().clamp_(-8, 7))
        packed = torch.stack([_pack_int4(matrix.T.to(torch.int32) + 8) for matrix in codes])
        permuted = utils.marlin_moe_permute_scales(scales.mT.contiguous(), k, n, MARLIN_GROUP)
        return ops.gptq_marlin_moe_repack(packed, k, n, 4), permuted

    def call(weights: list[tuple[Any, Any]], x: Any, shares: Any, chosen: Any) -> Any:
        (gate_up, first), (down, second) = weights
        routed = (shares.float(), chosen.to(torch.int32))
        return run(x, gate_up, down, None, None, first, second, *routed, int4.id, workspace=workspace)

    return experts.prepare_experts(case, bench, call, lambda weights: [*map(quantize, weights.tensors)])


def communicator(host_group: Any, device: Any, device_group: Any) -> Any:
    """Return vLLM's communicator of tensor parallelism, which selects all-reduce kernels; `host_group` uses gloo."""
    module = import_vllm("distributed.device_communicators.cuda_communicator")
    return module.CudaCommunicator(host_group, device, device_group, "tp:0")


def elementwise(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare the kernels between one layer's products: two norms, rope, cache write, activation."""
    ops, torch = import_vllm("_custom_ops"), bench.torch
    rows, hidden, width, d = case["rows"], case["hidden"], case["intermediate"], case["head_dim"]
    heads, kv_heads, dtype = case["heads"], case["kv_heads"], bench.dtype(case.kernel)
    x, residual, weight = (
        bench.random(*size, dtype=dtype) for size in ((rows, hidden), (rows, hidden), (hidden,))
    )
    q, k = (bench.random(rows, count * d, dtype=dtype) for count in (heads, kv_heads))
    v, gate_up = bench.random(rows, kv_heads, d, dtype=dtype), bench.random(rows, 2 * width, dtype=dtype)
    pages = -(-rows // PAGE_TOKENS)
    keys, values = (
        torch.zeros(pages, PAGE_TOKENS, kv_heads, d, dtype=dtype, device=bench.device) for _ in range(2)
    )
    slots = torch.randperm(pages * PAGE_TOKENS, generator=bench.generator, device=bench.device)[:rows]
    positions = torch.arange(rows, device=bench.device) % POSITIONS
    table = torch.cat(rope_tables(d, POSITIONS, base=1e4, device=bench.device, dtype=dtype), dim=-1)[:, 0]
    one = torch.ones(1, device=bench.device)
    out = torch.empty(rows, width, device=bench.device, dtype=dtype)

    def call() -> None:
        ops.fused_add_rms_norm(x, residual, weight, EPSILON)
        ops.rotary_embedding(positions, q, k, d, table, True)
        ops.reshape_and_cache_flash(k.view(rows, kv_heads, d), v, keys, values, slots, "auto", one, one)
        ops.fused_add_rms_norm(x, residual, weight, EPSILON)
        torch.ops._C.silu_and_mul(out, gate_up)

    def check() -> float:
        call()
        normed, total = x.clone(), residual.clone()
        ops.fused_add_rms_norm(normed, total, weight, EPSILON)
        expected, _ = plain_add_norm(x, residual, weight, EPSILON)
        activated = silu_and_mul(gate_up.double())
        return max(relative_error(torch, normed, expected), relative_error(torch, out, activated))

    attempt(call)
    parts = 8 * hidden + d * (2 * heads + 4 * kv_heads) + 3 * width
    return PreparedCase(calls=[call], check=check, bytes=float(rows * parts * dtype.itemsize))
