"""Reasons why candidates of the search were rejected; each engine or pair of engines has one reason."""

from collections.abc import Iterator, Mapping, Sequence

from capacity.deployment import Pool
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.records import Rejection
from capacity.planning.search.best_first_search import Entry
from capacity.planning.search.candidate_family import CandidateFamily, EvaluatedCandidate, format_objective
from capacity.planning.search.replica_search import PairReplicaSearch, ReplicaSearch, UnresolvedCandidate

TTFT_UNREACHABLE = "TTFT misses its limit even with the maximum number of prefill replicas"
GIVEN_UP = " (in the requests simulated before rejection)"
NOT_REACHED = "not simulated before the search ended"

Family = tuple[str, str | None]  # a GPU and a weight format


def rejections(
    entries: Sequence[Entry],
    best: EvaluatedCandidate | None,
    leaders: Mapping[Family, EvaluatedCandidate],
    limit: float | None,
) -> Iterator[Rejection]:
    """Yield a rejection for every engine that has no accepted deployment.

    `leaders` are the best deployments by GPU and weight format; `limit` is the highest accepted latency as a fraction
    of the SLO limits, None for other objectives.
    """
    settled = {
        _engine(tried.option) for entry in entries if isinstance(entry, ReplicaSearch) for tried in entry.met
    }
    for entry in entries:
        if isinstance(entry, UnresolvedCandidate):
            if is_unresolved(entry, best):
                yield Rejection.from_candidate(entry.candidate, "unresolved", NOT_REACHED, replicas=None)
                continue
            assert best is not None
            least, to_beat = (
                format_objective(best.option.search.objective, order[0])
                for order in (entry.order, best.order)
            )
            reason = f"one replica needs at least {least}, no better than the best candidate's {to_beat}"
            yield Rejection.from_candidate(entry.candidate, "costlier", reason, replicas=1)
        elif (engine := _engine(entry.option)) not in settled:
            settled.add(engine)
            yield _rejection_of(entry, best, leaders.get(entry.option.family, best), limit)


def not_recommended(conditional: Mapping[tuple[str, ...], Sequence[Entry]]) -> Iterator[Rejection]:
    """Yield a rejection for every engine that loses quality or uses unmeasured drafts (`conditions_of`)."""
    for conditions, entries in conditional.items():
        for entry in entries:
            if isinstance(entry, UnresolvedCandidate) and (not entry.entered or entry.look()):
                reason = f"depends on {' and '.join(conditions)}"
                yield Rejection.from_candidate(entry.candidate, "conditional", reason, replicas=None)


def is_unresolved(entry: Entry, best: EvaluatedCandidate | None) -> bool:
    """Return whether some number of replicas of this engine may still be better than `best`."""
    if isinstance(entry, ReplicaSearch) and entry.settled:
        return False
    return best is None or entry.order < best.order


def _engine(option: CandidateFamily) -> tuple[Pool, Pool | None]:
    """Return the key of an engine or pair of engines, without router and replicas."""
    return option.pool, option.prefill


def _rejection_of(
    entry: ReplicaSearch,
    best: EvaluatedCandidate | None,
    leader: EvaluatedCandidate | None,
    limit: float | None,
) -> Rejection:
    option, candidate = entry.option, entry.candidate
    if limit is not None and option.bound.ratio > limit:
        reason = (
            f"on an empty engine, latency / limit is {option.bound.ratio:.2f}; at most {limit:.2f} is allowed"
        )
        return Rejection.from_candidate(candidate, "unmeetable", reason, replicas=None)
    if is_unresolved(entry, best):
        return Rejection.from_candidate(candidate, "unresolved", NOT_REACHED, replicas=None)
    if isinstance(entry, PairReplicaSearch) and entry.ttft_unreachable:
        return Rejection.from_candidate(candidate, "slo", TTFT_UNREACHABLE, replicas=None)
    if entry.missed:
        _, replicas, trial = tried = entry.missed[-1]
        return Rejection.from_candidate(tried.candidate, "slo", describe_miss(trial), replicas=replicas)
    assert leader is not None
    what = f"{option.least} replicas" if option.least > 1 else "1 replica"
    if option.prefill is not None:
        what = f"{option.prefill_replicas} prefill and {option.least} decode replicas"
    objective = option.search.objective
    least = format_objective(objective, option.objective(option.least))
    to_beat = format_objective(objective, leader.order[0])
    reason = f"needs at least {what}: {least}, no better than the best candidate's {to_beat}"
    return Rejection.from_candidate(candidate, "costlier", reason, replicas=option.least)


def describe_miss(trial: Evaluation) -> str:
    """Return text with the SLO that is missed by the largest factor, and its value."""
    worst = max(trial.levels, key=lambda level: level.ratio)
    seen = GIVEN_UP if trial.seen == "given up" else ""
    if trial.joint_ratio > max(worst.ratio, 1):
        return f"all limits on each request together: {trial.joint_ratio:.2f} times the limit{seen}"
    if worst.value_s is None:
        return f"{worst.slo}: {worst.good_fraction:.1%} of requests meet it, {worst.required_fraction:.1%} needed{seen}"
    if trial.window is not None:
        seen = f" from {trial.window.label}"
    return f"{worst.slo}: {worst.value_s * 1e3:,.0f} ms{seen}, {worst.ratio:.2f} times the limit"
