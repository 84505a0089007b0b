"""Service levels held against runs."""

from __future__ import annotations

from quick_plans import quick


def test_a_lower_goodput_target_needs_no_more() -> None:
    """Limits owed to each request hold for the share that was asked for: 99 % of them cost as much as 70 %, or more."""
    strict, loose = (
        quick(slo="ttft:300 tpot:12", goodput_target=target, request_rate=120.0, quantizations=(None,))
        for target in (0.99, 0.7)
    )
    assert strict.best is not None
    assert loose.best is not None
    assert loose.best.num_gpus < strict.best.num_gpus
    for answer, target in ((strict, 0.99), (loose, 0.7)):
        assert answer.best is not None
        assert all(level.required_fraction == target for level in answer.best.trial.levels)
        assert all(level.good_fraction >= target for level in answer.best.trial.levels)
