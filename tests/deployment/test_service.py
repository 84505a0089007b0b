"""What stands before the engines: limits of its fields, and none of them without what it belongs to."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Service, build

BASE: dict[str, Any] = {
    "gpu": "h100", "replicas": 2, "input_len": 100, "output_len": 10, "request_rate": 5, "num_prompts": 30,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"max_queued_requests": -1},
        {"request_timeout_s": 0},
        {"prefill_replicas": 0},
        {"kv_transfer_link": "pigeon"},
        {"mean_time_between_failures_s": 0},
        {"requests_of_lost_replicas": "forget"},
        {"autoscale_interval_s": 0},
        {"nothing_of_the_kind": 1},
    ],
)
def test_what_cannot_be_is_refused_in_a_line(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        build(Service, fields)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        ("decode_router", "least-kv", "prefill"),
        ("kv_transfer_link", "pcie", "prefill"),
        ("router_ttft_s", 0.5, "router within-ttft"),
        ("recovery_s", 5.0, "mean-time-between-failures"),
        ("scale_down_delay_s", 5.0, "autoscale"),
    ],
)
def test_a_field_names_what_it_belongs_to(field: str, value: object, needed: str) -> None:
    with pytest.raises(InvalidInput, match=needed):
        capacity.simulate("llama-3.1-8b", **BASE, **{field: value})


def test_a_router_by_time_needs_its_limit() -> None:
    with pytest.raises(InvalidInput, match="--router within-ttft needs --router-ttft-s"):
        capacity.simulate("llama-3.1-8b", **BASE, router="within-ttft")


def test_a_router_needs_somewhere_to_send_to() -> None:
    capacity.simulate("llama-3.1-8b", **BASE, router="least-outstanding")
    with pytest.raises(InvalidInput, match="replicas"):
        capacity.simulate("llama-3.1-8b", **{**BASE, "replicas": 1}, router="least-outstanding")
