"""The search against brute force, the same twice, and when its time is up."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from brute_force import brute_force
from long_forms import mostly_slow
from quick_plans import PLAIN, PRICES, SHORT, quick
from slowness import slowness

from capacity.planning.plan import plan
from capacity.planning.search.candidate_family import EvaluatedCandidate
from capacity.planning.search.plan_search import PlanSearch
from capacity.planning.search.snapshot import Snapshot

SPACES = {
    "tensor parallelism and GPUs": (
        "llama-3.1-8b",
        "ttft:p90:400ms tpot:p90:16ms",
        {"gpus": "a100,h100,h200", "tensor_parallel_sizes": (1, 2, 4), "quantizations": (None,),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 24},
        {"request_rate": 60.0},
    ),
    "quantization": (
        "llama-3.1-8b",
        "ttft:p95:300ms tpot:p95:12ms",
        {"gpus": "h100", "tensor_parallel_sizes": (1, 2), "quantizations": (None, "fp8", "int4"),
         "kv_cache_dtypes": ("auto", "fp8"), "max_num_batched_tokens": (None, 1024), "max_gpus": 12},
        {"request_rate": 50.0},
    ),
    "mixture of experts": (
        "mixtral-8x7b",
        "ttft:p90:800ms tpot:p90:30ms",
        {"gpus": "h100,h200", "tensor_parallel_sizes": (2, 4), "quantizations": (None, "fp8"),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 32},
        {"request_rate": 40.0},
    ),
    "data-parallel attention": (
        "mixtral-8x7b",
        "ttft:p90:800ms tpot:p90:40ms",
        {"gpus": "h200", "tensor_parallel_sizes": (1, 2), "data_parallel_sizes": (1, 2, 4), "quantizations": ("fp8",),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 12},
        {"request_rate": 60.0},
    ),
    "limits of the engine": (
        "llama-3.1-8b",
        "ttft:p95:500ms tpot:p95:20ms",
        {"gpus": "a100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_seqs": (None, 16, 64), "max_num_batched_tokens": (None, 512, 1024), "max_gpus": 16},
        {"request_rate": 40.0},
    ),
    "fewest GPUs": (
        "llama-3.1-8b",
        "e2el:p90:1500ms",
        {"gpus": "a100,h100,b200", "tensor_parallel_sizes": (1, 2), "quantizations": (None, "fp8", "int4"),
         "kv_cache_dtypes": ("auto",), "objective": "gpus",
         "alternatives": False, "max_num_batched_tokens": (None,), "max_gpus": 12},
        {"request_rate": 60.0},
    ),
    "drafts": (
        "llama-3.1-8b",
        "ttft:p95:500ms tpot:p95:8ms",
        {"gpus": "h100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_batched_tokens": (None,), "speculators": ("none", "eagle3", "ngram"),
         "num_speculative_tokens": (2, 4), "max_gpus": 16},
        {"request_rate": 40.0},
    ),
    "disaggregation": (
        "llama-3.1-8b",
        "ttft:p95:1s itl:p99:20ms",
        {"gpus": "a100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_batched_tokens": (None, 512), "serving": ("aggregated", "disaggregated"), "max_gpus": 10},
        {"request_rate": 8.0, "input_len": 2000},
    ),
    "disaggregated mixture of experts": (
        "mixtral-8x7b",
        "ttft:p95:450ms tpot:p95:22ms",
        {"gpus": "h100", "tensor_parallel_sizes": (2, 4), "expert_parallel": (False,), "quantizations": (None,),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "serving": "disaggregated", "max_gpus": 20},
        {"request_rate": 24.0, "input_len": 2000},
    ),
    "disaggregated with drafts": (
        "llama-3.1-8b",
        "ttft:p95:1s tpot:p95:9ms",
        {"gpus": "a100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_batched_tokens": (None,), "serving": "disaggregated", "speculators": ("none", "eagle3", "ngram"),
         "num_speculative_tokens": (2,), "max_gpus": 8},
        {"request_rate": 8.0, "input_len": 2000},
    ),
    "disaggregated with data-parallel ranks": (
        "mixtral-8x7b",
        "ttft:p95:900ms tpot:p95:30ms",
        {"gpus": "h200", "tensor_parallel_sizes": (1, 2), "data_parallel_sizes": (1, 2), "expert_parallel": (True,),
         "quantizations": ("fp8",), "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,),
         "serving": "disaggregated", "max_gpus": 8},
        {"request_rate": 16.0, "input_len": 2000, "num_prompts": 50},
    ),
}  # fmt: skip


SMALL = ("quantization", "drafts", "fewest GPUs")


@pytest.mark.parametrize("name", mostly_slow(SPACES, SMALL))
def test_brute_force_agrees(name: str) -> None:
    model, slo, space, rate = SPACES[name]
    space, traffic = PLAIN | space, SHORT | rate
    best, points, reached = brute_force(model, slo, space, traffic)
    answer = plan(model, slo=slo, price=PRICES, **space, **traffic)
    assert answer.best is not None
    assert math.isfinite(best)
    assert answer.best.objective == pytest.approx(best)
    assert answer.best.candidate in reached
    assert answer.proved
    assert answer.counts.points == points
    assert answer.counts.simulated <= 0.20 * points, f"{answer.counts.simulated} of {points}"
    assert answer.best.trial.met
    assert all(level.met for level in answer.best.trial.levels)


def test_more_gpus_that_nobody_needs_are_not_more_simulations() -> None:
    """The same answer, proved by as many runs, in a space of 100 deployments and in one of 147."""
    model, slo, space, rate = SPACES["disaggregation"]
    small, large = (
        plan(model, slo=slo, price=PRICES, **PLAIN | space | {"max_gpus": most}, **SHORT | rate)
        for most in (9, 11)
    )
    assert small.best is not None
    assert large.best is not None
    assert small.best.candidate == large.best.candidate
    assert (small.proved, small.counts.points, large.proved, large.counts.points) == (True, 100, True, 147)
    assert small.counts.simulated == large.counts.simulated


def test_energy_and_gpus_are_minimised_as_told() -> None:
    """One B200 does what takes more A100s: fewest GPUs; the least energy is joules drawn a token, by brute force."""
    space = {
        "gpus": "a100,l40s,b200",
        "tensor_parallel_sizes": (1,),
        "alternatives": False,
        "max_gpus": 12,
        **PLAIN,
    }
    options: dict[str, Any] = {
        "quantizations": (None,), "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,),
    }  # fmt: skip
    slo, traffic = "ttft:p90:600ms tpot:p90:40ms", SHORT | {"request_rate": 30.0}
    for objective in ("gpus", "carbon", "energy"):
        spaced = {**space, **options, "objective": objective, "grid_region": "us"}
        best, _, reached = brute_force("llama-3.1-8b", slo, spaced, traffic)
        answer = plan("llama-3.1-8b", slo=slo, price=PRICES, **spaced, **traffic)
        assert answer.best is not None
        assert answer.best.objective == pytest.approx(best)
        assert answer.best.candidate in reached
    assert answer.proved
    assert answer.best.drawn is not None
    assert answer.best.drawn.joules_per_output_token.value == pytest.approx(best, rel=0.02)


def test_the_answer_is_the_same_twice_and_with_more_workers() -> None:
    first, second = quick(), quick()
    same = ("ranked", "rejected", "counts", "speed_front", "cost_front")
    assert all(getattr(first, name) == getattr(second, name) for name in same)


def test_a_time_limit_ends_the_search_and_is_said() -> None:
    answer = quick(gpus="a100,h100", quantizations=(None, "fp8", "int4"), time_limit_s=1e-6)
    assert not answer.proved
    assert "time limit" in answer.proof
    assert answer.counts.unresolved == answer.reasons.get("unresolved", 0)
    assert quick().proof == "every cheaper candidate was excluded by a bound or simulated"


SPACE: dict[str, Any] = {
    "gpus": "a100,h100", "tensor_parallel_sizes": (1, 2), "kv_cache_dtypes": ("auto",), "serving": "aggregated",
    "speculators": "none", "max_num_batched_tokens": (None, 1024), "objective": "gpus", "request_rate": 60.0,
    "input_len": 300, "output_len": 40, "random_range_ratio": 0.0, "num_prompts": 120,
    "slo": "ttft:p95:400ms tpot:p95:30ms",
}  # fmt: skip


def test_answers_are_verified_on_all_draws() -> None:
    answer = plan("llama-3.1-8b", **SPACE, replications=3)
    assert answer.best is not None
    assert (answer.best.trial.seen, answer.best.trial.requests) == ("all", 360)
    assert answer.proved


def test_a_search_that_runs_out_of_time_verifies_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up with the first answer, which was simulated on one draw of three."""

    def improved(state: PlanSearch, tried: EvaluatedCandidate) -> None:
        assert tried.trial.seen == "sample"
        state.evaluator.until_s = -math.inf

    monkeypatch.setattr(PlanSearch, "_record_improvement", improved)
    answer = plan("llama-3.1-8b", **(SPACE | {"request_rate": 400.0}), replications=3, time_limit_s=60)
    assert not answer.proved
    assert answer.ended == "time limit"
    assert answer.best is not None
    assert (answer.best.trial.seen, answer.best.trial.requests) == ("all", 360)
    assert answer.counts.unresolved > 0
    assert "--time-limit-s 0" in answer.proof
    assert answer.to_dict()["proof"] == answer.proof


def test_ctrl_c_gives_what_was_found_and_says_that_it_is_not_proved() -> None:
    def interrupt(snapshot: Snapshot) -> None:
        if snapshot.best is not None:
            raise KeyboardInterrupt

    answer = plan("llama-3.1-8b", **SPACE, replications=1, progress=interrupt)
    whole = plan("llama-3.1-8b", **SPACE, replications=1)
    assert answer.best is not None
    assert answer.ended == "interrupted"
    assert not answer.proved
    assert answer.proof.startswith("the search was interrupted: ")
    assert whole.proved


def test_time_is_up_inside_of_a_run_too() -> None:
    """Forty million tokens are a second of simulation and more; a fifth of one is given."""
    begun_s = time.monotonic()
    answer = plan(
        "llama-3.1-8b", gpus="a100", tensor_parallel_sizes=(1,), quantizations=(None,), kv_cache_dtypes=("auto",),
        max_num_batched_tokens=(None,), **PLAIN, objective="gpus", request_rate=5.0, input_len=100, output_len=4000,
        random_range_ratio=0.5, num_prompts=20_000, replications=1, slo="e2el:p95:900s", time_limit_s=0.2,
    )  # fmt: skip
    assert answer.ended == "time limit"
    assert not answer.proved
    assert time.monotonic() - begun_s < 0.2 + 3 * max(slowness(), 1.0)


def test_a_short_limit_gives_the_same_answer_as_a_long_one() -> None:
    """The plainest cheap engine is found first, whatever else the space holds."""
    traffic: dict[str, Any] = {"request_rate": 4.0, "input_len": 700, "output_len": 60, "num_prompts": 100}
    labels = set()
    for limit_s in (3.0, 60.0):
        answer = plan(
            "gpt-oss-120b", gpus="h100,h200,b200", slo="ttft:p95:1s tpot:p95:40ms", price=PRICES,
            replications=1, time_limit_s=limit_s, **traffic,
        )  # fmt: skip
        assert answer.best is not None
        labels.add((answer.best.label, answer.best.objective))
    assert len(labels) == 1
