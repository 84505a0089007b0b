"""The fronts of what was simulated: speed for a user against use of a GPU, price against margin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from capacity.planning.evaluation.evaluation_pool import EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.records import Point
from capacity.planning.search.candidate_family import CandidateFamily
from capacity.planning.space import Candidate


def points_of(
    trials: Mapping[EvaluationRequest, Evaluation], options: Iterable[CandidateFamily]
) -> list[Point]:
    """What was simulated and not given up, each candidate once, in full where it was."""
    by_engine = {option.at(0): option for option in options}
    latest = {
        ask.candidate: trial
        for ask, trial in trials.items()
        if trial.seen in ("all", "sample") and not ask.first_tokens
    }
    return [
        _point(by_engine[replace(candidate, replicas=0)], candidate, trial)
        for candidate, trial in latest.items()
    ]


def _point(option: CandidateFamily, candidate: Candidate, trial: Evaluation) -> Point:
    return Point(
        label=candidate.label,
        gpu=candidate.pool.gpu,
        num_gpus=candidate.num_gpus,
        usd_per_hour=option.usd_per_hour(candidate.replicas),
        tokens_per_s_per_user=trial.tokens_per_s_per_user,
        tokens_per_s_per_gpu=trial.output_tokens_per_s / candidate.num_gpus,
        levels=trial.levels,
        met=trial.met,
    )


def speed_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """tok/s per user against tok/s per GPU, of what was simulated: no other is better in both."""
    known = [point for point in points if point.tokens_per_s_per_user is not None]
    return _front(known, lambda point: (-(point.tokens_per_s_per_user or 0.0), -point.tokens_per_s_per_gpu))


def cost_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """$ per hour (GPUs without a price) against the worst level's share of its limit."""

    def values(point: Point) -> tuple[float, float]:
        price = point.usd_per_hour if point.usd_per_hour is not None else float(point.num_gpus)
        return price, point.worst_ratio

    return _front(points, values)


def _front(points: Sequence[Point], values: Callable[[Point], tuple[float, float]]) -> tuple[Point, ...]:
    """The points that none beats in both values, in order of the first."""
    front: list[Point] = []
    for point in sorted(points, key=values):
        if not front or values(point)[1] < values(front[-1])[1]:
            front.append(point)
    return tuple(front)
