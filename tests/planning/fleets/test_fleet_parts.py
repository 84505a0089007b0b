"""The parts of a traffic: thresholds, who is between two of them, and how what may be missed is shared out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from quick_fleets import TRAFFIC

from capacity.answers.engine_setup import make_workload
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet_pools import Span, goals_of_pools, part_of, spans_of, usual_thresholds
from capacity.workload import Workload, parse_slos


def test_thresholds_are_the_traffic_s_own() -> None:
    lengths = np.arange(1, 1001)
    at = usual_thresholds(lengths)
    assert at == (256, 512, 768, 960), "quantiles, rounded up; 1,000 and beyond leave nobody above"
    assert usual_thresholds(np.full(10, 100)) == ()


@pytest.mark.parametrize("long_share", [0.004, 0.05, 0.3, 0.7])
def test_what_pools_may_miss_adds_up_to_what_the_fleet_may(long_share: float) -> None:
    """Each way of sharing it out, weighted by requests; some is left where a pool may miss nearly all."""
    goal = Goal(slos=parse_slos("ttft:p99:1s e2el:9s itl:p99:1s"), goodput_target=0.95)
    ways = goals_of_pools(goal, long_share)
    assert len(ways) == 1 + (long_share < 0.5) + (long_share < 0.9)
    for short, long in ways:
        for slo in range(2):
            may = [each.may_miss(each.slos[slo]) for each in (short, long)]
            together = may[0] * (1 - long_share) + may[1] * long_share
            allowed = goal.may_miss(goal.slos[slo])
            assert together <= allowed + 1e-6
            assert together == pytest.approx(allowed, abs=2e-6) or may[1] == pytest.approx(0.5)
        assert short.slos[2] == long.slos[2] == goal.slos[2], "gaps are kept at few percentiles"


def test_a_side_is_what_is_asked_for_too() -> None:
    workload = make_workload(Traffic(**TRAFFIC))
    short, long = (part_of([workload], span, "request") for span in (Span(up_to=1000), Span(above=1000)))
    assert (short[0].requested_tokens <= 1000).all()
    assert (long[0].requested_tokens > 1000).all()
    assert len(short[0]) + len(long[0]) == 150


def of_lengths(*prompt_tokens: int) -> Workload:
    count = len(prompt_tokens)
    return Workload(
        arrival_s=np.arange(float(count)),
        prompt_tokens=np.array(prompt_tokens),
        output_tokens=np.full(count, 7),
    )


def test_spans_part_the_requests_and_each_limit_belongs_to_the_shorter() -> None:
    workload = of_lengths(10, 100, 101, 200, 201, 900)
    spans = [Span(None, 100), Span(100, 200), Span(200, None)]
    parts = [part_of([workload], span, "prompt")[0].prompt_tokens.tolist() for span in spans]
    assert parts == [[10, 100], [101, 200], [201, 900]]
    assert part_of([workload], Span(), "prompt") == [workload]
    assert part_of([workload], Span(300, 400), "prompt") == []


def test_a_part_comes_as_often_in_the_long_run_as_it_has_requests() -> None:
    workload = replace(of_lengths(10, 20, 300, 400), asked_per_s=8.0)
    (part,) = part_of([workload], Span(above=20), "prompt")
    assert part.asked_per_s == 4.0


def test_a_threshold_that_nobody_is_beyond_leaves_one_span() -> None:
    few, many = of_lengths(10, 20), of_lengths(10, 500)
    assert spans_of([many], 100, "prompt") == (Span(None, 100), Span(100, None))
    assert spans_of([few], 100, "prompt") == spans_of([few], 5, "prompt") == (Span(),)
    with pytest.raises(InvalidInput, match="100 tokens leaves a pool without requests in some samples"):
        spans_of([few, many], 100, "prompt")
    assert part_of([few, many], Span(above=100), "prompt") == []
