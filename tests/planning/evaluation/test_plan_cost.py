"""What a trial shows of a load in the long run: as it comes where that is kept up with, at most what engines can do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capacity.answers.costs import max_requests_per_s
from capacity.deployment import Pool
from capacity.planning.evaluation.evaluate import served_load_of
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.pool.resolve import resolve
from capacity.workload import Workload

ENGINES = [(resolve("llama-3.1-8b", Pool(gpu="h100")), 2)]
ARRIVING = Workload(arrival_s=np.arange(4.0), prompt_tokens=np.full(4, 500), output_tokens=np.full(4, 100))
TRIAL = Evaluation(
    levels=(),
    met=True,
    seen="all",
    requests=4,
    output_tokens_per_s=90.0,
    input_tokens_per_s=450.0,
    requests_per_s=0.9,  # the drain of the run included
    tokens_per_s_per_user=50.0,
    mean_e2e_s=2.0,
    mean_batch_size=2.0,
    kv_utilization_peak=0.1,
    preemptions=0,
    hit_fraction=0.25,
)


def test_what_is_kept_up_with_is_served_as_it_comes() -> None:
    load = served_load_of(ENGINES, TRIAL, ARRIVING, offered_per_s=1.0)
    assert load is not None
    assert load.requests_per_s == 1.0
    assert (load.input_tokens, load.output_tokens) == (pytest.approx(500), pytest.approx(100))
    assert load.hit_fraction == 0.25
    assert load.in_flight is None


def test_a_missed_limit_alone_is_no_overload() -> None:
    load = served_load_of(ENGINES, replace(TRIAL, met=False), ARRIVING, offered_per_s=1.0)
    assert load is not None
    assert load.requests_per_s == 1.0


@pytest.mark.parametrize("met", [False, True])
def test_more_than_the_engines_can_do_is_not_served(met: bool) -> None:
    """Nor where the limits are met, as by a run too short for its queue to matter, or without any limit."""
    load = served_load_of(ENGINES, replace(TRIAL, met=met), ARRIVING, offered_per_s=1e4)
    assert load is not None
    assert load.requests_per_s == pytest.approx(max_requests_per_s(ENGINES, load))
    assert load.requests_per_s < 1e3


def test_a_closed_loop_turns_as_it_was_tried() -> None:
    load = served_load_of(ENGINES, TRIAL, ARRIVING.in_closed_loop(3), offered_per_s=None)
    assert load is not None
    assert (load.requests_per_s, load.in_flight) == (0.9, 3.0)


def test_nothing_served_is_no_load() -> None:
    assert served_load_of(ENGINES, replace(TRIAL, requests_per_s=0.0), ARRIVING, offered_per_s=1.0) is None
