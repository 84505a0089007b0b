"""What is said beside a plan, and why there is nothing to search."""

from __future__ import annotations

from typing import Any

import pytest
from quick_plans import quick

from capacity.base.errors import DoesNotFit


def test_what_does_not_fit_is_never_the_slos_fault() -> None:
    with pytest.raises(DoesNotFit, match="does not fit") as refused:
        quick(model="llama-3.1-405b", gpus="l40s", slo="ttft:p95:1ms")
    assert "slo" not in str(refused.value).lower()
    assert "weights" in str(refused.value)


def test_drafts_say_whose_acceptance_they_take() -> None:
    drafted: dict[str, Any] = {
        "speculators": "eagle3", "num_speculative_tokens": (2,), "max_gpus": 4, "tensor_parallel_sizes": (1,),
        "slo": "ttft:p95:500ms tpot:p95:7ms",
    }  # fmt: skip
    answer = quick(**drafted)
    assert answer.best is not None
    assert answer.best.candidate.pool.speculator == "eagle3"
    assert any(
        "Llama-3.3-70B-Instruct" in warning and "--acceptance" in warning for warning in answer.warnings
    )
    worse = quick(**drafted, acceptance="0.05")
    assert worse.best is None or worse.best.num_gpus > answer.best.num_gpus
