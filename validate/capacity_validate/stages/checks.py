"""Stages that check techniques and memory and measure collectives; they time no steps of the model."""

import time
from dataclasses import replace

from capacity_validate.capture import GraphCapturer
from capacity_validate.collective_times import measure_collectives, rank_counts
from capacity_validate.findings import ON_HOST
from capacity_validate.quantizers import quantizer_findings
from capacity_validate.session import Session
from capacity_validate.stages.stage_result import StageResults
from capacity_validate.technique_checks import (
    activation_findings,
    device_findings,
    exact_findings,
    fused_activation_bytes,
    gpu_memory,
    peak_activation_bytes,
    served_dtype,
    technique_findings,
)

COLLECTIVES_S = 20.0  # time to start processes that each import torch


def collective_stage(session: Session, results: StageResults) -> None:
    stage = session.plan.collectives
    if stage is None:
        return
    counts = rank_counts(session.facts.devices_in_node) if session.on_gpu else (stage.ranks,)
    if not counts:
        results.remarks.append("one GPU: no collectives were measured")
        return
    if session.transformer is not None:
        session.transformer.release()  # free the first GPU's memory; this is the last stage
        session.free_memory()
    for ranks in counts:
        if session.time_left_s() < COLLECTIVES_S * session.slowdown:
            results.remarks.append(f"collectives of {ranks} ranks: omitted, the budget was spent")
            return
        session.announce(f"collectives of {ranks} ranks")
        for measured in measure_collectives(
            ranks=ranks, on_cuda=session.on_gpu, message_bytes=stage.message_bytes
        ):
            if measured.case.id not in session.log.done:
                session.log.add(measured)


def memory_stage(session: Session, results: StageResults) -> None:
    model = session.transformer
    if model is None or not session.plan.memory:
        return
    if session.time_left_s() <= 0:
        results.remarks.append("memory: omitted, the budget was spent")
        return
    session.announce("memory")
    results.findings += exact_findings(model)
    tokens = max(session.plan.transformer.prefill) if session.plan.transformer else 0
    if tokens:
        results.memory["prefill_tokens"] = float(tokens)
        peak = peak_activation_bytes(session.torch, model, tokens)
        results.memory["activation_peak_bytes"] = peak
        results.memory["activation_bytes_of_a_fused_engine"] = fused_activation_bytes(model, tokens)
        results.findings += activation_findings(model, tokens, peak)
    if session.on_gpu:
        alone = not session.facts.is_shared
        results.memory |= gpu_memory(session.torch, session.facts.torch_name, alone=alone)


DEVICE_S = 20.0  # maximum time for checks on a GPU
DEVICE_SHARE = 0.2


def technique_stage(session: Session, results: StageResults) -> None:
    if not session.plan.techniques:
        return
    if session.time_left_s() <= 0:
        results.remarks.append("techniques: omitted, the budget was spent")
        return
    session.announce("techniques")
    if session.on_gpu:
        _check_on_device(session, results)
    for findings in (quantizer_findings, technique_findings):
        results.findings += (replace(f, device=ON_HOST) for f in findings())


def _check_on_device(session: Session, results: StageResults) -> None:
    device = session.facts.torch_name
    if (reason := session.missing.get(served_dtype(device))) is not None:
        results.remarks.append(f"no technique was checked on {device}: {reason}")
        return
    ends = time.monotonic() + min(DEVICE_S, DEVICE_SHARE * session.time_left_s())
    for finding in device_findings(device, GraphCapturer(session.torch, device)):
        results.findings.append(finding)
        if time.monotonic() > ends:
            results.remarks.append(f"the budget did not cover the last technique checks on {device}")
            return
