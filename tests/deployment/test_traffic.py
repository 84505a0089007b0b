"""Traffic as a user writes it: what is refused as it is written, and a summary's fields for formulas."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import ESTIMATE_TRAFFIC, Traffic, build


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_len", 0),
        ("max_tokens", 0),
        ("concurrency", -1),
        ("day_peak_to_mean", 2.5),
        ("seed", -1),
        ("long_requests", "split"),
    ],
)
def test_what_cannot_be_traffic_is_refused_by_its_flag(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match="--" + field.replace("_", "-")):
        build(Traffic, {field: value}, flags=True)


def test_formulas_answer_to_fields_that_there_are() -> None:
    assert set(ESTIMATE_TRAFFIC) <= set(Traffic.model_fields)
    assert Traffic() == build(Traffic, {})


@pytest.mark.parametrize("per_day", [86_400, "86400", 86_400.0])
def test_requests_of_a_day_are_a_rate(per_day: object) -> None:
    traffic = build(Traffic, {"requests_per_day": per_day})
    assert (traffic.request_rate, traffic.requests_per_day) == (1.0, None)


@pytest.mark.parametrize("per_day", [0, -5, "many", float("inf"), float("nan")])
def test_no_number_of_requests_of_a_day_is_refused(per_day: object) -> None:
    with pytest.raises(InvalidInput, match="--requests-per-day"):
        build(Traffic, {"requests_per_day": per_day}, flags=True)


def test_a_rate_is_given_once() -> None:
    with pytest.raises(InvalidInput, match=r"--requests-per-day is 100.*use one of them"):
        build(Traffic, {"requests_per_day": 100, "request_rate": 2}, flags=True)
