"""What was simulated and what it showed, and why something is no answer."""

from __future__ import annotations

from typing import NamedTuple

from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.search.candidate_family import CandidateFamily, Order
from capacity.planning.space import Candidate

GIVEN_UP = " in the part simulated before it was given up"


class EvaluatedCandidate(NamedTuple):
    """A deployment that was simulated."""

    option: CandidateFamily
    replicas: int
    trial: Evaluation

    @property
    def candidate(self) -> Candidate:
        return self.option.at(self.replicas)

    @property
    def objective(self) -> float:
        """What is minimised, as simulated."""
        if self.option.search.objective == "latency":
            return self.trial.ratio
        return self.option.objective(self.replicas)

    @property
    def order(self) -> Order:
        """Its place among answers."""
        return self.option.order(self.replicas)


def describe_miss(trial: Evaluation) -> str:
    """Which level was missed by how much."""
    worst = max(trial.levels, key=lambda level: level.ratio)
    seen = GIVEN_UP if trial.seen == "given up" else ""
    if trial.joint_ratio > max(worst.ratio, 1):
        return f"the limits on each request together: {trial.joint_ratio:.2f} times{seen}"
    if worst.value_s is None:
        return f"{worst.slo}: {worst.good_fraction:.1%} of requests within, {worst.required_fraction:.1%} needed{seen}"
    if trial.window is not None:
        seen = f" from {trial.window.label}"
    return f"{worst.slo}: {worst.value_s * 1e3:,.0f} ms{seen}, {worst.ratio:.2f} times the limit"
