"""Stages that run the whole model: short serving runs, and speculative decoding with its first layers as draft model.

The serving runs have a fraction of the throughput that the calibrated step model predicts. Speculative decoding is
checked for accepted length and equal output, and its speed-up is measured.
"""

import math
import time
from dataclasses import replace
from itertools import product

from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import graph_sizes
from capacity_validate.campaigns import ServingStage, SpeculationStage
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import ON_HOST, Finding
from capacity_validate.model_error import fitted_half
from capacity_validate.serving_loop import poisson_workload, run_engine
from capacity_validate.session import LoadedRun, Session, StageResults
from capacity_validate.small_models import cut_layers
from capacity_validate.speculative_decoding import (
    PROMPT_TOKENS,
    SpeculativeRun,
    distribution_findings,
    predicted_speedup,
    run_models,
)
from capacity_validate.technique_checks import pool_bytes
from capacity_validate.transformer import GraphedTransformer, Transformer, attention_findings


def serving_stage(session: Session, results: StageResults) -> None:
    stage, model = session.plan.serving, session.transformer
    if stage is None or model is None:
        return
    rate_per_s = _request_rate(stage, fitted_half(session).after.step_model(model.model.num_layers))
    expected_s = session.slowdown * stage.requests / rate_per_s
    for repeat in range(stage.repeats):
        if expected_s > session.time_left_s():
            results.remarks.append(f"the budget covered {repeat} of {stage.repeats} serving runs")
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
        executor, memory = _executor(session, stage, model)
        results.memory |= memory
        run = run_engine(executor, workload, limits, clock=session.clock(), seed=session.seed + repeat)
        results.runs.append(LoadedRun(rate_per_s, run))
        expected_s = time.monotonic() - start
    results.findings += attention_findings(model, "serving")


def _executor(
    session: Session, stage: ServingStage, model: Transformer
) -> tuple[Transformer | GraphedTransformer, dict[str, float]]:
    """Return the model, with decode steps in CUDA graphs if possible, and the number and memory of these graphs."""
    if not session.on_gpu or not model.capturable:
        return model, {}
    longest = stage.prompt_tokens[1] + stage.output_tokens[1]
    captures = GraphCapturer(session.torch, session.facts.torch_name)
    sizes = graph_sizes(stage.max_num_seqs)
    graphed = GraphedTransformer(model, captures, sizes=sizes, max_context=longest)
    pool = pool_bytes(session.torch, captures.shared_pool)
    return graphed, {"graphs": float(len(sizes)), "graph_pool_bytes": pool}


def _request_rate(stage: ServingStage, steps: StepModel) -> float:
    """Return the request rate: `load_fraction` times the predicted throughput at half of the maximum batch size."""
    prompt = sum(stage.prompt_tokens) // 2
    output = sum(stage.output_tokens) / 2
    seats = max(1, stage.max_num_seqs // 2)
    decode_s = steps.step_seconds(decode_shape(seats, prompt + int(output / 2)))
    per_request_s = steps.step_seconds(prefill_shape(1, prompt)) + output * decode_s / seats
    return stage.load_fraction / per_request_s


EXACT_DOUBT = 1e-3
ROUNDED_DOUBT = 0.05  # bf16 through dozens of layers; a token of another model differs by about 0.5
MIN_REMAINING_S = 2  # minimum remaining budget to start the stage
STEPS_PER_TOKEN = 4.0  # target steps per token, speculative and plain run together


def speculation_stage(session: Session, results: StageResults) -> None:
    stage, target = session.plan.speculation, session.transformer
    if stage is None or target is None or session.time_left_s() < MIN_REMAINING_S:
        return
    session.announce("speculative decoding")
    draft = _draft_model(session, stage, target)
    predictor = fitted_half(session).after
    target_s = predictor.step_model(target.model.num_layers).step_seconds
    draft_s = predictor.step_model(draft.model.num_layers).step_seconds
    context = stage.output_tokens // 2
    points = list(product(stage.draft_tokens, stage.agreements))
    expected_s = session.slowdown * STEPS_PER_TOKEN * stage.output_tokens * target_s(decode_shape(1, context))
    for number, (draft_tokens, agreement) in enumerate(points):
        if expected_s > session.time_left_s():
            results.remarks.append(f"the budget covered {number} of {len(points)} speculative runs")
            return
        start = time.monotonic()
        distribution = distribution_findings(
            agreement=agreement,
            draft_tokens=draft_tokens,
            samples=stage.distribution_samples,
            seed=session.seed,
        )
        results.findings += (replace(f, device=ON_HOST) for f in distribution)
        run = run_models(
            target,
            draft,
            agreement=agreement,
            draft_tokens=draft_tokens,
            output_tokens=stage.output_tokens,
            clock=session.clock(),
        )
        speedup = predicted_speedup(run, target_s=target_s, draft_s=draft_s, context=context)
        results.findings += (_length_finding(run), _token_finding(run, exact=target.model.dtype == "fp32"))
        results.speculation.append(replace(run, predicted_speedup=speedup))
        expected_s = time.monotonic() - start
    results.findings += attention_findings(target, "speculative decoding")


def _draft_model(session: Session, stage: SpeculationStage, target: Transformer) -> Transformer:
    """Return a model with a sixth of the target's layers and a KV cache for one sequence."""
    shallow = cut_layers(target.model, max(1, target.model.num_layers // 6))
    longest = PROMPT_TOKENS + stage.output_tokens + 2 * max(stage.draft_tokens) + target.block_size
    return Transformer(
        shallow,
        device=session.facts.torch_name,
        num_blocks=min(target.num_blocks, -(-longest // target.block_size)),
        seed=session.seed,
    )


def _length_finding(run: SpeculativeRun) -> Finding:
    """Check the mean accepted length of a real run: within 5 standard errors of the formula's value.

    The formula takes the rate at which draft and target agree in this run.
    """
    a, k = run.agreement, run.draft_tokens
    probabilities = [a**i * (1 - a) for i in range(k)] + [a**k]
    mean = sum((i + 1) * p for i, p in enumerate(probabilities))
    variance = sum((i + 1 - mean) ** 2 * p for i, p in enumerate(probabilities))
    return Finding(
        name=f"speculative decoding, k={k}, agreement {a:g}: accepted length",
        value=abs(run.accepted_length - run.expected_length),
        limit=5 * math.sqrt(variance / run.verifications) + 1.0 / run.verifications,
        detail=f"{run.accepted_length:.3f} measured over {run.verifications} verifications, "
        f"{run.expected_length:.3f} by (1-a^(k+1))/(1-a); limit 5 standard errors",
    )


def _token_finding(run: SpeculativeRun, *, exact: bool) -> Finding:
    """Check that every token is the target's own first choice, within the precision of its dtype."""
    return Finding(
        name=f"speculative decoding, k={run.draft_tokens}, agreement {run.agreement:g}: tokens are the target's",
        value=run.doubt,
        limit=EXACT_DOUBT if exact else ROUNDED_DOUBT,
        detail=f"logit gap to the first choice / largest logit; {run.equal_tokens} of {run.tokens} tokens equal plain "
        "decoding (after one rounding difference, later tokens differ too)",
    )
