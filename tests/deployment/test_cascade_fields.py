"""The fields of a cascade: what means nothing alone, bounds, and defaults that have a source."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Cascade, build
from capacity.deployment.field_flags import field_needs
from capacity.deployment.used_fields import reject_unused_fields

TEXTS = {"embedding_model", "embedding_gpu", "small_gpu", "small_quantization", "small_api", "api_price_file"}
ALONE = {"small", "cache_hit_rate", "api", "api_input_price", "api_output_price", "target_utilization"}
WHOLE: dict[str, Any] = {
    "small": "llama-3.2-1b",
    "escalation_rate": 0.2,
    "cache_hit_rate": 0.1,
    "embedding_model": "m",
}


def test_all_other_fields_need_what_they_are_of() -> None:
    alone = {name for name, field in Cascade.model_fields.items() if not field_needs(field)}
    assert alone == ALONE
    for name in Cascade.model_fields.keys() - alone:
        value = {"escalate_by": "prompt", "target_utilization": 0.5}.get(name, 1)
        text = name in (
            "embedding_model",
            "embedding_gpu",
            "small_gpu",
            "small_quantization",
            "small_api",
            "api_price_file",
        )
        asked = build(Cascade, {name: "x" if text else value})
        with pytest.raises(InvalidInput, match="has no effect without"):
            reject_unused_fields("cascade", (asked,), (name,))


def test_beside_what_they_need_they_are_read() -> None:
    asked = build(Cascade, {**WHOLE, "judge_s": 1.0, "cache_lookup_s": 0.2, "embedding_gpu": "l4"})
    reject_unused_fields("cascade", (asked,), asked.model_fields_set)


@pytest.mark.parametrize(
    "wrong",
    [
        {"escalation_rate": -0.1}, {"escalation_rate": 1.1}, {"cache_hit_rate": 2}, {"target_utilization": 0},
        {"target_utilization": 1}, {"escalate_by": "coin"}, {"judge_s": -1}, {"embedding_price": float("nan")},
        {"small_output_len": 0}, {"large": "m"},
    ],
)  # fmt: skip
def test_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        build(Cascade, wrong)
