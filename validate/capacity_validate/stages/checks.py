"""Stages that time collectives, check inference techniques, and compare allocated memory with the memory model.

The techniques are paged attention, windows, CUDA graphs, quantization and others, whose results are compared with
reference computations.
"""

import time
from contextlib import nullcontext
from dataclasses import replace

from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import ON_HOST
from capacity_validate.collective_times import collective_cases, measure_collectives, rank_counts
from capacity_validate.engine_cases import installed_engine
from capacity_validate.kernels import TRITON
from capacity_validate.quantizers import quantizer_findings
from capacity_validate.session import Session, StageResults
from capacity_validate.stages.steps import make_telemetry
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

START_S = 15.0  # time to start processes that each import torch


def collective_stage(session: Session, results: StageResults) -> None:
    """Time collectives among the chosen GPUs, or among CPU processes. Runs before the model occupies memory."""
    stage, devices = session.plan.collectives, session.facts.collective_devices
    if stage is None:
        return
    counts = rank_counts(len(devices)) if session.on_gpu else (stage.ranks,)
    if not counts:
        results.remarks.append(
            "one GPU was chosen, so no collectives were measured; --device cuda:0,1 chooses two"
        )
        return
    engine = installed_engine() if session.on_gpu else ""
    cases = [
        case
        for case in collective_cases(counts, stage.message_bytes, on_cuda=session.on_gpu, engine=engine)
        if case.id not in session.log.done
    ]
    if not cases:
        return
    if session.time_left_s() < START_S * session.slowdown:
        results.remarks.append("collectives: omitted, because their share of the budget is too short")
        return
    session.announce(f"collectives of up to {max(counts)} ranks")
    telemetry = make_telemetry(session)
    with telemetry or nullcontext():
        run = measure_collectives(
            cases,
            devices=devices if session.on_gpu else None,
            deadline=time.monotonic() + session.time_left_s(),
        )
    for one in run.timed:
        conditions = None if telemetry is None else telemetry.conditions(one.began_s, one.ended_s)
        session.log.add(replace(one.measured, conditions=conditions))
    if run.failure:
        results.broken.append(f"collectives failed: {run.failure}")
    elif len(run.timed) < len(cases):
        results.remarks.append(f"the budget covered {len(run.timed)} of {len(cases)} collectives")


def memory_stage(session: Session, results: StageResults) -> None:
    model = session.transformer
    if model is None or not session.plan.memory:
        return
    if session.time_left_s() <= 0:
        results.remarks.append("memory checks: omitted, the budget was spent")
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
DEVICE_SHARE = 0.8  # of the stage's time; the rest is for checks on the host


def technique_stage(session: Session, results: StageResults) -> None:
    if not session.plan.techniques:
        return
    if session.time_left_s() <= 0:
        results.remarks.append("checks of inference techniques: omitted, the budget was spent")
        return
    session.announce("techniques")
    if session.on_gpu:
        _check_on_device(session, results)
    for findings in (quantizer_findings, technique_findings):
        results.findings += (replace(f, device=ON_HOST) for f in findings())


def _check_on_device(session: Session, results: StageResults) -> None:
    device = session.facts.torch_name
    for part in (served_dtype(device), TRITON):
        if (reason := session.missing.get(part)) is not None:
            results.remarks.append(f"no inference technique was checked on {device}: {reason}")
            return
    ends = time.monotonic() + min(DEVICE_S, DEVICE_SHARE * session.time_left_s())
    for finding in device_findings(device, GraphCapturer(session.torch, device)):
        results.findings.append(finding)
        if time.monotonic() > ends:
            results.remarks.append(
                f"the budget did not cover the last checks of inference techniques on {device}"
            )
            return
