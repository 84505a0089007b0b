"""Memory for real: weights, KV cache and activations of a model, allocated and compared with the memory model."""

from typing import Any

from capacity.deployment.engines import find_engine
from capacity.model import ModelSpec
from capacity.model.feed_forward import DenseFeedForward
from capacity.model.layers import Attention
from capacity.model.quantization import weight_bytes
from capacity.pool.activations import activation_bytes
from capacity_validate.findings import Finding
from capacity_validate.step_inputs import InputRow
from capacity_validate.transformer import Transformer

HIDDEN_COPIES = 2  # the residual and the normalised input
FUSED_FFN_COPIES = 3  # gate and up in one tensor, and SiLU(gate) · up
UNFUSED_FFN_COPIES = 4
ACTIVATION_TOLERANCE = 0.05  # allocators round up; masks and positions are small beside it


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
    from capacity_validate.kernels import KernelBench, peak_bytes

    step = model.inputs(
        [InputRow(tokens=[1] * tokens, computed=0, blocks=list(range(-(-tokens // model.block_size))))]
    )
    model.logits(step)
    bench = KernelBench(torch, model.device, 0, None, 0.0)
    return peak_bytes(bench, lambda: model.logits(step))


def fused_activation_bytes(model: Transformer, tokens: int) -> float:
    """What the memory model sets aside for one sequence of `tokens` tokens in one step of an engine."""
    engine = find_engine("vllm")
    halves = activation_bytes(model.model, engine, sampled_rows=1, tokens=tokens)
    return float(halves * model.dtype.itemsize / 2)


def activation_findings(model: Transformer, tokens: int, measured_bytes: float) -> list[Finding]:
    """The peak against the memory model's form, the widest layer of all tokens; dense layers wider than attention.

    Gate and up live beside their product, and on a CPU, where the activation is not fused, beside SiLU(gate) too.
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
            detail=f"prefill of {tokens} tokens: {measured_bytes / 2**20:.2f} MiB measured, {expected / 2**20:.2f} by "
            f"tokens x ({HIDDEN_COPIES} hidden + {copies} FFN widths); relative difference",
        )
    ]


def _widest_dense(model: ModelSpec) -> int | None:
    """Intermediate size of the widest layer; None where experts or attention are wider, or may be."""
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
    """Where a GPU's memory went: torch's allocator, and what the driver counts besides (context, libraries).

    The latter only where nobody else is on the card: theirs would be in it.
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
    """Memory that the graphs of one pool hold, as torch's allocator has it in segments."""
    segments = torch.cuda.memory_snapshot()
    return float(sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(pool)))
