"""Options and trials of a planner with made-up figures."""

from __future__ import annotations

from typing import Any

from capacity.deployment import Pool
from capacity.planning.evaluation.cost_bounds import Bound
from capacity.planning.evaluation.slo_evaluation import Evaluation, Level
from capacity.planning.quality import AS_PUBLISHED
from capacity.planning.search.candidate_family import CandidateFamily
from capacity.planning.space import Search


def option(objective: str = "gpus", **fields: Any) -> CandidateFamily:
    """One engine, 1 to 20 replicas of it open."""
    bound = Bound(min_replicas=1, work_s=1.0, ratio=0.5, reason=None)
    own = {
        "pool": Pool(gpu="h100"), "price": None, "watts_per_gpu": 1000.0,
        "drawn": lambda replicas: 2_000.0 * replicas, "quality": AS_PUBLISHED, "bound": bound,
        "least": 1, "most": 20, "search": Search(gpus="h100", objective=objective),
    }  # fmt: skip
    return CandidateFamily(**(own | fields))


def level(value_s: float | None, limit_s: float = 1.0, **fields: Any) -> Level:
    """A level of p95 TTFT."""
    own = {
        "slo": "ttft:p95:1s", "limit_s": limit_s, "value_s": value_s, "good_fraction": 1.0, "required_fraction": 0.95,
        "ratio": 0.0 if value_s is None else value_s / limit_s, "met": value_s is None or value_s <= limit_s,
    }  # fmt: skip
    return Level(**(own | fields))


def trial(ratio: float, **fields: Any) -> Evaluation:
    """What a deployment did whose p95 TTFT is `ratio` seconds, the limit being one."""
    own = {
        "levels": (level(ratio),), "met": ratio <= 1, "seen": "all", "requests": 100, "output_tokens_per_s": 100.0,
        "input_tokens_per_s": 100.0, "requests_per_s": 1.0, "tokens_per_s_per_user": 10.0, "mean_e2e_s": 1.0,
        "mean_batch_size": 4.0, "kv_utilization_peak": 0.5, "preemptions": 0,
    }  # fmt: skip
    return Evaluation(**(own | fields))
