# ruff: noqa: ARG001, ARG002, N803
"""Operators of an installed vLLM: stand-ins with the signatures of vLLM 0.33.0, called and checked on a CPU."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import KernelContext, Unsupported, prepare  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402
from capacity_validate.kernels.fused import plain_add_norm, rotate, silu_and_mul  # noqa: E402
from fake_cuda import FakeCuda, FakeDevice  # noqa: E402
from kernel_checks import error_of, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ENGINE = "vllm@0.33"
HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 32}
CASES = {
    "fp8": make_case("gemm", "fp8", variant=ENGINE, m=32, n=64, k=128),
    "fp8_block": make_case("gemm", "fp8_block", variant=ENGINE, m=32, n=256, k=384),
    "marlin": make_case("gemm", "w4a16", variant=ENGINE, m=16, n=256, k=256),
    "nvfp4": make_case("gemm", "nvfp4", variant=ENGINE, m=130, n=96, k=192),
    "prefill": make_case("prefill_attention", "bf16", variant=ENGINE, batch=2, tokens=40, **HEADS),
    "decode": make_case("decode_attention", "bf16", variant=ENGINE, batch=3, context=50, **HEADS),
    "experts": make_case(
        "moe", "bf16", variant=ENGINE, tokens=6, experts=4, top_k=2, hidden=32, intermediate=48
    ),
    "fp8 experts": make_case(
        "moe", "fp8", variant=ENGINE, tokens=6, experts=4, top_k=2, hidden=96, intermediate=48
    ),
    "fp8_block experts": make_case(
        "moe", "fp8_block", variant=ENGINE, tokens=6, experts=4, top_k=2, hidden=256, intermediate=128
    ),
    "marlin experts": make_case(
        "moe", "w4a16", variant=ENGINE, tokens=6, experts=4, top_k=2, hidden=256, intermediate=128
    ),
    "elementwise": make_case(
        "elementwise", "bf16", variant=ENGINE, rows=20, hidden=64, intermediate=96, **HEADS
    ),
}


INT4 = SimpleNamespace(id=7)


class Operators:
    """`vllm._custom_ops` by plain torch; `called` holds the names of the operators that were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "called":
            self.called.append(name)
        return object.__getattribute__(self, name)

    def scaled_fp8_quant(
        self, input: Any, scale: Any = None, *, use_per_token_if_dynamic: bool = False
    ) -> Any:
        assert (input.ndim, input.dtype, scale, use_per_token_if_dynamic) == (2, torch.bfloat16, None, True)

    def cutlass_scaled_mm(self, a: Any, b: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
        assert a.dtype == b.dtype == torch.float8_e4m3fn
        assert b.stride(0) == 1  # CUTLASS reads weights by column
        if scale_a.ndim == 2 and scale_a.shape[1] > 1:
            assert scale_a.stride(0) == 1
            return block_product(a, b.T, scale_a, scale_b.T).to(out_dtype)
        assert (scale_a.numel(), scale_b.numel()) == (a.shape[0], b.shape[1])
        return ((a.float() * scale_a.view(-1, 1)) @ (b.float() * scale_b.view(1, -1))).to(out_dtype)

    def cutlass_scaled_mm_supports_block_fp8(self, cuda_device_capability: int) -> bool:
        return cuda_device_capability == 90

    def scaled_fp4_quant(self, input: Any, input_global_scale: Any) -> Any:
        assert (input.dtype, input_global_scale.numel()) == (torch.bfloat16, 1)

    def cutlass_scaled_fp4_mm(
        self, a: Any, b: Any, block_scale_a: Any, block_scale_b: Any, alpha: Any, out_dtype: Any
    ) -> Any:
        assert a.dtype == b.dtype == torch.uint8
        a, b = (fp4_values(*each) for each in ((a, block_scale_a), (b, block_scale_b)))
        return (alpha * (a @ b.T)).to(out_dtype)

    def gptq_marlin_repack(self, b_q_weight: Any, size_k: int, size_n: int, num_bits: int) -> Any:
        assert (tuple(b_q_weight.shape), b_q_weight.dtype, num_bits) == (
            (size_k // 8, size_n),
            torch.int32,
            4,
        )
        codes = torch.stack([b_q_weight >> (4 * place) & 15 for place in range(8)], dim=1)
        return codes.reshape(size_k, size_n)

    def gptq_marlin_moe_repack(
        self, b_q_weight: Any, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool = False
    ) -> Any:
        return torch.stack([self.gptq_marlin_repack(each, size_k, size_n, num_bits) for each in b_q_weight])

    def marlin_gemm(
        self, a: Any, c: Any, b_q_weight: Any, b_bias: Any, b_scales: Any, a_scales: Any, global_scale: Any,
        b_zeros: Any, workspace: Any, b_q_type: Any, size_m: int, size_n: int, size_k: int,
        use_atomic_add: bool = False, use_fp32_reduce: bool = False,
    ) -> Any:  # fmt: skip
        assert (c, b_bias, a_scales, global_scale, b_zeros) == (None,) * 5
        assert (workspace, b_q_type, tuple(a.shape), use_fp32_reduce) == (
            "space",
            INT4,
            (size_m, size_k),
            True,
        )
        scales = b_scales.repeat_interleave(128, dim=0).float()
        return (a.float() @ ((b_q_weight - 8).float() * scales)).to(a.dtype)

    def fused_add_rms_norm(self, input: Any, residual: Any, weight: Any, epsilon: float) -> None:
        normed, total = plain_add_norm(input, residual, weight, epsilon)
        input.copy_(normed), residual.copy_(total)

    def rotary_embedding(
        self, positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool
    ) -> None:
        assert (is_neox, cos_sin_cache.shape[1]) == (True, head_size)
        tables = tuple(cos_sin_cache[:, None].chunk(2, dim=-1))
        for x in (query, key):
            heads = x.view(len(positions), -1, head_size)
            x.copy_(rotate(heads, positions, tables).reshape(x.shape))

    def reshape_and_cache_flash(
        self, key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str,
        k_scale: Any, v_scale: Any,
    ) -> None:  # fmt: skip
        assert (kv_cache_dtype, slot_mapping.dtype) == ("auto", torch.int64)
        key_cache.flatten(0, 1)[slot_mapping] = key
        value_cache.flatten(0, 1)[slot_mapping] = value


def block_product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert scale_b.unique().numel() > 1  # so that a wrong order of scales is an error
    a, b = a.float() * scale_a.repeat_interleave(128, 1), b.float() * block_wise(scale_b)
    return a @ b.T


def block_wise(scales: Any) -> Any:
    return scales.repeat_interleave(128, 0).repeat_interleave(128, 1)


def per_token_group_quant_fp8(
    x: Any, group_size: int, eps: float = 1e-10, dtype: Any = None, column_major_scales: bool = False,
    tma_aligned_scales: bool = False, out_q: Any = None, use_ue8m0: bool | None = None,
) -> Any:  # fmt: skip
    assert (x.dtype, group_size) == (torch.bfloat16, 128)
    groups = x.float().view(len(x), -1, 128)
    scales = groups.abs().amax(dim=2) / 448.0
    if use_ue8m0:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    values = (groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(x.shape)
    return values, scales.T.contiguous().T if column_major_scales else scales


def w8a8_triton_block_scaled_mm(
    A: Any, B: Any, As: Any, Bs: Any, block_size: list[int], output_dtype: Any = torch.float16
) -> Any:
    assert (block_size, As.is_contiguous()) == ([128, 128], True)
    return block_product(A, B, As, Bs).to(output_dtype)


class DeepGemm:
    """DeepGEMM as vLLM calls it: `utils.deep_gemm`, and its part of `fp8_utils` and of vLLM's own operators."""

    def __init__(self, ops: Operators, *, e8m0: bool = False, packed: bool = False, flashinfer: bool = False):
        self.ops, self.packed, self.flashinfer, self.supported = ops, packed, flashinfer, True
        self.is_deep_gemm_e8m0_used = lambda: e8m0
        self.is_flashinfer_fp8_blockscale_gemm_supported = lambda: flashinfer
        self.DeepGemmQuantScaleFMT = SimpleNamespace(UE8M0=2, from_oracle=lambda: 2 if packed else 1)

    def should_use_deepgemm_for_fp8_linear(self, output_dtype: Any, weight_shape: tuple[int, int]) -> bool:
        assert (output_dtype, weight_shape) == (torch.bfloat16, (256, 384))
        return self.supported

    def per_token_group_quant_fp8_packed_for_deepgemm(
        self, x: Any, group_size: int, eps: float = 1e-10, use_ue8m0: bool | None = None, out_q: Any = None
    ) -> Any:
        assert self.packed
        return per_token_group_quant_fp8(x, group_size, use_ue8m0=use_ue8m0)

    def deepgemm_post_process_fp8_weight_block(
        self, wq: Any, ws: Any, quant_block_shape: tuple[int, ...], use_e8m0: bool
    ) -> Any:
        assert quant_block_shape == (128, 128)
        if use_e8m0:  # vLLM quantizes the weights again
            assert torch.equal(ws, torch.exp2(torch.log2(ws).round()))
            largest = wq.float().abs().view(2, 128, 3, 128).amax(dim=(1, 3))
            assert torch.all(largest > 224)  # so that the scales stay
        return wq, ws

    def fp8_gemm_nt(self, lhs: Any, rhs: Any, out: Any, *, is_deep_gemm_e8m0_used: bool) -> None:
        assert is_deep_gemm_e8m0_used == self.is_deep_gemm_e8m0_used()
        self.ops.called.append("fp8_gemm_nt")
        out.copy_(block_product(lhs[0], rhs[0], lhs[1], rhs[1]))

    def dynamic_flashinfer_deepgemm_blockscale_gemm(
        self, input: Any, weight: Any, weight_scale: Any, group_size: int, use_deep_gemm_e8m0: bool
    ) -> Any:
        assert self.flashinfer
        self.ops.called.append("dynamic_flashinfer_deepgemm_blockscale_gemm")
        a, scales = per_token_group_quant_fp8(input, group_size, use_ue8m0=use_deep_gemm_e8m0)
        return block_product(a, weight, scales, weight_scale).to(torch.bfloat16)


def use_trtllm_attention(
    num_qo_heads: int, num_kv_heads: int, num_tokens: int, max_seq_len: int, dcp_world_size: int,
    kv_cache_dtype: str, q_dtype: Any, is_prefill: bool, force_use_trtllm: bool | None = None,
    has_sinks: bool = False, has_spec: bool = False,
) -> bool:  # fmt: skip
    sizes = (num_tokens, max_seq_len) == ((80, 40) if is_prefill else (3, 50))
    assert (num_qo_heads, num_kv_heads, dcp_world_size, kv_cache_dtype) == (8, 2, 1, "auto")
    assert sizes
    return True


def trtllm_batch_decode_with_kv_cache(
    query: Any, kv_cache: Any, workspace_buffer: Any, block_tables: Any, seq_lens: Any, max_seq_len: int,
    bmm1_scale: float = 1.0, bmm2_scale: float = 1.0,
) -> Any:  # fmt: skip
    starts = torch.arange(len(query) + 1, dtype=torch.int32)
    return trtllm_batch_context_with_kv_cache(
        query, kv_cache, workspace_buffer, block_tables, seq_lens, 1, max_seq_len, bmm1_scale, bmm2_scale,
        len(query), starts, seq_lens.cumsum(0),
    )  # fmt: skip


def trtllm_batch_context_with_kv_cache(
    query: Any, kv_cache: Any, workspace_buffer: Any, block_tables: Any, seq_lens: Any, max_q_len: int,
    max_kv_len: int, bmm1_scale: float, bmm2_scale: float, batch_size: int, cum_seq_lens_q: Any,
    cum_seq_lens_kv: Any,
) -> Any:  # fmt: skip
    assert not workspace_buffer.any()
    assert (bmm1_scale, bmm2_scale, batch_size) == (query.shape[2] ** -0.5, 1.0, len(seq_lens))
    assert int(seq_lens.max()) == max_kv_len
    pages = [x.transpose(1, 2) for x in kv_cache]  # KV heads first
    return flash_attn_varlen_func(
        query, *pages, max_q_len, cum_seq_lens_q, max_kv_len, seqused_k=seq_lens, causal=True,
        block_table=block_tables, fa_version=3,
    )  # fmt: skip


def fp4_values(packed: Any, tiles: Any) -> Any:
    """NVFP4 in float32; the scales are in tiles of 128 x 4."""
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    values = steps[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
    tall, wide = tiles.shape[0] // 128, tiles.shape[1] // 4
    plain = tiles.view(torch.uint8).view(tall, wide, 32, 4, 4).transpose(2, 3).reshape(tall, wide, 128, 4)
    scales = plain.transpose(1, 2).reshape(tall * 128, wide * 4).view(torch.float8_e4m3fn).float()
    return values * scales[: values.shape[0], : values.shape[1] // 16].repeat_interleave(16, dim=1)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, cu_seqlens_k: Any = None,
    seqused_k: Any = None, causal: bool = False, block_table: Any = None, fa_version: int = 2,
) -> Any:  # fmt: skip
    assert (causal, fa_version, cu_seqlens_q.dtype) == (True, 3, torch.int32)
    assert (cu_seqlens_k is None) == (block_table is not None) == (seqused_k is not None)
    rows = []
    for sequence, (start, end) in enumerate(
        zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], strict=False)
    ):
        if block_table is None:
            keys, values = k[start:end], v[start:end]
        else:
            pages, count = block_table[sequence].long(), int(seqused_k[sequence])
            keys, values = (part[pages].flatten(0, 1)[:count] for part in (k, v))
        positions = range(len(keys) - (end - start), len(keys))
        parts = (x.transpose(0, 1)[None] for x in (q[start:end], keys, values))
        rows.append(reference_attention(torch, *parts, positions=positions)[0].transpose(0, 1).to(q.dtype))
    return torch.cat(rows)


def fused_experts(
    hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, activation: str = "silu",
    apply_router_weight_on_input: bool = False, global_num_experts: int = -1, expert_map: Any = None,
    quant_config: Any = None,
) -> Any:  # fmt: skip
    """`fused_experts`; in FP8 the activations are quantized before both products, as its kernels do."""
    assert (topk_weights.dtype, topk_ids.dtype) == (torch.float32, torch.int32)
    rounded: Callable[[Any], Any] = lambda x: x  # noqa: E731
    if quant_config is not None:
        block = quant_config.block_shape
        assert w1.dtype == w2.dtype == torch.float8_e4m3fn
        assert hidden_states.dtype == torch.bfloat16
        w1, w2 = dequantized(w1, quant_config.w1_scale, block), dequantized(w2, quant_config.w2_scale, block)
        rounded = lambda x: fp8_rounded(x, block[1] if block else None)  # noqa: E731
    return routed(hidden_states, w1, w2, topk_weights, topk_ids, rounded)


def routed(x: Any, w1: Any, w2: Any, shares: Any, chosen: Any, rounded: Callable[[Any], Any]) -> Any:
    out = torch.zeros_like(x)
    for token, experts in enumerate(chosen.tolist()):
        row = rounded(x)[token].float()
        for share, expert in zip(shares[token], experts, strict=True):
            hidden = rounded(silu_and_mul(w1[expert].float() @ row)[None])[0]
            out[token] += share * (w2[expert].float() @ hidden)
    return out


def dequantized(values: Any, scales: Any, block: list[int] | None) -> Any:
    assert scales.dtype == torch.float32
    count, n, k = values.shape
    if block is None:
        assert scales.shape == (count,)
        return values.float() * scales.view(-1, 1, 1)
    assert scales.shape == (count, n // block[0], k // block[1])
    assert scales.unique().numel() > 1  # so that a wrong order of scales is an error
    return values.float() * scales.repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)


def fp8_rounded(x: Any, group: int | None) -> Any:
    """Values after dynamic quantization to FP8, with one scale per tensor or per `group` values of a row."""
    parts = x.float().view(1, -1) if group is None else x.float().view(-1, group)
    scale = parts.abs().amax(dim=1, keepdim=True) / 448.0
    return ((parts / scale).to(torch.float8_e4m3fn).float() * scale).view(x.shape)


def fp8_w8a8_moe_quant_config(
    w1_scale: Any, w2_scale: Any, a1_scale: Any = None, a2_scale: Any = None, w1_bias: Any = None,
    w2_bias: Any = None, per_act_token_quant: bool = False, per_out_ch_quant: bool = False,
    block_shape: list[int] | None = None,
) -> Any:  # fmt: skip
    assert a1_scale is a2_scale is None  # so that activations are quantized in the call
    return SimpleNamespace(w1_scale=w1_scale, w2_scale=w2_scale, block_shape=block_shape)


def fused_marlin_moe(
    hidden_states: Any, w1: Any, w2: Any, bias1: Any, bias2: Any, w1_scale: Any, w2_scale: Any,
    topk_weights: Any, topk_ids: Any, quant_type_id: int, apply_router_weight_on_input: bool = False,
    global_num_experts: int = -1, activation: str = "silu", workspace: Any = None,
) -> Any:  # fmt: skip
    assert (bias1, bias2, quant_type_id, workspace) == (None, None, 7, "space")
    assert (topk_weights.dtype, topk_ids.dtype) == (torch.float32, torch.int32)
    weights = [
        ((codes - 8).float() * scales.repeat_interleave(128, dim=1).float()).transpose(1, 2)
        for codes, scales in ((w1, w1_scale), (w2, w2_scale))
    ]
    return routed(hidden_states, *weights, topk_weights, topk_ids, lambda x: x)


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    ops = Operators()
    marlin = SimpleNamespace(
        marlin_permute_scales=lambda s, size_k, size_n, group_size: s,  # noqa: ARG005
        marlin_moe_permute_scales=lambda s, size_k, size_n, group_size: s,  # noqa: ARG005
        marlin_make_workspace_new=lambda device, max_blocks_per_sm=1: "space",  # noqa: ARG005
    )
    deep = DeepGemm(ops)
    deep.supported = False
    modules = {
        "_custom_ops": ops,
        "utils.deep_gemm": deep,
        "model_executor.layers.quantization.utils.fp8_utils": SimpleNamespace(
            per_token_group_quant_fp8=per_token_group_quant_fp8,
            w8a8_triton_block_scaled_mm=w8a8_triton_block_scaled_mm,
        ),
        "scalar_type": SimpleNamespace(scalar_types=SimpleNamespace(uint4b8=INT4)),
        "model_executor.layers.quantization.utils.marlin_utils": marlin,
        "model_executor.layers.fused_moe.fused_moe": SimpleNamespace(fused_experts=fused_experts),
        "model_executor.layers.fused_moe.config": SimpleNamespace(
            fp8_w8a8_moe_quant_config=fp8_w8a8_moe_quant_config
        ),
        "model_executor.layers.fused_moe.experts.marlin_moe": SimpleNamespace(
            fused_marlin_moe=fused_marlin_moe
        ),
        "vllm_flash_attn": SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func),
        "v1.attention.backends.fa_utils": SimpleNamespace(get_flash_attn_version=lambda: 3),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"vllm.{name}", module)
    activation: Callable[[Any, Any], Any] = lambda out, x: out.copy_(silu_and_mul(x))  # noqa: E731
    monkeypatch.setattr(torch.ops._C, "silu_and_mul", activation, raising=False)
    return ops


@pytest.mark.parametrize("name", CASES)
def test_operator_of_vllm_computes_the_right_result(name: str, operators: Operators) -> None:
    if name == "nvfp4" and not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no FP4 type")
    built = prepared(CASES[name])
    assert error_of(built) <= built.tolerance
    assert built.bytes > 0
    if CASES[name].operator in ("gemm", "elementwise"):
        assert operators.called


@pytest.mark.parametrize(
    "settings", [{}, {"e8m0": True}, {"e8m0": True, "packed": True}, {"e8m0": True, "flashinfer": True}]
)
def test_block_product_by_deep_gemm_is_exact_with_any_scales(
    settings: dict[str, bool], operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = DeepGemm(operators, **settings)
    utils = sys.modules["vllm.model_executor.layers.quantization.utils.fp8_utils"]
    for name in ("deepgemm_post_process_fp8_weight_block", "per_token_group_quant_fp8_packed_for_deepgemm"):
        monkeypatch.setattr(utils, name, getattr(deep, name), raising=False)
    for name in ("utils.deep_gemm", "utils.flashinfer", "model_executor.kernels.linear.scaled_mm.flashinfer"):
        monkeypatch.setitem(sys.modules, f"vllm.{name}", deep)
    monkeypatch.setattr(torch.ops, "vllm", deep, raising=False)
    assert error_of(prepared(CASES["fp8_block"])) < 0.005  # of bf16
    run = "dynamic_flashinfer_deepgemm_blockscale_gemm" if deep.flashinfer else "fp8_gemm_nt"
    assert operators.called[-1] == run


def test_block_product_on_hopper_without_deep_gemm_is_that_of_cutlass(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelContext, "capability", 90)
    assert error_of(prepared(CASES["fp8_block"])) < 0.005
    assert operators.called[-1] == "cutlass_scaled_mm"


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_attention_on_blackwell_is_that_of_flashinfer(
    name: str, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelContext, "capability", 100)
    flashinfer = SimpleNamespace(
        decode=SimpleNamespace(trtllm_batch_decode_with_kv_cache=trtllm_batch_decode_with_kv_cache),
        prefill=SimpleNamespace(trtllm_batch_context_with_kv_cache=trtllm_batch_context_with_kv_cache),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    selects = SimpleNamespace(use_trtllm_attention=use_trtllm_attention)
    monkeypatch.setitem(sys.modules, "vllm.utils.flashinfer", selects)
    monkeypatch.delitem(sys.modules, "vllm.vllm_flash_attn")
    built = prepared(CASES[name])
    assert error_of(built) <= built.tolerance


@pytest.mark.parametrize("name", ["fp8_block experts", "marlin experts"])
def test_experts_narrower_than_a_block_are_unsupported(name: str, operators: Operators) -> None:
    narrow = replace(CASES[name], sizes=tuple({**dict(CASES[name].sizes), "intermediate": 96}.items()))
    with pytest.raises(Unsupported, match="multiples of 128"):
        prepared(narrow)


@pytest.mark.parametrize("name", ["experts", "fp8_block experts"])
def test_experts_that_vllm_runs_with_another_library_are_not_timed(name: str) -> None:
    fake = FakeCuda(devices=(FakeDevice(major=10, minor=0),))
    with pytest.raises(Unsupported, match="FlashInfer or DeepGEMM"):
        prepare(CASES[name], KernelContext(fake.torch, "cuda:0", 1, None, 1e9))


def test_time_of_fp8_product_includes_quantization(operators: Operators) -> None:
    prepared(CASES["fp8"]).calls[0]()
    assert operators.called[-2:] == ["scaled_fp8_quant", "cutlass_scaled_mm"]


@pytest.mark.parametrize("name", CASES)
def test_release_without_the_operator_is_unsupported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(Unsupported, match=r"vllm\.\S+ is not installed here"):
        prepared(CASES[name])
