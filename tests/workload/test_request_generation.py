"""The words of `Traffic` turned into requests: each word does what the generator behind it does, or is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capacity.answers.engine_setup import make_workload
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic, build
from capacity.deployment.client_latency import USUAL_S
from capacity.simulator import EngineSetup, simulate
from capacity.step import AffineStepTimes
from capacity.workload import Workload, random_requests, read_trace, write_csv
from capacity.workload.request_generation import workload_of


def made(**words: Any) -> Workload:
    return make_workload(build(Traffic, words))


LENGTHS = {"input_len": 200, "output_len": 50, "num_prompts": 4000, "request_rate": 10}
BASE = {**LENGTHS, "random_range_ratio": 0.0}


def test_without_new_words_requests_are_those_of_vllm_bench() -> None:
    plain = made(**LENGTHS, seed=3, burstiness=0.5, random_range_ratio=0.2)
    asked = random_requests(
        num_requests=4000,
        input_len=200,
        output_len=50,
        request_rate_per_s=10,
        burstiness=0.5,
        range_ratio=0.2,
        seed=3,
    )
    assert plain.fingerprint() == replace(asked, client_latency_s=USUAL_S).fingerprint()


@pytest.mark.parametrize("distribution", ["lognormal", "gamma"])
def test_lengths_have_the_mean_and_spread_asked_for(distribution: str) -> None:
    workload = made(**LENGTHS, length_distribution=distribution, input_len_cv=0.5, output_len_cv=0.0)
    assert workload.prompt_tokens.mean() == pytest.approx(200, rel=0.05)
    assert workload.prompt_tokens.std() / workload.prompt_tokens.mean() == pytest.approx(0.5, rel=0.1)
    assert set(workload.output_tokens.tolist()) == {50}


def test_lengths_may_go_together() -> None:
    words = {**BASE, "length_distribution": "lognormal", "length_correlation": 0.8}
    workload = made(**words)
    ranks = [np.argsort(np.argsort(column)) for column in (workload.prompt_tokens, workload.output_tokens)]
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(0.8, abs=0.05)


def test_shared_prefixes_come_on_top() -> None:
    workload = made(**BASE, random_prefix_len=96, num_prefixes=4, prefix_zipf=1.0)
    assert set(workload.prompt_tokens.tolist()) == {296}
    assert workload.content is not None
    first = workload.content.segment_ids[workload.content.offsets[:-1]]
    counts = np.bincount(first)
    assert len(counts) == 4
    assert counts[0] > 1.5 * counts[1]


def test_rates_go_as_asked() -> None:
    bursts = made(**BASE, arrivals="on-off", on_s=10, off_s=30, off_request_rate=0)
    assert (bursts.arrival_s % 40 <= 10).all()
    ramp = made(**BASE, arrivals="ramp", end_request_rate=30, ramp_s=100)
    assert ((ramp.arrival_s > 90) & (ramp.arrival_s < 100)).sum() == pytest.approx(290, rel=0.2)
    day = made(**BASE, arrivals="diurnal", day_length_s=200, day_peak_to_mean=2)
    night, noon = ((day.arrival_s % 200 < 20).sum(), (abs(day.arrival_s % 200 - 100) < 10).sum())
    assert noon > 10 * night


DAY = {"input_len": 200, "output_len": 50, "request_rate": 10, "arrivals": "diurnal", "day_peak_to_mean": 2}
RAMP = {"input_len": 200, "output_len": 50, "request_rate": 1, "arrivals": "ramp", "end_request_rate": 40}


@pytest.mark.parametrize("words", [{}, {"num_prompts": 1000}, {"turns": 4}, {"clients": 5}])
def test_diurnal_traffic_shorter_than_a_day_is_drawn_at_the_peak(words: dict[str, Any]) -> None:
    day = made(**DAY, **words)
    assert day.request_rate_per_s == pytest.approx(20, rel=0.1)
    assert day.offered_per_s == 10
    assert day.part is not None
    assert day.part.endswith("of 24 h (20 requests/s; mean 10/s)")
    assert day.part in day.name


def test_diurnal_traffic_of_few_requests_covers_the_whole_day() -> None:
    day = made(**{**DAY, "request_rate": 0.05})
    assert len(day) == 0.05 * 86_400
    assert day.span_s > 60_000
    assert day.part is None


def test_diurnal_traffic_of_a_whole_day_begins_at_night() -> None:
    day = made(**{**DAY, "request_rate": 0.05}, num_prompts=4320)
    assert (day.arrival_s < 21_600).sum() < 0.3 * (abs(day.arrival_s - 43_200) < 10_800).sum()


def test_ramp_longer_than_the_requests_is_drawn_at_its_highest_rate() -> None:
    assert made(**RAMP, ramp_s=7200).request_rate_per_s == pytest.approx(40, rel=0.1)
    falling = made(**{**RAMP, "request_rate": 60}, ramp_s=7200)
    assert falling.request_rate_per_s == pytest.approx(60, rel=0.1)


def test_ramp_of_few_requests_is_drawn_whole() -> None:
    ramp = made(**RAMP, ramp_s=60)
    assert len(ramp) == 1230
    assert ramp.part is None


def test_sessions_grow_and_keep_the_rate_of_requests() -> None:
    talks = made(**BASE, turns=4, think_time_s=2.0, random_prefix_len=32)
    assert len(talks) == 4000
    assert talks.session is not None
    assert talks.after_request is not None
    assert (talks.after_request < 0).sum() == 1000
    assert talks.prompt_tokens.max() == 32 + 4 * 200 + 3 * 50
    opened = talks.arrival_s[talks.after_request < 0]
    assert len(opened) / opened[-1] == pytest.approx(2.5, rel=0.01)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    equal = made(
        input_len=100,
        output_len=10,
        num_prompts=100,
        request_rate=1,
        burstiness=math.inf,
        random_range_ratio=0.0,
    )
    write_csv(equal, path)
    return str(path)


def test_a_trace_is_cut_scaled_and_clipped(trace: str) -> None:
    assert len(made(trace=trace, trace_from_s=20.5, trace_until_s=40.5)) == 20
    assert made(trace=trace, trace_time_scale=2).span_s == pytest.approx(198)
    assert made(trace=trace, trace_rate_factor=2).span_s == pytest.approx(49.5)
    assert made(trace=trace, max_request_tokens=105, long_requests="clip").output_tokens.max() == 5
    with pytest.raises(InvalidInput, match="longer than"):
        made(trace=trace, max_request_tokens=105)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({}, "no traffic"),
        ({**BASE, "arrivals": "on-off", "on_s": 1}, "--off-s"),
        ({**BASE, "arrivals": "ramp", "ramp_s": 1}, "--end-request-rate"),
        ({"input_len": 1, "output_len": 1, "arrivals": "diurnal"}, "--request-rate"),
        ({**BASE, "turns": 2, "concurrency": 3}, "exclude"),
        ({**BASE, "trace_rate_factor": 2.0}, "--trace"),
        ({"trace": "x.csv", "turns": 2}, "--turns"),
    ],
)
def test_words_that_do_not_go_together(words: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        made(**words)


def test_what_is_simulated_can_be_replayed(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from capacity.cli.main import app

    path = tmp_path / "replay.jsonl"
    given = ["simulate", "llama-3.1-8b", "--gpu", "h100", "--input-len", "200", "--output-len", "20"]
    more = ["--num-prompts", "50", "--rate", "5", "--random-prefix-len", "64", "--format", "json"]
    result = CliRunner().invoke(app, [*given, *more, "--save-trace", str(path)])
    assert result.exit_code == 0, result.output
    notes = json.loads(result.output)["warnings"]
    assert any("--dataset-name timed_trace" in note and str(path) in note for note in notes)
    again = read_trace(path, block_tokens=16, seconds_per_unit=1.0)
    asked = made(input_len=200, output_len=20, num_prompts=50, request_rate=5, random_prefix_len=64)
    np.testing.assert_array_equal(again.arrival_s, asked.arrival_s)
    np.testing.assert_array_equal(again.prompt_tokens, asked.prompt_tokens)


def test_turns_of_a_trace_wait_for_the_turn_before(tmp_path: Path) -> None:
    """Bailian's chats in a closed loop: a slower server sends a later turn later, by what the turn before took."""
    rows = [(0.0, 1, -1), (1.0, 5, -1), (4.0, 2, 1), (9.0, 3, 2)]
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "chat_id": chat,
                    "parent_chat_id": parent,
                    "timestamp": at,
                    "input_length": 16,
                    "output_length": 3,
                    "type": "text",
                    "turn": 1,
                    "hash_ids": [chat],
                }
            )
            + "\n"
            for at, chat, parent in rows
        )
    )
    assert not made(trace=str(path)).is_closed_loop
    closed = made(trace=str(path), trace_sessions="closed")
    assert closed.after_request is not None
    assert closed.think_s is not None
    assert closed.after_request.tolist() == [-1, -1, 0, 2]
    assert closed.think_s.tolist() == [0.0, 0.0, 4.0, 5.0]
    records = simulate(closed, EngineSetup(step_times=AffineStepTimes(0.5, 0.0), num_blocks=100)).records
    assert records.arrival_ps[2] == records.finish_ps[0] + 4 * 10**12
    assert records.arrival_ps[3] == records.finish_ps[2] + 5 * 10**12
    with pytest.raises(InvalidInput, match="no sessions"):
        random_requests(num_requests=3, input_len=5, output_len=5).in_session_loop()


def test_a_coarse_clock_is_spread_on_request(tmp_path: Path) -> None:
    """120 requests on twelve ticks of a second: at ten instants a tick instead of one; nothing leaves its tick."""
    rows = [
        {"timestamp": 1000 * (i // 10), "input_length": 600, "output_length": 5, "hash_ids": [i]}
        for i in range(120)
    ]
    path = tmp_path / "coarse.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    plain, spread = (
        make_workload(Traffic(trace=str(path), trace_spread_ticks=chosen)) for chosen in (False, True)
    )
    assert len(set(plain.arrival_s.tolist())) == 12
    assert len(set(spread.arrival_s.tolist())) == 120
    assert (spread.arrival_s // 1 == plain.arrival_s).all()
    assert any("--trace-spread-ticks" in notice for notice in plain.notices)
    with pytest.raises(InvalidInput, match="--trace-spread-ticks applies only to a trace"):
        make_workload(Traffic(input_len=10, output_len=10, request_rate=1.0, trace_spread_ticks=True))


def test_clients_may_ask_for_more_than_comes() -> None:
    assert made(**BASE).max_tokens is None
    fixed = made(**BASE, max_tokens=4096)
    assert fixed.max_tokens is not None
    assert set(fixed.max_tokens.tolist()) == {4096}
    spread = made(**BASE, max_tokens=4096, max_tokens_cv=0.5, length_distribution="gamma", seed=4)
    assert spread.max_tokens is not None
    assert spread.max_tokens.mean() == pytest.approx(4096, rel=0.05)
    assert spread.max_tokens.std() / spread.max_tokens.mean() == pytest.approx(0.5, rel=0.1)
    unasked = made(
        **BASE, length_distribution="gamma", seed=4
    )  # what is asked for draws from a stream of its own
    assert (spread.arrival_s == unasked.arrival_s).all()
    assert (spread.output_tokens == unasked.output_tokens).all()
    least = made(**LENGTHS, length_distribution="lognormal", max_tokens=1)
    assert least.max_tokens is not None
    assert (least.max_tokens == least.output_tokens).all()


def test_a_trace_may_say_what_clients_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.csv")
    write_csv(made(**BASE, max_tokens=4096), path)
    with pytest.raises(InvalidInput, match="remove --max-tokens"):
        made(trace=path, max_tokens=100)
    write_csv(made(**BASE), path)
    asked = made(trace=path, max_tokens=100, num_prompts=3).max_tokens
    assert asked is not None
    assert asked.tolist() == [100] * 3


def test_requests_may_be_for_adapters() -> None:
    assert made(**BASE).adapter is None
    equal = made(**BASE, num_adapters=4).adapter
    assert equal is not None
    assert set(equal.tolist()) == {1, 2, 3, 4}
    skewed = made(**BASE, num_adapters=4, adapter_skew=3.0)
    assert skewed.adapter is not None
    counts = np.bincount(skewed.adapter, minlength=5)
    assert counts[1] > counts[2] > counts[3] + counts[4]
    # adapters draw from a stream of their own
    assert (skewed.prompt_tokens == made(**BASE).prompt_tokens).all()


def test_turns_of_a_conversation_have_one_adapter() -> None:
    workload = made(**BASE, turns=4, num_adapters=50)
    assert workload.adapter is not None
    assert workload.session is not None
    by_session = {(s, a) for s, a in zip(workload.session.tolist(), workload.adapter.tolist(), strict=True)}
    assert len(by_session) == len(set(workload.session.tolist())) > 1


def test_a_trace_may_say_the_adapters(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.csv")
    workload = made(**BASE, num_adapters=4)
    write_csv(workload, path)
    read = made(trace=path)
    assert read.fingerprint() == workload.fingerprint() != made(**BASE).fingerprint()
    with pytest.raises(InvalidInput, match="remove --num-adapters"):
        made(trace=path, num_adapters=2)


def test_default_lengths_stay_within_the_longest_request() -> None:
    """Of lengths whose variation nobody gave; the mean is the one asked for."""
    traffic = Traffic(input_len=1000, output_len=500, request_rate=1.0, num_prompts=20_000)
    free, bounded = workload_of(traffic), workload_of(traffic, 2000)
    assert (free.prompt_tokens + free.output_tokens).max() > 4000
    assert (bounded.prompt_tokens + bounded.output_tokens).max() <= 2000
    for tokens, mean in ((bounded.prompt_tokens, 1000), (bounded.output_tokens, 500)):
        assert tokens.mean() == pytest.approx(mean, rel=0.002)
        assert tokens.std() > 0.2 * mean
    chosen = Traffic(**traffic.model_dump(exclude_unset=True), length_distribution="lognormal")
    assert (workload_of(chosen, 2000).prompt_tokens).max() > 2000


@pytest.mark.parametrize(
    "lengths", [{"random_range_ratio": 0.9}, {"length_distribution": "gamma", "output_len_cv": 2.0}]
)
def test_long_run_lengths_are_those_of_the_distributions_not_of_the_few_drawn(
    lengths: dict[str, Any],
) -> None:
    asked = {"input_len": 1000, "output_len": 200, "request_rate": 4.0, "num_prompts": 50, **lengths}
    workload = made(**asked)
    assert abs(float(workload.output_tokens.mean()) - 200) > 2
    assert workload.long_run_tokens == pytest.approx((1000, 200), rel=0.003)
    doubled = replace(workload, output_tokens=workload.output_tokens * 2)
    assert doubled.long_run_tokens == pytest.approx((1000, 400), rel=0.003)
    assert made(**asked, random_prefix_len=100).long_run_tokens == pytest.approx((1100, 200), rel=0.003)
    pictured = made(**asked, images_per_prompt=2, image_tokens=30)
    assert pictured.long_run_tokens == pytest.approx((1060, 200), rel=0.003)


def test_long_run_lengths_are_the_drawn_ones_where_no_distribution_says_them() -> None:
    asked = {
        "input_len": 1000,
        "output_len": 200,
        "request_rate": 4.0,
        "num_prompts": 50,
        "random_range_ratio": 0.9,
    }
    cut = {"max_request_tokens": 1300}
    workload = made(**asked)
    closed = {name: value for name, value in asked.items() if name != "request_rate"}
    for other in (
        workload.head(20),
        made(**asked, **cut),
        made(**asked, **cut, long_requests="clip"),
        made(**asked, turns=3),
        made(**closed, concurrency=4),
    ):
        drawn = float(other.prompt_tokens.mean()), float(other.output_tokens.mean())
        assert other.long_run_tokens == drawn
