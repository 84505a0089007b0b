"""A second model, a mixture of experts where the campaign says so: its steps are predicted and never fitted.

Constants come from kernels, and the loop's host time from the first model: what they are worth for another model only
another model can show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from capacity.base.errors import UnsupportedModel
from capacity_validate.model_cases import blocks_for, step_cases
from capacity_validate.session import Session, WholeModel
from capacity_validate.small_models import cut_layers, find_model, layers_that_fit
from capacity_validate.stages.result import StageResult
from capacity_validate.stages.steps import runner_of
from capacity_validate.transformer import Transformer, require_supported

WEIGHTS_SHARE = 0.6  # of what is free beside the first model
CACHE_SHARE = 0.15
BUDGET_SHARE = 0.2


def unseen_stage(session: Session) -> Iterator[StageResult]:
    stage = session.plan.unseen
    if stage is None:
        return
    if session.time_left_s() <= 0:
        yield StageResult(remarks=(f"{stage.model}: left out, the budget was spent",))
        return
    spec = find_model(stage.model)
    reason = session.missing.get(spec.dtype)
    try:
        require_supported(spec)
    except UnsupportedModel as refusal:
        reason = str(refusal)
    if reason is not None:
        yield StageResult(remarks=(f"no second model was run: {reason}",))
        return
    session.announce(f"{spec.name}, which no fit sees")
    free = session.free_bytes()
    layers = min(layers_that_fit(spec, WEIGHTS_SHARE * free), stage.max_layers or spec.num_layers)
    if layers < 1:
        yield StageResult(
            remarks=(f"{spec.name} does not fit beside the first model: no second one was run",)
        )
        return
    few = cut_layers(spec, layers)
    blocks = blocks_for(stage, few, CACHE_SHARE * free)
    model = Transformer(few, device=session.facts.torch_name, num_blocks=blocks, seed=session.seed + 1)
    model.fill_caches()
    try:
        cases = step_cases(stage, few, eager=session.on_gpu and not model.capturable, of="unseen")
        own = session.with_model(WholeModel(spec=spec, transformer=model), None)
        outcome = runner_of(own, None).run(
            cases,
            passes=session.plan.passes,
            deadline=time.monotonic() + BUDGET_SHARE * session.time_left_s(),
            progress=session.progress,
        )
    finally:
        model.release()
        session.free_memory()
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.left_out:
        yield StageResult(remarks=(f"{spec.name}: the budget left out {len(outcome.left_out)} steps",))
