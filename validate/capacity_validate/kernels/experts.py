"""Mixture of experts: route tokens, gather each expert's tokens, multiply by three matrices, scatter the results."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from capacity_validate.cases import Case
from capacity_validate.kernels import KernelContext, PreparedCase, attempt, relative_error
from capacity_validate.kernels.fused import silu_and_mul

CHECK_TOKENS = 2
DOUBLED_ROWS = 1024  # weight rows converted to float64 at a time


def moe(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare an MoE layer with random top-k routing: `grouped` runs one kernel, `loop` one expert at a time."""
    torch, grouped = bench.torch, case.variant == "grouped"
    prepared = prepare_experts(case, bench, partial(grouped_experts if grouped else looped_experts, torch))
    capturable = grouped and grouped_in_one_kernel(torch, bench.device, bench.dtype(case.kernel))
    return replace(prepared, capturable=capturable)


def prepare_experts(
    case: Case,
    bench: KernelContext,
    run: Callable[..., Any],
    quantize: Callable[["ExpertWeights"], Any] = lambda weights: weights,
) -> PreparedCase:
    """Prepare an MoE layer. `run` takes weights, tokens, and the shares and numbers of their experts.

    `quantize` returns the weights as `run` takes them, and rounds those of its argument to the same values.
    """
    torch = bench.torch
    tokens, experts, top_k = case["tokens"], case["experts"], case["top_k"]
    hidden, width, dtype = case["hidden"], case["intermediate"], bench.dtype(case.kernel)
    matrix_bytes = int(hidden * width * case.of_format("weight_bits", case.of_format("bits", 16)) / 8)
    copies = min(8, bench.copy_count(3 * matrix_bytes * experts))
    all_weights = [
        ExpertWeights(gate_up=gate_up, down=down)
        for gate_up, down in zip(
            bench.rotating_tensors(copies, experts, 2 * width, hidden, dtype=dtype),
            bench.rotating_tensors(copies, experts, hidden, width, dtype=dtype, part=1),
            strict=True,
        )
    ]

    def inputs() -> tuple[Any, Any, Any]:
        x = bench.random(tokens, hidden, dtype=dtype)
        scores = bench.random(tokens, experts, dtype=torch.float32)
        shares, chosen = torch.topk(torch.softmax(scores, dim=-1), top_k)
        return x, shares.to(dtype), chosen

    sets = [inputs() for _ in all_weights]
    calls = [partial(run, quantize(weights), *one) for one, weights in zip(sets, all_weights, strict=True)]
    first = all_weights[0]
    attempt(calls[0])

    def check() -> float:
        x, shares, chosen = (part[:CHECK_TOKENS] for part in sets[0])
        reference = _reference(torch, first, x, shares, chosen)
        return relative_error(torch, calls[0]()[:CHECK_TOKENS], reference)

    distinct = sum(int(one[2].unique().numel()) for one in sets) / len(sets)
    return PreparedCase(
        calls=calls,
        check=check,
        flops=6.0 * tokens * top_k * hidden * width,
        bytes=distinct * 3.0 * matrix_bytes + tokens * top_k * (hidden + 3 * width) * 2.0,
    )


def grouped_in_one_kernel(torch: Any, device: str, dtype: Any) -> bool:
    """Return whether torch has a native grouped matrix multiplication for this device and dtype.

    The native kernel needs bf16 on a data-centre Hopper or Blackwell. Otherwise torch loops over groups and reads
    their ends on the host, which no CUDA graph can capture. Source: pytorch,
    aten/src/ATen/native/cuda/GroupedBlas.cpp.
    """
    if device == "cpu" or dtype is not torch.bfloat16 or not hasattr(torch, "_grouped_mm"):
        return False
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


class ExpertWeights(NamedTuple):
    """Expert weights: gate and up [experts, 2·width, hidden], down [experts, hidden, width], biases by expert."""

    gate_up: Any
    down: Any
    gate_up_bias: Any = None
    down_bias: Any = None

    @property
    def tensors(self) -> list[Any]:
        return [part for part in self if part is not None]

    @property
    def num_experts(self) -> int:
        return int(self.gate_up.shape[0])


def looped_experts(torch: Any, weights: ExpertWeights, x: Any, shares: Any, chosen: Any) -> Any:
    """Return the layer's output, expert by expert, for devices without grouped kernels. No graph can capture this."""
    linear = torch.nn.functional.linear
    out = torch.zeros_like(x)
    order, counts = _sort_by_expert(torch, chosen, weights.num_experts)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            pairs = order[start : start + count]
            rows = torch.div(pairs, chosen.shape[1], rounding_mode="floor")
            biases = (weights.gate_up_bias, weights.down_bias)
            gate_up_bias, down_bias = (None if bias is None else bias[expert] for bias in biases)
            hidden = silu_and_mul(linear(x[rows], weights.gate_up[expert], gate_up_bias))
            share = shares.flatten()[pairs].unsqueeze(-1)
            out.index_add_(0, rows, linear(hidden, weights.down[expert], down_bias) * share)
            start += count
    return out


def grouped_experts(torch: Any, weights: ExpertWeights, x: Any, shares: Any, chosen: Any) -> Any:
    """Return the layer's output by two grouped matrix multiplications (bf16, on GPUs for which torch has them)."""
    order, counts = _sort_by_expert(torch, chosen, weights.num_experts)
    ends = torch.cumsum(counts, dim=0).to(torch.int32)
    rows = torch.div(order, chosen.shape[1], rounding_mode="floor")
    hidden = torch._grouped_mm(x[rows], weights.gate_up.transpose(1, 2), offs=ends)
    if weights.gate_up_bias is not None:
        hidden = hidden + weights.gate_up_bias[chosen.flatten()[order]]
    result = torch._grouped_mm(silu_and_mul(hidden), weights.down.transpose(1, 2), offs=ends)
    if weights.down_bias is not None:
        result = result + weights.down_bias[chosen.flatten()[order]]
    out = torch.zeros_like(x)
    return out.index_add_(0, rows, result * shares.flatten()[order].unsqueeze(-1))


def _sort_by_expert(torch: Any, chosen: Any, num_experts: int) -> tuple[Any, Any]:
    """Sort (token, chosen expert) pairs by expert; return their flat indices in this order and each expert's count."""
    flat = chosen.flatten()
    counts = torch.zeros(num_experts, dtype=flat.dtype, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return torch.argsort(flat, stable=True), counts


def _reference(torch: Any, weights: ExpertWeights, x: Any, shares: Any, chosen: Any) -> Any:
    """Return the layer's output in float64, some weight rows at a time because a whole expert takes gigabytes."""
    rows = []
    for token in range(x.shape[0]):
        total = 0.0
        for share, expert in zip(shares[token].double(), chosen[token].tolist(), strict=True):
            hidden = silu_and_mul(_product(torch, weights.gate_up[expert], x[token].double()))
            total = total + share * _product(torch, weights.down[expert], hidden)
        rows.append(total)
    return torch.stack(rows)


def _product(torch: Any, matrix: Any, vector: Any) -> Any:
    return torch.cat([part.double() @ vector for part in matrix.split(DOUBLED_ROWS)])
