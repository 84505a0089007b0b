"""Users who wait for their answers: who asks when, and as many at a time as the response time law says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.workload import FixedLengths, Workload, user_loop
from capacity.workload.synthetic import ThinkTime


def loop(**more: Any) -> Workload:
    options: dict[str, Any] = {
        "users": 40,
        "num_requests": 4_000,
        "think_time": ThinkTime(10.0),
        "prompt": FixedLengths(100),
        "output": FixedLengths(20),
    }
    return user_loop(**(options | more))


def test_each_request_follows_the_same_users_last_one() -> None:
    workload = loop()
    assert workload.session is not None
    assert workload.after_request is not None
    follows = workload.after_request >= 0
    assert (workload.session[follows] == workload.session[workload.after_request[follows]]).all()
    assert np.count_nonzero(~follows) == len(np.unique(workload.session)) == 40
    assert len(np.unique(workload.after_request[follows])) == follows.sum()  # nobody asks twice at once


def test_without_responses_users_come_at_users_over_think_time() -> None:
    """A Poisson process of 40 / 10 s: 4,000 requests in 1,000 s, with a standard error of sqrt(4000) requests."""
    workload = loop()
    assert workload.arrival_s[-1] == pytest.approx(1_000, rel=4 / np.sqrt(4_000))


def test_a_served_loop_keeps_the_response_time_law() -> None:
    """Users = rate x (think + response), of the part without the beginning and the end."""
    answer = capacity.simulate(
        "llama-3.1-8b",
        gpu="l4",
        max_model_len=8192,
        use_case="chat",
        users=30,
        think_time_s=10.0,
        user_loop="closed",
        num_prompts=1_500,
        max_request_tokens=8192,
    )
    records = answer.run.records
    sent_s, finish_s = records.arrival_ps / 1e12, records.finish_ps / 1e12
    middle = (sent_s > 60) & (sent_s < sent_s.max() * 0.8)
    rate = middle.sum() / np.ptp(sent_s[middle])
    response_s = (finish_s - sent_s)[middle].mean()
    assert response_s > 1.0
    assert rate * (10.0 + response_s) == pytest.approx(30, rel=0.1)  # 1/sqrt(1,200 thoughts), three times


def test_fewer_requests_than_users_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--num-prompts 10 is less than --users 40"):
        loop(num_requests=10)
