"""One comparison of deployments for several test modules."""

from __future__ import annotations

import pytest
from compared_sides import SLO, side

from capacity.planning.variations.deployment_comparison import DeploymentComparison, compare_deployments


@pytest.fixture(scope="session")
def four_sides() -> DeploymentComparison:
    return compare_deployments([side(), side(), side(price="2"), side("b200", price="9")], slo=SLO)
