"""The same traffic, drawn several times."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capacity.deployment import Traffic
from capacity.planning.evaluation.resampling import SteadyTraffic, resample_traffic
from capacity.workload import random_requests

TRAFFIC = Traffic(input_len=100, output_len=10, request_rate=5.0, num_prompts=20, seed=7)


def test_each_draw_is_the_traffic_with_the_next_seed() -> None:
    for number, drawn in enumerate(resample_traffic(TRAFFIC, None, 3)):
        (alone,) = resample_traffic(TRAFFIC.model_copy(update={"seed": 7 + number}), None, 1)
        assert np.array_equal(drawn.arrival_s, alone.arrival_s)
    first, second, _ = resample_traffic(TRAFFIC, None, 3)
    assert not np.array_equal(first.arrival_s, second.arrival_s)


def test_requests_of_ones_own_and_traces_are_drawn_once(tmp_path: Path) -> None:
    own = random_requests(num_requests=5, input_len=10, output_len=2, request_rate_per_s=1.0)
    (drawn,) = resample_traffic(TRAFFIC, own, 3)
    assert np.array_equal(drawn.arrival_s, own.arrival_s)
    assert drawn.client_latency_s == TRAFFIC.client_latency_s
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,5\n")
    assert len(resample_traffic(Traffic(trace=str(trace)), None, 3)) == 1


ENDLESS = TRAFFIC.model_copy(update={"num_prompts": None})


def test_draws_are_doubled_until_they_last_ten_end_to_end_latencies() -> None:
    steady, drawn = SteadyTraffic.from_traffic(ENDLESS, None, 8192, 0.9), resample_traffic(ENDLESS, None, 3)
    assert steady is not None
    span_s = drawn[0].span_s
    assert steady.requests_for(drawn, span_s / 5.01) is None
    assert steady.requests_for(drawn, span_s / 4.5) == 4000
    assert steady.requests_for(drawn, 1e9) == 20_000
    for longer in steady.draw(4000, drawn):
        assert len(longer) == 4000
        assert longer.span_s > 10 * span_s / 4.5


def test_traffic_with_a_length_of_its_own_is_drawn_as_it_is() -> None:
    own = random_requests(num_requests=5, input_len=10, output_len=2, request_rate_per_s=1.0)
    assert SteadyTraffic.from_traffic(ENDLESS, own, 8192, 0.9) is None
    assert SteadyTraffic.from_traffic(TRAFFIC, None, 8192, 0.9) is None
    assert (
        SteadyTraffic.from_traffic(ENDLESS.model_copy(update={"arrivals": "diurnal"}), None, 8192, 0.9)
        is None
    )
