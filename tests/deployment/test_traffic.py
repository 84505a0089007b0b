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
