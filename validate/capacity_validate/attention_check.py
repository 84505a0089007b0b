"""Which attention kernel prefill, its chunks and verification really ran on a GPU: the calibrated one, or another."""

from __future__ import annotations

from capacity_validate.findings import Finding
from capacity_validate.kernels.causal import FLASH
from capacity_validate.transformer import Transformer

HALF = ("bf16", "fp16")  # what FlashAttention computes in


def attention_findings(model: Transformer, during: str) -> tuple[Finding, ...]:
    """None on a CPU, in fp32, or where nothing was prefilled. Windows and sinks need a mask, and are only counted."""
    counts = model.attention_kernels
    if model.device == "cpu" or model.model.dtype not in HALF or not counts:
        return ()
    ran = ", ".join(f"{count} by {name}" for name, count in sorted(counts.items()))
    return (
        Finding(
            name=f"{during}: prefill, chunks and verification run FlashAttention",
            value=float(counts["masked"]),
            limit=0.0,
            detail=f"calls of a layer whose mask was written out, which another kernel than {FLASH} takes; {ran}",
            exact=True,
        ),
    )
