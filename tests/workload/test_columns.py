"""Columns of a workload: checked, copied, never written again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_workloads import check_refused, small

from capacity.workload import PromptContent


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"arrival_s": []}, "has no requests"),
        ({"arrival_s": [0.0, math.nan, 1.0]}, "arrival_s of request 1 is not finite: nan"),
        ({"arrival_s": [0.0, 1.0, math.inf]}, "arrival_s of request 2 is not finite: inf"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, "arrival_s of request 0 is below 0: -1.0"),
        ({"arrival_s": [0.0, 2.0, 1.0]}, "arrival_s of request 2 is before its predecessor's"),
        ({"arrival_s": [0.0, 1.0, 1e300]}, "is above 1e+09"),
        ({"arrival_s": ["a", "b", "c"]}, "arrival_s must be numbers"),
        ({"arrival_s": [[0.0], [1.0], [2.0]]}, "2-dimensional"),
        ({"prompt_tokens": [10, 0, 30]}, "prompt_tokens of request 1 is below 1: 0"),
        ({"prompt_tokens": [10, 20]}, "prompt_tokens has 2 values for 3 requests"),
        ({"output_tokens": [1.0, 2.5, 3.0]}, "output_tokens of request 1 is not a whole number: 2.5"),
        ({"output_tokens": [1, 2, 2**70]}, "output_tokens must be whole numbers"),
        ({"output_tokens": [1, 2, 2**40]}, "is above 16777216"),
        ({"output_tokens": [True, True, True]}, "output_tokens must be whole numbers"),
        ({"output_tokens": [1, [2], 3]}, "flat sequence"),
        (
            {"after_request": [-1, 1, 0], "think_s": [0, 0, 0]},
            "after_request of request 1 must be an earlier one",
        ),
        ({"after_request": [-1, 0, 0]}, "must be given together"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"concurrency": 1.5}, "concurrency must be"),
        ({"content": PromptContent.from_segments([[(0, 10)]])}, "content has 1 prompts for 3"),
        (
            {"content": PromptContent.from_segments([[(0, 10)], [(1, 21)], [(2, 30)]])},
            "content of request 1 has 21",
        ),
    ],
)
def test_columns_are_checked(changes: dict[str, object], part: str) -> None:
    check_refused(lambda: small(**changes), part)


def test_columns_are_copies_that_cannot_be_written() -> None:
    arrival_s = np.asarray([0.0, 1.0, 2.0])
    workload = small(arrival_s=arrival_s)
    arrival_s[0] = 5.0
    assert workload.arrival_s[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        workload.prompt_tokens[0] = 5
