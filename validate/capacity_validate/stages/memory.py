"""Weights, KV cache and activations of the model, allocated and compared with the memory model."""

from __future__ import annotations

from collections.abc import Iterator

from capacity_validate.memory_check import (
    activation_findings,
    exact_findings,
    fused_activation_bytes,
    gpu_memory,
    peak_activation_bytes,
)
from capacity_validate.session import Session
from capacity_validate.stages.result import StageResult


def memory_stage(session: Session) -> Iterator[StageResult]:
    model = session.transformer
    if model is None or not session.plan.memory:
        return
    if session.time_left_s() <= 0:
        yield StageResult(remarks=("memory: left out, the budget was spent",))
        return
    session.announce("memory")
    yield StageResult(findings=tuple(exact_findings(model)))
    tokens = max(session.plan.transformer.prefill) if session.plan.transformer else 0
    if tokens:
        yield StageResult(memory={"prefill_tokens": float(tokens)})
        peak = peak_activation_bytes(session.torch, model, tokens)
        yield StageResult(
            memory={
                "activation_peak_bytes": peak,
                "activation_bytes_of_a_fused_engine": fused_activation_bytes(model, tokens),
            },
            findings=tuple(activation_findings(model, tokens, peak)),
        )
    if session.on_gpu:
        yield StageResult(
            memory=gpu_memory(session.torch, session.facts.torch_name, alone=not session.facts.is_shared)
        )
