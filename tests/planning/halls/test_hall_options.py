"""Options of a model in a hall: bounds below the power that is found, and reasons for those that are left out."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.planning.halls.hall_options import ModelRequest

FIELDS: dict[str, Any] = {
    "model": "llama-3.1-8b", "slo": ["ttft:p95:1s"], "input_len": 500, "output_len": 100, "request_rate": 50,
    "quantizations": "none", "tensor_parallel_sizes": 1,
}  # fmt: skip


def build(**fields: Any) -> ModelRequest:
    return ModelRequest.build(FIELDS | fields, profiles=None, download=False)


def test_least_power_is_below_the_power_of_the_plan() -> None:
    request = build(gpus="h100", power_cap="none,60%", request_rate=100)
    found = request.options(prune=False)
    assert len(found) == request.num_options == 2
    for option in found:
        assert option.cell is not None
        assert 0.4 * option.provisioned_watts < option.least_watts < option.provisioned_watts


def test_options_that_cannot_run_have_the_reason() -> None:
    told: list[int] = []
    reasons = {
        (option.profile.name, option.profile.power_cap_watts): option.reason
        for option in build(gpus="h100,rtx-5090,t4", power_cap="none,60%").options(
            prune=True, report=told.append
        )
    }
    assert told == list(range(6))
    assert reasons["h100-sxm-80gb", 420.0] == ""
    assert any("below the lowest cap" in reason and "400 W" in reason for reason in reasons.values())
    assert any("GiB" in reason for (gpu, _), reason in reasons.items() if gpu == "t4-16gb")


@pytest.mark.parametrize("field", ["max_gpus", "budget", "serving"])
def test_fields_that_a_hall_sets_are_refused(field: str) -> None:
    with pytest.raises(Exception, match=f"--{field.replace('_', '-')} has no effect on a hall"):
        build(gpus="h100", **{field: 8})


def test_users_and_requests_per_day_are_rates() -> None:
    assert build(gpus="h100", request_rate=None, requests_per_day=86400).requests_per_s == 1
