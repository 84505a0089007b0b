"""Memory for real: weights, KV cache and activations of a model, allocated and compared with the memory model."""

from __future__ import annotations

from typing import Any

from capacity.engines import find_engine
from capacity.memory import activation_bytes
from capacity.quantization import weight_bytes
from capacity_validate.findings import Finding
from capacity_validate.transformer import Row, Transformer


def exact_findings(model: Transformer) -> list[Finding]:
    """Bytes that must agree to the byte on any device."""
    spec = model.model
    weights = sum(tensor.nbytes for tensor in model.weight_tensors)
    slots = model.cache_slots
    promised = slots * sum(group.bytes_per_token for group in spec.kv_cache_groups())
    return [
        Finding(
            name=f"{spec.name}: weight bytes",
            value=float(weights),
            limit=float(weight_bytes(spec)),
            detail="parameters allocated against the memory model, to the byte",
            exact=True,
        ),
        Finding(
            name=f"{spec.name}: KV bytes",
            value=float(sum(cache.nbytes for cache in model.cache_tensors)),
            limit=float(promised),
            detail=f"{slots} tokens of cache against the memory model, to the byte",
            exact=True,
        ),
    ]


def peak_activation_bytes(torch: Any, model: Transformer, tokens: int) -> float:
    """What a prefill of `tokens` needs besides weights and cache: the allocator's peak; on a CPU all it creates."""
    from capacity_validate.kernels.prepared import Bench, peak_bytes

    step = model.inputs(
        [Row(tokens=[1] * tokens, computed=0, blocks=list(range(-(-tokens // model.block_size))))]
    )
    model.logits(step)
    bench = Bench(torch, model.device, 0, None, 0.0)
    return peak_bytes(bench, lambda: model.logits(step))


def predicted_activation_bytes(model: Transformer, tokens: int) -> float:
    """What the memory model sets aside for one sequence of `tokens` tokens in one step of a fused engine."""
    return activation_bytes(model.model, find_engine("vllm"), max_num_seqs=1, max_num_batched_tokens=tokens)


def gpu_memory(torch: Any, device: str) -> dict[str, float]:
    """Where a GPU's memory went: torch's allocator, and what the driver counts besides (context, libraries, others)."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    return {
        "total_bytes": float(total),
        "reserved_bytes": float(reserved),
        "allocated_bytes": float(torch.cuda.memory_allocated(device)),
        "nontorch_bytes": float(max(0, total - free - reserved)),
    }
