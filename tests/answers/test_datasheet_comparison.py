"""A better GPU that comes out slower is said to be so; differences that have a cause are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capacity.answers.datasheet_comparison import TimedLoad, datasheet_notes
from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.hardware.profile import Adjustment
from capacity.planning.variations.diff import diff
from capacity.pool.resolve import resolve


def timed(gpu: str, ttft_s: float, tpot_s: float, *, replicas: int = 1, **pool: Any) -> TimedLoad:
    resolved = resolve("llama-3.1-8b", Pool(gpu=gpu, replicas=replicas, **pool))
    return TimedLoad(resolved=resolved, seconds={"TTFT": ttft_s, "TPOT": tpot_s})


def test_no_figure_of_the_better_datasheet_is_less() -> None:
    h100, h200, a100, pcie = (load_profile(name) for name in ("h100", "h200", "a100", "h100-pcie-80gb"))
    assert h200.is_at_least_as_fast(h100)
    assert not h100.is_at_least_as_fast(h200)
    assert h100.is_at_least_as_fast(pcie)
    assert not h100.is_at_least_as_fast(a100)  # another architecture: slower for reasons that no peak shows


def test_slower_though_better_is_said_once_a_gpu_and_by_how_much() -> None:
    said = datasheet_notes([timed("h100", 0.10, 0.010), timed("h200", 0.12, 0.011)])
    assert len(said) == 1
    assert "h200-sxm-141gb has a 20.0% longer TTFT than h100-sxm-80gb" in said[0]


def test_what_has_a_cause_or_is_no_difference_is_not_said() -> None:
    h100 = timed("h100", 0.10, 0.010)
    assert datasheet_notes([h100, timed("h200", 0.08, 0.007)]) == ()
    assert datasheet_notes([timed("h100", 0.12, 0.02), timed("h200", 0.10, 0.01)]) == ()
    assert datasheet_notes([h100, timed("h200", 0.1004, 0.010)]) == ()
    assert datasheet_notes([h100, timed("h200", 0.2, 0.02, max_num_seqs=8)]) == ()
    assert datasheet_notes([h100, timed("h200", 0.2, 0.02, replicas=2)]) == ()


def test_a_machine_that_was_calibrated_differs_for_real() -> None:
    h100, h200 = timed("h100", 0.10, 0.010), timed("h200", 0.12, 0.011)
    assert len(datasheet_notes([h100, h200])) == 1
    mine = h200.resolved.profile.model_copy(update={"adjustment": Adjustment.model_construct()})
    assert datasheet_notes([h100, replace(h200, resolved=replace(h200.resolved, profile=mine))]) == ()


def test_a_diff_says_it() -> None:
    """gpt-oss on MXFP4's kernels, whose H200 rows were measured slower than the H100's."""
    sides: list[dict[str, Any]] = [
        {
            "model": "gpt-oss-20b",
            "pools": [{"gpu": gpu}],
            "traffic": {"input_len": 4000, "output_len": 10, "request_rate": 2, "num_prompts": 20},
        }
        for gpu in ("h100", "h200")
    ]
    compared = diff(*sides)
    longer = (
        compared.second_outcome.ttft_p95_s > 1.005 * compared.first_outcome.ttft_p95_s
    )  # as it is fitted today
    assert longer == any(
        "although its datasheet is at least as good" in warning for warning in compared.warnings
    )
