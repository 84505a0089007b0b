"""Fields that change nothing in an answer are refused, by what they are declared to be read by and to need."""

from __future__ import annotations

import math

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Billing, Cost, Pool, Service, Traffic
from capacity.deployment.field_flags import field_needs, reading_part
from capacity.deployment.used_fields import (
    DEPLOYED,
    PARTS_BY_READING,
    is_part_read,
    reject_unused_fields,
    unused_fields,
)

SPECS = (Pool, Traffic, Service, Cost, Billing)
LENGTHS = {"input_len": 100, "output_len": 10}


def refused(question: str, *specs: Pool | Traffic | Service, **beside: object) -> str:
    """The refusal of what these specs say; empty: none."""
    given = [name for spec in specs for name in spec.model_fields_set]
    try:
        reject_unused_fields(question, specs, given, **beside)
    except InvalidInput as error:
        return str(error)
    return ""


def test_what_is_declared_is_there() -> None:
    fields = {name: field for spec in SPECS for name, field in spec.model_fields.items()}
    for field in fields.values():
        assert reading_part(field) in (*DEPLOYED, None)
        assert {need.field for need in field_needs(field)} <= set(fields)
    for parts in PARTS_BY_READING.values():
        assert set(parts) <= set(DEPLOYED)
        assert {need.field for needs in parts.values() for need in needs} <= {
            *fields,
            "simulate",
            "peak_rate",
            "hourly_rates",
        }


@pytest.mark.parametrize(
    ("question", "specs", "problem"),
    [
        ("fit", [Pool(gpu="h100", watermark=0.5)], "--watermark has no effect without a simulation"),
        ("simulate", [Pool(gpu="h100", watermark=0.5)], ""),
        ("simulate", [Pool(gpu="h100", watermark=0.0)], ""),
        ("estimate", [Pool(gpu="h100", watermark=0.5), Traffic(batch_size=2)], "--concurrency or --request-rate"),
        ("estimate", [Pool(gpu="h100", watermark=0.5), Traffic(concurrency=2)], ""),
        ("simulate", [Traffic(burstiness=2, concurrency=4)], "--burstiness has no effect without --request-rate"),
        ("simulate", [Traffic(burstiness=2, request_rate=math.inf)], "without --request-rate"),
        ("simulate", [Traffic(burstiness=2, request_rate=4)], ""),
        ("simulate", [Pool(gpu="h100"), Service(router="least-kv")], "--replicas, --autoscale-max-replicas or"),
        ("simulate", [Pool(gpu="h100", replicas=2), Service(router="least-kv")], ""),
        ("simulate", [Pool(gpu="h100"), Pool(gpu="h200"), Service(router="least-kv")], ""),
        ("simulate", [Traffic(input_len_cv=2)], "without --length-distribution lognormal or gamma: add it"),
        ("simulate", [Traffic(input_len_cv=2, length_distribution="gamma")], ""),
        ("curve", [Traffic(request_rate=3)], "; `curve` uses --rates instead"),
        ("simulate", [Traffic(think_time_s=1)], "without --turns or --users: add one, or remove --think-time-s"),
        ("speculate", [Pool(gpu="h100", async_scheduling=False)], "without --simulate"),
    ],
)  # fmt: skip
def test_a_field_that_changes_nothing_is_refused(
    question: str, specs: list[Pool | Traffic | Service], problem: str
) -> None:
    found = refused(question, *specs)
    assert problem in found if problem else not found


def test_a_keyword_of_the_question_can_be_what_a_field_needs() -> None:
    pool = Pool(gpu="h100", async_scheduling=False)
    assert not refused("speculate", pool, simulate=True)
    assert refused("speculate", pool, simulate=False)


def test_an_option_that_stands_for_others_is_refused_by_its_own_name() -> None:
    pool = Pool.model_validate({"gpu": "h100", "kv_transfer_config": '{"kv_role": "kv_producer"}'})
    with pytest.raises(InvalidInput, match="--kv-transfer-config has no effect"):
        reject_unused_fields("fit", (pool,), ("kv_transfer_config",))
    assert list(unused_fields("fit", (pool,), ("gpu", "kv_transfer_config"))) == ["kv_transfer_config"]


def test_a_file_says_what_other_questions_read() -> None:
    """What was written in a file is not given: only what is written beside it."""
    reject_unused_fields("fit", (Pool(gpu="h100", watermark=0.5),), ("gpu",))
    assert (
        is_part_read("fit", "schedule"),
        is_part_read("simulate", "schedule"),
        is_part_read("fit", None),
    ) == (
        False,
        True,
        True,
    )


def test_requests_of_a_day_are_read_as_the_rate_that_they_are() -> None:
    traffic = Traffic(requests_per_day=86_400)
    assert traffic.request_rate == 1.0
    with pytest.raises(InvalidInput, match="--requests-per-day has no effect without --arrivals"):
        reject_unused_fields("curve", [Pool(gpu="h100"), traffic], ["requests_per_day"])
    reject_unused_fields("cost", [Pool(gpu="h100"), traffic], ["requests_per_day"])
