"""Tables of `diff` and `advise`: signs, doubts and what is not known."""

from __future__ import annotations

from typing import Any

from capacity import advise, diff
from capacity.report.tables import render

LOAD: dict[str, Any] = {"input_len": 200, "output_len": 20, "request_rate": 8.0, "num_prompts": 40}


def side(**pool: Any) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "pools": [{"gpu": "h100", **pool}],
        "traffic": LOAD,
        "cost": {"price": "2"},
    }


def test_a_deployment_against_itself_is_the_same_and_not_told_apart() -> None:
    text = render(diff(side(), side()), "table")
    assert "A and B are identical" in text
    assert text.count("significant)") == 3  # of "not significant", which wraps
    assert "bill: $2.00 to $2.00 an hour (+0.0%)" in text


def test_what_was_changed_is_named_and_the_bill_follows() -> None:
    text = render(diff(side(), side(replicas=2)), "table")
    assert "are identical" not in text
    assert "replicas" in text
    assert "bill: $2.00 to $4.00 an hour (+100.0%)" in text


def test_changes_without_benefit_and_refused_ones_are_named_below() -> None:
    answer = advise("llama-3.1-8b", gpu="h100", **LOAD)
    lines = " ".join(render(answer, "table").split())
    for each in (*answer.advice, *answer.without_benefit, *answer.refused):
        assert each.change.split(" (")[0].split()[-1] in lines
    assert "not possible here: " in lines
    assert len(lines) < 4000
    assert "per 1,000 requests" not in lines  # no price was given
