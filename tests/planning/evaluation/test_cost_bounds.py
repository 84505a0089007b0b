"""Bounds against simulation."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.deployment import Pool
from capacity.planning.evaluation.cost_bounds import Load, bound_engine
from capacity.planning.evaluation.evaluate import EngineGroup, evaluate_engines
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.evaluation.step_error import ScaledSteps, factors_at
from capacity.planning.search.plan_request import parsed_slos
from capacity.pool.resolve import resolve
from capacity.workload import random_requests


def test_bounds_exclude_nothing_that_could_win() -> None:
    """Random engines, loads and limits: what meets the SLO in simulation is never below its bound."""

    @settings(max_examples=examples(60))
    @given(
        gpu=st.sampled_from(("a100", "h100", "l40s", "b200")),
        tp=st.sampled_from((1, 2, 4)),
        cache=st.sampled_from(("auto", "fp8")),
        budget=st.sampled_from((None, 512, 2048)),
        seqs=st.sampled_from((None, 8, 64)),
        rate=st.floats(5, 300),
        lengths=st.tuples(st.integers(1, 3000), st.integers(1, 200)),
        slo=st.sampled_from(
            ("ttft:p90:300ms tpot:p80:20ms", "ttft:500 tpot:30", "e2el:p50:2s", "ttft:p99:1s")
        ),
        replicas=st.integers(1, 6),
        confidence=st.sampled_from((None, 0.9)),
    )
    def check(gpu, tp, cache, budget, seqs, rate, lengths, slo, replicas, confidence) -> None:  # type: ignore[no-untyped-def]
        pool = Pool(
            gpu=gpu,
            tensor_parallel_size=tp,
            kv_cache_dtype=cache if gpu != "a100" else "auto",
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            max_model_len=8192,
        )
        resolved = resolve("llama-3.1-8b", pool)
        workload = random_requests(
            num_requests=60,
            input_len=lengths[0],
            output_len=lengths[1],
            request_rate_per_s=rate,
            range_ratio=0.5,
        )
        goal = Goal(slos=parsed_slos(slo), goodput_target=0.9)
        factors = factors_at(resolved, confidence)
        found = bound_engine(
            resolved, ScaledSteps(resolved.step_model, factors).step_seconds, Load.average([workload]), goal
        )
        if found.reason is None and replicas >= found.min_replicas:
            return  # nothing is excluded
        engines = EngineGroup(resolved=resolved, replicas=replicas, factors=factors)
        assert not evaluate_engines([engines], [workload], goal).met

    check()
