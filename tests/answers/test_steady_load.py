"""The load that a run shows in the long run: as it comes, as the loop turns, as far as the engines go."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.engine_setup import make_workload
from capacity.answers.steady_load import long_run_rate, steady_load
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Service, Traffic
from capacity.pool.resolve import resolve

ENGINE = resolve("llama-3.1-8b", Pool(gpu="h100", max_num_seqs=64))
SERVICE = Service()


def shown(**traffic: Any) -> tuple[float, Any]:
    """The rate that a run of the traffic shows, and the run."""
    requests = make_workload(Traffic(input_len=400, output_len=100, **traffic))
    run = run_service([ENGINE], SERVICE, requests)
    verdict = verdict_on(run, [ENGINE], SERVICE, requests)
    return steady_load(run.records, verdict, requests, [(ENGINE, 1)]).requests_per_s, run


@pytest.mark.parametrize("count", [40, 150, 600])
def test_a_load_that_is_kept_up_with_is_served_as_it_comes(count: int) -> None:
    """Whatever the length of the run: less by its draining, and by the draw, it would be otherwise."""
    rate, run = shown(request_rate=5.0, num_prompts=count)
    assert rate == 5.0
    assert run.summary.request_throughput != pytest.approx(5.0, rel=1e-5)


def test_requests_of_a_day_are_a_rate() -> None:
    assert shown(requests_per_day=432_000, num_prompts=150)[0] == pytest.approx(5.0)


def test_an_overloaded_engine_serves_what_it_can() -> None:
    most, _ = shown(concurrency=64, num_prompts=2000)
    rate, _ = shown(request_rate=400.0, num_prompts=2500)
    assert rate == pytest.approx(most, rel=0.12)


def test_too_few_to_show_an_overload_serve_what_the_engine_can() -> None:
    rate, _ = shown(request_rate=5000.0, num_prompts=50)
    most, _ = shown(concurrency=64, num_prompts=2000)
    assert rate == pytest.approx(most, rel=0.3)


def test_a_run_in_which_all_is_still_queued_as_the_last_arrives_serves_what_it_showed() -> None:
    """Its queue grows by every arrival, so that nothing would be left of the rate."""
    slow = resolve("llama-3.1-8b", Pool(gpu="h100", front_end_output_token_s=1e-3))
    requests = make_workload(
        Traffic(input_len=600, output_len=60, random_range_ratio=0.0, request_rate=200.0, num_prompts=600)
    )
    run = run_service([slow], SERVICE, requests)
    verdict = verdict_on(run, [slow], SERVICE, requests)
    rate = steady_load(run.records, verdict, requests, [(slow, 1)]).requests_per_s
    assert rate == pytest.approx(1 / 0.0627, rel=0.05)  # one process: 60 tokens of 1 ms, a prompt of 2.7 ms


@pytest.mark.parametrize("concurrency", [1, 8, 50])
def test_a_closed_loop_turns_as_fast_as_its_steady_part(concurrency: int) -> None:
    """Little's law: that many in flight, each for as long as the run shows."""
    rate, run = shown(concurrency=concurrency, num_prompts=max(200, 12 * concurrency))
    e2e_s = run.summary.e2el_ms.mean / 1e3
    assert rate == pytest.approx(concurrency / e2e_s, rel=0.02)


def test_requests_that_are_turned_away_pay_nothing() -> None:
    requests = make_workload(Traffic(input_len=400, output_len=100, request_rate=200.0, num_prompts=1500))
    service = Service(max_queued_requests=4)
    run = run_service([ENGINE], service, requests)
    done = run.records.completed.mean()
    assert done < 0.9
    rate = long_run_rate(run.records, None, requests)
    assert rate == pytest.approx(200.0 * done)


def test_nothing_served_is_refused() -> None:
    requests = make_workload(Traffic(input_len=400, output_len=100, request_rate=5.0, num_prompts=20))
    service = Service(request_timeout_s=1e-6)
    run = run_service([ENGINE], service, requests)
    assert not run.records.completed.any()
    with pytest.raises(InvalidInput, match="no request completed"):
        steady_load(run.records, None, requests, [(ENGINE, 1)])
