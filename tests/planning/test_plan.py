"""What a plan refuses, with the way out."""

from __future__ import annotations

import pytest
from quick_plans import quick

from capacity.base.errors import InvalidInput


def test_refusals_name_the_way_out() -> None:
    with pytest.raises(InvalidInput, match="--price-tier on-demand"):
        quick(objective="cost")
    with pytest.raises(InvalidInput, match="--slo ttft:p95:2s"):
        quick(slo="tpot:p95:30ms")
    with pytest.raises(InvalidInput, match="no service level"):
        quick(slo=())
    with pytest.raises(InvalidInput, match="gpus is"):
        quick(gpus=())
    with pytest.raises(InvalidInput, match="--budget needs a price"):
        quick(budget=10.0)
