"""Replications and common random numbers: streams of their own, alike for all configurations, and their worth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capacity
from capacity.base.errors import InvalidInput
from capacity.cli.main import app
from capacity.deployment import DeploymentFile, Pool, Service, Traffic
from capacity.planning.variations.diff import diff
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.metrics import LatencySummary
from capacity.simulator.replications import METRIC_NAMES, pair_runs, replication_seeds, summarize_runs
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import LognormalLengths, SteadyArrivals, synthetic

LLAMA = "llama-3.1-8b"
LOAD = {"gpu": "h100", "input_len": 300, "output_len": 20, "num_prompts": 150, "request_rate": 20}


@given(st.integers(0, 2**63 - 1), st.integers(1, 40), st.integers(1, 40))
def test_seeds_are_distinct_and_do_not_depend_on_how_many(seed: int, few: int, more: int) -> None:
    seeds = replication_seeds(seed, few + more)
    assert seeds[0] == seed, "the first run is the plain one"
    assert len(set(seeds)) == few + more
    assert seeds[:few] == replication_seeds(seed, few)
    assert all(0 <= each < 2**63 for each in seeds)


def test_streams_are_independent() -> None:
    """Arrival gaps of runs with neighbouring seeds: no correlation beyond 4 standard errors."""
    count = 4000
    gaps = [
        np.diff(
            synthetic(
                num_requests=count,
                arrivals=SteadyArrivals(1.0),
                prompt=LognormalLengths(10, 1.0),
                output=LognormalLengths(10, 1.0),
                seed=seed,
            ).arrival_s
        )
        for seed in (*replication_seeds(0, 3), *replication_seeds(1, 3))
    ]
    correlations = np.corrcoef(gaps)[np.triu_indices(len(gaps), 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(count)


def run(seed: int, budget: int) -> LatencySummary:
    workload = synthetic(
        num_requests=250,
        arrivals=SteadyArrivals(8.0),
        prompt=LognormalLengths(300, 1.0, highest_tokens=3000),
        output=LognormalLengths(30, 1.0, highest_tokens=300),
        seed=seed,
    )
    limits = SchedulerLimits(max_num_batched_tokens=budget, max_num_seqs=64)
    steps = AffineStepTimes(0.01, 5e-5)
    return simulate(workload, EngineSetup(step_times=steps, num_blocks=4000, limits=limits)).summary


def test_common_random_numbers_reduce_the_variance() -> None:
    """Two token budgets. With the same draws the difference of mean TTFT and of mean E2E takes a tenth of the runs that
    draws of their own would; and it is measured so: the variance of differences between unlike seeds is that large."""
    seeds = replication_seeds(7, 12)
    first, second = [run(seed, 2048) for seed in seeds], [run(seed, 512) for seed in seeds]
    found = {metric.metric: metric for metric in pair_runs(first, second)}
    for metric in ("mean_ttft_ms", "mean_e2el_ms"):
        paired = found[metric]
        assert paired.variance_ratio is not None
        assert paired.variance_ratio > 10
        assert paired.difference.high is not None
        assert paired.independent_half is not None
        half = paired.difference.high - paired.difference.value
        assert half < 0.5 * paired.independent_half
        unlike = [
            b.to_dict()[metric] - a.to_dict()[metric]
            for i, a in enumerate(first)
            for j, b in enumerate(second)
            if i != j
        ]
        alike = [b.to_dict()[metric] - a.to_dict()[metric] for a, b in zip(first, second, strict=True)]
        assert np.var(unlike) > 5 * np.var(alike, ddof=1)


def test_means_over_runs_are_students() -> None:
    seeds = replication_seeds(0, 4)
    summaries = [run(seed, 1024) for seed in seeds]
    found = summarize_runs(seeds, summaries)
    values = [summary.ttft_ms.percentiles[95] for summary in summaries if summary.ttft_ms is not None]
    p95 = found.metrics["p95_ttft_ms"]
    assert p95 is not None
    assert p95.value == pytest.approx(np.mean(values))
    assert p95.high == pytest.approx(np.mean(values) + 3.182446 * np.std(values, ddof=1) / 2, rel=1e-4)
    assert set(found.metrics) == set(METRIC_NAMES)
    assert found.metrics["request_goodput"] is None, "no limits were given"


def test_simulate_answers_for_several_runs() -> None:
    plain = capacity.simulate(LLAMA, **LOAD).to_dict()
    several = capacity.simulate(LLAMA, **LOAD, replications=3).to_dict()
    assert several["replications"]["seeds"][0] == 0
    assert len(several["replications"]["seeds"]) == 3
    for name in ("mean_ttft_ms", "p99_itl_ms", "request_throughput"):
        assert several[name] == plain[name], "the answer is the first run's"
        mean = several["replications"]["metrics"][name]
        assert mean["low"] < mean["value"] < mean["high"]
    assert (
        several["replications"] == capacity.simulate(LLAMA, **LOAD, replications=3).to_dict()["replications"]
    )
    other = capacity.simulate(LLAMA, **LOAD, replications=3, max_num_seqs=4).to_dict()["replications"]
    assert other["seeds"] == several["replications"]["seeds"], "the same for another configuration"
    with pytest.raises(InvalidInput, match="from 1 to 1000, not 0"):
        capacity.simulate(LLAMA, **LOAD, replications=0)


def test_a_trace_has_nothing_to_draw(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{0.1 * i},200,20\n" for i in range(20))
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    with pytest.raises(InvalidInput, match="are identical"):
        capacity.simulate(LLAMA, gpu="h100", trace=str(trace), replications=2)
    losses = {"mean_time_between_failures_s": 1.0, "recovery_s": 0.1, "replicas": 2}
    found = capacity.simulate(LLAMA, gpu="h100", trace=str(trace), replications=2, **losses)
    assert found.replications is not None


def deployment(**pool: Any) -> DeploymentFile:
    traffic = Traffic(input_len=300, output_len=20, num_prompts=150, request_rate=20)
    return DeploymentFile(model=LLAMA, pools=(Pool(gpu="h100", **pool),), traffic=traffic)


def test_diff_compares_pair_by_pair() -> None:
    first, second = deployment(), deployment(max_num_seqs=3)
    found = diff(first, second, replications=4, seed=5)
    assert [m.metric for m in found.replicated] == [m for m in METRIC_NAMES if m != "request_goodput"]
    ttft = next(m for m in found.replicated if m.metric == "mean_ttft_ms")
    assert ttft.significant
    assert ttft.difference.value > 0
    assert ttft.second - ttft.first == pytest.approx(ttft.difference.value)
    described = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert described["replicated"][0]["metric"] == "request_throughput"
    assert diff(first, second).replicated == ()
    same = diff(first, first, replications=2)
    assert all(m.difference.value == 0 and m.variance_ratio is None for m in same.replicated)


def test_diff_serves_what_stands_before_the_engines() -> None:
    """A file's service is part of the deployment: prefill apart from decode is another one."""
    plain = deployment(replicas=2)
    split = plain.model_copy(update={"service": Service(prefill_replicas=1)})
    found = diff(plain, split)
    assert ("prefill_replicas", "the default", "1") in found.settings
    assert any(difference.significant for difference in found.differences)


def test_the_command_line_draws_several_times(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    flags = ["--gpu", "h100", "--isl", "300", "--osl", "20", "--num-prompts", "120", "--rate", "20"]
    files = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    for file, more in zip(files, ([], ["--max-num-seqs", "4"]), strict=True):
        given = ["simulate", LLAMA, *flags, *more, "--replications", "2", "--write-deployment", file]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.output
        assert "Mean of 2 runs" in result.output
    result = CliRunner().invoke(app, ["diff", *files, "--replications", "3", "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert "over resampled traffic" in result.output
