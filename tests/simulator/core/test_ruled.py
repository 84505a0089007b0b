"""Deployments in which single rules decide: both engines do the same, bit for bit."""

from __future__ import annotations

import pytest
from random_deployments import outcome, unlike
from ruled_deployments import RULED, ruled


@pytest.mark.parametrize(("kind", "policy", "seed"), RULED)
def test_the_rule_is_the_same_in_both_engines(kind: str, policy: str, seed: int) -> None:
    deployment = ruled(kind, policy, seed)
    assert unlike(outcome(deployment, "events"), outcome(deployment, "core")) == []
