"""Short serving runs of the continuous-batching loop, at a share of what the calibrated step model says it can bear."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import graph_sizes
from capacity_validate.campaigns import ServingStage
from capacity_validate.capture import Captures
from capacity_validate.graphs import GraphedTransformer
from capacity_validate.memory_check import pool_bytes
from capacity_validate.model_error import calibrated_predictor
from capacity_validate.serving_loop import poisson_workload, run_engine
from capacity_validate.session import Session
from capacity_validate.stages.stage_result import LoadedRun, StageResult
from capacity_validate.transformer import Transformer, attention_findings


class _Executor(NamedTuple):
    """What runs the steps, and the memory that its graphs took."""

    model: Transformer | GraphedTransformer
    memory: dict[str, float]


def serving_stage(session: Session) -> Iterator[StageResult]:
    stage, model = session.plan.serving, session.transformer
    if stage is None or model is None:
        return
    rate_per_s = _rate_per_s(stage, calibrated_predictor(session).step_model(model.model.num_layers))
    expected_s = session.slowdown * stage.requests / rate_per_s
    for repeat in range(stage.repeats):
        if expected_s > session.time_left_s():
            yield StageResult(remarks=(f"the budget left time for {repeat} of {stage.repeats} serving runs",))
            return
        start = time.monotonic()
        session.announce(f"serving run {repeat + 1} of {stage.repeats}")
        workload = poisson_workload(
            requests=stage.requests,
            rate_per_s=rate_per_s,
            prompt_tokens=stage.prompt_tokens,
            output_tokens=stage.output_tokens,
            seed=session.seed + repeat,
        )
        limits = SchedulerLimits(
            max_num_seqs=stage.max_num_seqs, max_num_batched_tokens=stage.max_num_batched_tokens
        )
        executor = _executor(session, stage, model)
        yield StageResult(memory=executor.memory)
        run = run_engine(executor.model, workload, limits, clock=session.clock(), seed=session.seed + repeat)
        yield StageResult(runs=(LoadedRun(rate_per_s, run),))
        expected_s = time.monotonic() - start
    yield StageResult(findings=attention_findings(model, "serving"))


def _executor(session: Session, stage: ServingStage, model: Transformer) -> _Executor:
    """The transformer, with graphs of decode batches on a GPU that can hold its steps in one."""
    if not session.on_gpu or not model.capturable:
        return _Executor(model, {})
    longest = stage.prompt_tokens[1] + stage.output_tokens[1]
    captures = Captures(session.torch, session.facts.torch_name)
    sizes = graph_sizes(stage.max_num_seqs)
    graphed = GraphedTransformer(model, captures, sizes=sizes, max_context=longest)
    pool = pool_bytes(session.torch, captures.shared_pool)
    return _Executor(graphed, {"graphs": float(len(sizes)), "graph_pool_bytes": pool})


def _rate_per_s(stage: ServingStage, steps: StepModel) -> float:
    """`load_fraction` of what a full batch could serve, by the step model."""
    prompt = sum(stage.prompt_tokens) // 2
    output = sum(stage.output_tokens) / 2
    seats = max(1, stage.max_num_seqs // 2)
    decode_s = steps.step_seconds(decode_shape(seats, prompt + int(output / 2)))
    per_request_s = steps.step_seconds(prefill_shape(1, prompt)) + output * decode_s / seats
    return stage.load_fraction / per_request_s
