"""Random engine runs for differential tests, and step times that are unpleasant on purpose."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes, DecodePiece, StepShape
from capacity.workload import PromptContent, Workload

COLUMNS = (
    "arrival_ps",
    "first_scheduled_ps",
    "first_token_ps",
    "finish_ps",
    "output_tokens",
    "cached_tokens",
    "preemptions",
)


@dataclass(frozen=True)
class KneedStepTimes:
    """Slope grows by 1 ns per context token at every multiple of `knot`; windowed contexts cost 7 ns each."""

    knot: int

    def _piece(self, contexts: int) -> tuple[int, int, int]:
        segment = max(0, -(-contexts // self.knot) - 1)
        slope = 1000 * (segment + 1)
        below = 1000 * self.knot * segment * (segment + 1) // 2
        return 10**9 + below - slope * segment * self.knot, slope, (segment + 1) * self.knot

    def step_ps(self, shape: StepShape) -> int:
        base, slope, _ = self._piece(shape.decode_context_tokens)
        decode = base + slope * shape.decode_context_tokens + 7000 * shape.decode_window_context_tokens
        return decode + shape.prefill_tokens * 10**6 + shape.prefill_pairs * 10

    def decode_piece(self, shape: StepShape) -> DecodePiece:
        base, slope, limit = self._piece(shape.decode_context_tokens)
        return DecodePiece(base, slope, 7000, limit, None)


def random_content(rng: random.Random, prompts: list[int]) -> PromptContent:
    """Prompts that share the beginnings of a few texts, at lengths that fall into and onto block borders."""
    rows = []
    for index, tokens in enumerate(prompts):
        left = tokens
        segments = []
        for text, most in ((rng.randint(0, 3), rng.choice([4, 8, 12, 16, 40])), (10 + rng.randint(0, 2), 12)):
            taken = min(left, most)
            if taken and rng.random() < 0.75:
                segments.append((text, taken))
                left -= taken
        if left:
            segments.append((1000 + index if rng.random() < 0.7 else 20, left))
        rows.append(segments)
    return PromptContent.from_segments(rows)


def random_run(seed: int) -> tuple[Workload, dict[str, Any]]:
    """A small workload, and an engine on which it is tight in one way or another."""
    rng = random.Random(seed)
    count, block_size = rng.randint(1, 25), rng.choice([1, 2, 4, 8, 16])
    max_model_len = rng.choice([48, 64, 200])
    gaps = [rng.choice([0, 0, 0.001, 0.01, 0.05, 0.3, 1.0]) * rng.random() for _ in range(count)]
    arrivals = np.round(np.cumsum(gaps), rng.choice([4, 9]))
    prompts = [rng.randint(1, min(40, max_model_len - 2)) for _ in range(count)]
    outputs = [rng.choice([1, 1, 2, 3, rng.randint(1, 30), rng.randint(1, 60)]) for _ in range(count)]
    needed = max(-(-min(p + o, max_model_len) // block_size) for p, o in zip(prompts, outputs))
    workload = Workload(
        arrival_s=arrivals,
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        content=random_content(rng, prompts) if rng.random() < 0.6 else None,
        priority=np.array([rng.randint(0, 2) for _ in range(count)]),
        concurrency=rng.choice([None, None, None, 1, 3, 8]),
    )
    chunked = rng.random() < 0.85
    max_num_seqs = rng.choice([1, 2, 4, 8, 64])
    budget = max(max_num_seqs if rng.random() < 0.8 else 1, rng.choice([4, 8, 16, 40, 64, 256]))
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len),
        max_model_len=max_model_len,
        priority=rng.random() < 0.3,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice([0, 0, 0, 5]),
        watermark=rng.choice([0, 0, 0.05, 0.2]),
        reserve_full_isl=rng.random() < 0.7,
    )
    affine = AffineStepTimes(
        rng.choice([0.01, 0.0033]),
        rng.choice([0.001, 0.0]),
        per_context_token_s=rng.choice([0, 0, 1e-5, 1.234e-6]),
    )
    windows = rng.choice([(None,), (None,), (None,), (8,), (None, 8), (5, None)])
    return workload, {
        "kv_windows": windows,
        "step_times": affine if rng.random() < 0.6 else KneedStepTimes(rng.choice([7, 50, 300])),
        "num_blocks": (needed + 1) * len(windows) + rng.choice([0, 0, 1, 2, 5, 20, 200]),
        "block_size": block_size,
        "limits": limits,
        "enable_prefix_caching": rng.random() < 0.75,
        "window_tokens": rng.choice([None, None, 5, 20]),
        "sample_interval_s": rng.choice([None, 0.013, 0.2]),
        "goodput_ms": {"ttft": 50.0, "tpot": 15.0},
        "policy": rng.choice(["vllm-v1", "vllm-v1-async"]),
    }


SETUP = frozenset(field.name for field in fields(EngineSetup))


def run_engine(workload: Workload, **keywords: Any) -> SimulationResult:
    """`simulate` on one engine, whose setup is given by its fields among the keywords."""
    setup = EngineSetup(**{name: value for name, value in keywords.items() if name in SETUP})
    return simulate(workload, setup, **{name: value for name, value in keywords.items() if name not in SETUP})


def differences(a: SimulationResult, b: SimulationResult) -> list[str]:
    """Names of everything in which two results are not equal, bit for bit."""
    ours, theirs = a.to_dict(), b.to_dict()
    found = [name for name in ours if ours[name] != theirs[name]]
    found += [
        column for column in COLUMNS if (getattr(a.records, column) != getattr(b.records, column)).any()
    ]
    if a.series != b.series:
        found.append("series")
    if a.busy_s != b.busy_s:
        found.append("busy_s")
    return found
