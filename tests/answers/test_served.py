"""A load as its clients see it: the run that `simulate` makes, its steady state, and Little's law."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.answers.phases import phases_of, request_lengths
from capacity.answers.served import Served, serve_load
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.pool.resolve import ResolvedPool, resolve

LENGTHS: dict[str, Any] = {"input_len": 1024, "output_len": 128}
POOL: dict[str, Any] = {"gpu": "h100"}
MODEL = "llama-3.1-8b"


@pytest.fixture(scope="module")
def pool() -> ResolvedPool:
    return resolve(MODEL, Pool(**POOL))


def load_on(pool: ResolvedPool, **load: Any) -> Served:
    traffic = Traffic(**LENGTHS, **load)
    found = phases_of(pool, traffic, request_lengths(pool, traffic)).served
    assert found is not None
    return found


@pytest.mark.parametrize(
    "load", [{"concurrency": 16}, {"concurrency": 16, "random_range_ratio": 0.5}, {"request_rate": 6.0}]
)
def test_it_is_the_run_that_simulate_makes(pool: ResolvedPool, load: dict[str, Any]) -> None:
    """To the last digit: the means over all requests, and those of the steady part."""
    whole, run = load_on(pool, **load).whole, capacity.simulate(MODEL, **POOL, **LENGTHS, **load)
    assert whole is not None
    summary = run.to_dict()
    of_the_whole = whole.to_dict()
    for key in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "request_throughput"):
        assert of_the_whole[key] == pytest.approx(summary[key], rel=1e-14)
    estimate = capacity.estimate(MODEL, **POOL, **LENGTHS, **load)
    steady = summary["evidence"]["steady"]
    assert estimate.ttft_s is not None
    assert estimate.tpot_s is not None
    assert estimate.ttft_s.value * 1e3 == steady["mean_ttft_ms"]
    assert estimate.tpot_s.value * 1e3 == steady["mean_tpot_ms"]
    assert (estimate.verdict, estimate.verdict_reason) == (summary["verdict"], summary["verdict_reason"])


def test_estimate_equal_lengths_are_a_choice_and_noted() -> None:
    """The README's load: lengths vary as measured by default; equal ones synchronise the closed loop."""
    asked: dict[str, Any] = {"gpu": "h100", "tensor_parallel_size": 4, "input_len": 1024, "output_len": 256}
    default = capacity.estimate("llama-3.1-70b", **asked, concurrency=32)
    equal = capacity.estimate("llama-3.1-70b", **asked, concurrency=32, random_range_ratio=0.0)
    assert default.ttft_s is not None
    assert equal.ttft_s is not None
    assert not default.in_step
    assert any("Azure" in note and "--random-range-ratio 0" in note for note in default.warnings)
    assert default.ttft_s.high is not None
    assert default.ttft_s.high < 0.5
    assert equal.in_step
    assert equal.ttft_s.value > 3 * default.ttft_s.value
    for answer in (
        equal,
        capacity.simulate("llama-3.1-70b", **asked, concurrency=32, random_range_ratio=0.0),
    ):
        assert any("synchronises" in note for note in answer.warnings)
        assert not any("Azure" in note for note in answer.warnings)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_equal_length_note_depends_on_the_lengths(pool: ResolvedPool, ratio: float) -> None:
    traffic = Traffic(**LENGTHS, concurrency=4, random_range_ratio=ratio)
    notes = phases_of(pool, traffic, request_lengths(pool, traffic)).warnings
    assert any("synchronises" in note for note in notes) is (ratio == 0)


def test_an_overloaded_rate_has_no_latency() -> None:
    answer = capacity.estimate(MODEL, **POOL, **LENGTHS, request_rate=500.0)
    assert answer.verdict == "overloaded"
    assert (
        answer.ttft_s
        is answer.tpot_s
        is answer.e2e_s
        is answer.requests_in_flight
        is answer.whole_run
        is None
    )
    assert answer.requests_per_s.value < 500
    most = capacity.estimate(MODEL, **POOL, **LENGTHS, concurrency=2000).requests_per_s.value
    assert answer.requests_per_s.value == pytest.approx(most, rel=0.1)
    with pytest.raises(InvalidInput, match="no steady state"):
        capacity.explain(MODEL, **POOL, **LENGTHS, request_rate=500.0)


@pytest.mark.ci
def test_a_rate_whose_requests_stay_long_is_run_for_long(pool: ResolvedPool) -> None:
    """1,000 arrivals are over in a few of a request's stays: more of them are sent, until it can be told."""
    for rate, output_len, steady in ((3.0, 3000, True), (12.0, 1500, False)):
        traffic = Traffic(input_len=64, output_len=output_len, request_rate=rate, random_range_ratio=0.0)
        load = phases_of(pool, traffic, request_lengths(pool, traffic)).served
        assert load is not None
        assert (load.steady is not None) is steady
        assert load.num_prompts > 1000


def test_requests_beyond_the_places_only_wait() -> None:
    """What is simulated with fewer waiting, and added by Little's law, is what a run of them all shows."""
    narrow = resolve(MODEL, Pool(**POOL, max_num_seqs=16))
    traffic = Traffic(**LENGTHS, concurrency=200, random_range_ratio=0.3)
    short, whole = serve_load(narrow, traffic, 16), serve_load(narrow, traffic, 200)
    assert short.whole is None
    assert whole.whole is not None
    assert short.steady is not None
    assert whole.steady is not None
    assert short.steady.in_flight == 200
    assert short.steady.tpot_s == pytest.approx(whole.steady.tpot_s, rel=0.02)
    assert short.steady.ttft_s == pytest.approx(whole.steady.ttft_s, rel=0.03)
    assert short.steady.requests_per_s == pytest.approx(whole.steady.requests_per_s, rel=0.02)


@pytest.mark.parametrize(
    "load",
    [
        {"request_rate": 20, "use_case": "chat", "num_prompts": 300},
        {"request_rate": 4, "num_prompts": 20},
        {"concurrency": 30, "num_prompts": 40},
        {"users": 40, "user_loop": "closed", "use_case": "chat", "num_prompts": 40},
    ],
)
def test_run_that_is_too_short_names_a_sufficient_number_of_requests(load: dict[str, Any]) -> None:
    lengths: dict[str, Any] = {} if "use_case" in load else LENGTHS
    short = capacity.simulate(MODEL, **POOL, **lengths, **load).verdict
    assert short is not None
    assert short.verdict == "too short to tell"
    named = re.search(r": use --num-prompts (\d+)$", short.reason)
    assert named is not None
    longer = capacity.simulate(MODEL, **POOL, **lengths, **{**load, "num_prompts": int(named[1])}).verdict
    assert longer is not None
    assert longer.verdict == "stable"
    if "users" not in load:
        assert capacity.estimate(MODEL, **POOL, **lengths, **load).verdict_reason == short.reason


def test_trace_that_is_too_short_asks_for_a_longer_one(tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    rows = "".join(f"{second},100,20\n" for second in range(20))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    for limit, ending in (None, "a longer trace"), (10, "more of the trace, or a longer one"):
        verdict = capacity.simulate(MODEL, **POOL, trace=str(trace), num_prompts=limit).verdict
        assert verdict is not None
        assert verdict.reason.endswith(f": replay {ending}")
