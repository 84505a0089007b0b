"""Ways of batching side by side: the same arrivals on the same engine, static and continuous, contiguous and paged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.schedulers import SchedulerLimits, Step
from capacity.simulator.engine import Engine
from capacity.simulator.simulate import SimulationResult, simulate_engine
from capacity.step import StepTimes
from capacity.workload import PromptContent, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRow:
    """One way of batching. `kv_waste_fraction`: KV slots that requests held and that stored no token, over time."""

    name: str
    result: SimulationResult
    kv_waste_fraction: float | None


class KvWaste:
    """An observer: slots reserved against tokens stored, weighted by the time from step to step."""

    def __init__(self) -> None:
        self.reserved_token_ps = 0
        self.stored_token_ps = 0
        self._last_ps: int | None = None
        self._reserved = self._stored = 0

    def __call__(self, step: Step, engine: Engine) -> None:
        if self._last_ps is not None:
            self.reserved_token_ps += self._reserved * (step.end - self._last_ps)
            self.stored_token_ps += self._stored * (step.end - self._last_ps)
        self._last_ps = step.end
        pool, running = engine.pool, engine.policy.running  # type: ignore[attr-defined]
        self._reserved = sum(pool.held_blocks(r.table) for r in running) * pool.block_size
        self._stored = sum(r.computed for r in running)

    @property
    def fraction(self) -> float | None:
        if not self.reserved_token_ps:
            return None
        return 1 - self.stored_token_ps / self.reserved_token_ps


def compare_batching(
    workload: Workload,
    *,
    step_times: StepTimes,
    num_blocks: int,
    limits: SchedulerLimits,
    block_size: int = 16,
    batching_window_s: float = 0.1,
    continuous: str = "vllm-v1",
    **options: Any,
) -> tuple[BatchingRow, ...]:
    """Static batching, continuous batching over contiguous and over paged KV, and with the prefix cache.

    Contiguous KV reserves `limits.max_model_len` tokens for every request, as engines did before paging. The KV
    waste is measured without prefix caching, one step at a time, which is slow: thousands of requests, not millions.
    """
    common: dict[str, Any] = {
        "step_times": step_times,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "limits": limits,
        **options,
    }
    window = {"batching_window_s": batching_window_s}
    rows = [
        BatchingRow(
            name="static, padded",
            result=simulate_engine(workload, policy="static", policy_options=window, **common),
            kv_waste_fraction=None,
        )
    ]
    layouts: dict[str, dict[str, Any]] = {
        "continuous, contiguous KV": {"kv_contiguous_tokens": limits.max_model_len},
        "continuous, paged KV": {},
    }
    for name, layout in layouts.items():
        waste = KvWaste()
        result = simulate_engine(
            workload,
            policy=continuous,
            enable_prefix_caching=False,
            mode="step",
            observer=waste,
            **common,
            **layout,
        )
        rows.append(BatchingRow(name=name, result=result, kv_waste_fraction=waste.fraction))
    cached = simulate_engine(workload, policy=continuous, enable_prefix_caching=True, **common)
    rows.append(BatchingRow(name="continuous, paged KV, prefix cache", result=cached, kv_waste_fraction=None))
    return tuple(rows)


def parallel_samples(workload: Workload, samples: int) -> Workload:
    """Every request `samples` times, with the same prompt: n > 1 as vLLM V1 serves it, each sample a request.

    The samples share the prompt's full KV blocks through the prefix cache; the block that a prompt fills in part is
    computed by each of them. Links between requests are kept from first sample to first sample.
    """
    count = len(workload)
    rows = np.repeat(np.arange(count), samples)
    content = workload.content
    if content is None:
        content = PromptContent.from_segments([[(i, int(n))] for i, n in enumerate(workload.prompt_tokens)])
    repeated = content.take(rows)
    fresh = int(max(repeated.segment_ids.max(), repeated.answer_ids.max())) + 1
    answers = repeated.answer_ids.copy()
    later = np.arange(len(rows)) % samples > 0
    answers[later] = fresh + np.arange(int(later.sum()))
    after = workload.after_request
    return replace(
        workload,
        arrival_s=workload.arrival_s[rows],
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        priority=None if workload.priority is None else workload.priority[rows],
        session=None if workload.session is None else workload.session[rows],
        content=replace(repeated, answer_ids=answers),
        after_request=None if after is None else np.where(after[rows] >= 0, after[rows] * samples, -1),
        think_s=None if workload.think_s is None else workload.think_s[rows],
    )
