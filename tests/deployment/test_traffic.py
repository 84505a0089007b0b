"""Traffic as it is written: what is left out, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.deployment.building import build


def test_traffic_that_says_nothing_is_plain() -> None:
    plain = build(Traffic, {})
    assert (plain.max_tokens, plain.num_adapters) == (None, None)
    assert (plain.adapter_skew, plain.length_distribution) == (0.0, "uniform")


@pytest.mark.parametrize(
    "fields",
    [
        {"input_len": 0},
        {"max_tokens": 0},
        {"num_adapters": 0},
        {"adapter_skew": -1.0},
        {"random_range_ratio": 1.0},
        {"arrivals": "never"},
        {"adapters": 3},
    ],
)
def test_traffic_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        build(Traffic, fields)
