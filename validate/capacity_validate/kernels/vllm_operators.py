"""Operators of an installed vLLM, called as vLLM's layers call them, so that their times are those of this engine.

Source of the calls: vLLM 0.33.0 wheel, `_custom_ops.py`, `layers/quantization/utils/{marlin,fp8}_utils.py`,
`kernels/linear/scaled_mm` and `utils/deep_gemm.py`; of `layers/fused_moe`: `fused_moe.py`, `config.py`,
`experts/marlin_moe.py`, and `oracle`, which chooses the kernels; of `distributed/device_communicators`:
`cuda_communicator.py` and the all-reduces that it chooses from (`custom_all_reduce.py`, `symm_mem.py`, `pynccl.py`,
`flashinfer_all_reduce.py`). The calls were checked against these signatures, but not run on a GPU. Not covered: FP4
experts, the experts of FlashInfer and DeepGEMM, and the all-reduce that is fused with a norm.
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
    experts,
    import_optional,
    relative_error,
)
from capacity_validate.kernels import gemm as products
from capacity_validate.kernels.fused import plain_add_norm, rope_tables, silu_and_mul
from capacity_validate.kernels.vllm_attention import decode_attention, prefill_attention

BLACKWELL = 100  # compute capability from which vLLM prefers FlashInfer and DeepGEMM
MARLIN_GROUP = 128
MARLIN_BLOCKS_PER_SM = 4  # of the experts' kernel: MARLIN_MAX_BLOCKS_PER_SM
PAGE_TOKENS, POSITIONS, EPSILON = 16, 4096, 1e-6


__all__ = ["communicator", "decode_attention", "elementwise", "gemm", "moe", "prefill_attention"]


def gemm(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare a quantized product, including the quantization of its activations."""
    builders = {"fp8": _fp8_product, "fp8_block": _fp8_block_product, "nvfp4": _nvfp4_product}
    return products.prepare_products(case, bench, builders.get(case.kernel, _marlin_product))


def _fp8_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return dynamic quantization by token and a CUTLASS product; the product uses values quantized before, so that
    its result can be checked."""
    ops, torch = import_optional("vllm._custom_ops"), bench.torch
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


def _fp8_block_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return quantization by 128 activations and a product with a scale per 128 x 128 weights, by the first of vLLM's
    kernels that runs here: DeepGEMM, CUTLASS, Triton."""
    ops, torch, size = import_optional("vllm._custom_ops"), bench.torch, products.FP8_BLOCK
    utils = import_optional("vllm.model_executor.layers.quantization.utils.fp8_utils")
    deep, n, k = import_optional("vllm.utils.deep_gemm"), case["n"], case["k"]
    _, _, x = _exact_blocks(bench, case["m"], k, 1)
    w, scales, corner = _exact_blocks(bench, n, k, size)
    by_column = ops.cutlass_scaled_mm_supports_block_fp8(bench.capability)
    quantize = partial(utils.per_token_group_quant_fp8, x, size, column_major_scales=by_column)

    def call() -> Any:
        a, scale_a = quantize(use_ue8m0=False)
        if by_column:
            return ops.cutlass_scaled_mm(a, w.T, scale_a=scale_a, scale_b=scales.T, out_dtype=torch.bfloat16)
        return utils.w8a8_triton_block_scaled_mm(a, w, scale_a, scales, [size, size], torch.bfloat16)

    if deep.should_use_deepgemm_for_fp8_linear(torch.bfloat16, (n, k)):
        call = _deep_gemm_call(bench, x, w, scales)
    attempt(call)
    return products.check_product(bench, call, x, corner)


def _exact_blocks(bench: KernelContext, rows: int, columns: int, high: int) -> tuple[Any, Any, Any]:
    """Return FP8 values, scales per `high` x 128, and their products in bf16.

    The scales are random powers of two and the largest value of each block is the largest of FP8, so vLLM's
    quantization of the products, also with E8M0 scales, returns the same values and scales.
    """
    torch, size = bench.torch, products.FP8_BLOCK
    if rows % high or columns % size:
        raise Unsupported(f"scales per block need sizes in multiples of {size}, not {rows} x {columns}")
    found = products.quantize_fp8(bench, rows, columns, high, size)
    exponents = torch.randint(-8, -4, found.scales.shape, generator=bench.generator, device=bench.device)
    scales = torch.exp2(exponents.float())
    each = scales.bfloat16().repeat_interleave(high, 0).repeat_interleave(size, 1)
    return found.values, scales, found.values.bfloat16() * each


def _deep_gemm_call(bench: KernelContext, x: Any, w: Any, scales: Any) -> Callable[[], Any]:
    """Return quantization and product by DeepGEMM; for fewer than 32 rows by FlashInfer where vLLM calls it."""
    torch, size, deep = bench.torch, products.FP8_BLOCK, import_optional("vllm.utils.deep_gemm")
    utils = import_optional("vllm.model_executor.layers.quantization.utils.fp8_utils")
    e8m0 = deep.is_deep_gemm_e8m0_used()
    w, scales = utils.deepgemm_post_process_fp8_weight_block(w, scales, (size, size), e8m0)
    if import_optional("vllm.utils.flashinfer").is_flashinfer_fp8_blockscale_gemm_supported():
        import_optional("vllm.model_executor.kernels.linear.scaled_mm.flashinfer")  # registers the operator
        run = torch.ops.vllm.dynamic_flashinfer_deepgemm_blockscale_gemm
        return partial(run, x, w, scales, size, e8m0)
    quantize = partial(
        utils.per_token_group_quant_fp8, column_major_scales=True, tma_aligned_scales=True, use_ue8m0=e8m0
    )
    if e8m0 and deep.DeepGemmQuantScaleFMT.from_oracle() == deep.DeepGemmQuantScaleFMT.UE8M0:
        quantize = partial(utils.per_token_group_quant_fp8_packed_for_deepgemm, use_ue8m0=True)
    out = torch.empty(x.shape[0], w.shape[0], device=bench.device, dtype=torch.bfloat16)

    def call() -> Any:
        deep.fp8_gemm_nt(quantize(x, group_size=size), (w, scales), out, is_deep_gemm_e8m0_used=e8m0)
        return out

    return call


def _nvfp4_product(case: Case, bench: KernelContext) -> products.CheckedProduct:
    """Return quantization of activations to NVFP4 and a CUTLASS product of values quantized before."""
    ops, torch, k = import_optional("vllm._custom_ops"), bench.torch, case["k"]
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
    ops, torch = import_optional("vllm._custom_ops"), bench.torch
    utils = import_optional("vllm.model_executor.layers.quantization.utils.marlin_utils")
    int4 = import_optional("vllm.scalar_type").scalar_types.uint4b8
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


def moe(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare experts by vLLM's `fused_experts` (Triton) in 16 bit or FP8, or by `fused_marlin_moe` in INT4.

    FP8 has one scale per expert's matrix, or per 128 x 128 weights; activations are quantized in the call.
    """
    if case.kernel == "w4a16":
        return _marlin_experts(case, bench)
    if case.kernel != "fp8" and bench.capability >= BLACKWELL:
        raise Unsupported("vLLM prefers experts of FlashInfer or DeepGEMM on this GPU")
    run = import_optional("vllm.model_executor.layers.fused_moe.fused_moe").fused_experts
    make_config = import_optional("vllm.model_executor.layers.fused_moe.config").fp8_w8a8_moe_quant_config
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
    ops, torch = import_optional("vllm._custom_ops"), bench.torch
    utils = import_optional("vllm.model_executor.layers.quantization.utils.marlin_utils")
    run = import_optional("vllm.model_executor.layers.fused_moe.experts.marlin_moe").fused_marlin_moe
    int4 = import_optional("vllm.scalar_type").scalar_types.uint4b8
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
    module = import_optional("vllm.distributed.device_communicators.cuda_communicator")
    return module.CudaCommunicator(host_group, device, device_group, "tp:0")


def elementwise(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare the kernels between one layer's products: two norms, rope, cache write, activation."""
    ops, torch = import_optional("vllm._custom_ops"), bench.torch
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
