"""Why engines are no answer: each once, for its strongest reason."""

from __future__ import annotations

from planned_options import level, option, trial

from capacity.deployment import Pool
from capacity.planning.search.candidate_family import EvaluatedCandidate, Exclusion, Order
from capacity.planning.search.rejection_reasons import describe_miss, is_unresolved, rejections
from capacity.planning.search.replica_search import (
    FirstTokenSearch,
    PairReplicaSearch,
    ReplicaSearch,
    UnresolvedCandidate,
)
from capacity.planning.space import Candidate


def engine(seqs: int, **fields: object) -> ReplicaSearch:
    return ReplicaSearch(option(pool=Pool(gpu="h100", max_num_seqs=seqs), **fields))


def unseen(order: Order) -> UnresolvedCandidate:
    candidate = Candidate(pool=Pool(gpu="h100", max_num_seqs=99), replicas=1)
    return UnresolvedCandidate(candidate, order, lambda: Exclusion("limit", ""), lambda *_: None)


def test_each_engine_is_turned_down_once_for_its_strongest_reason() -> None:
    missed, routed = engine(1, most=3), engine(1, router="prefix-aware", least=2)
    met, dear, slow, cheap = engine(2), engine(3, least=9), engine(4), engine(5)
    for replicas in (2, 3):
        missed.learn(missed.option.first_look(replicas), trial(1.5), accepted=False)
    best = met.learn(met.option.first_look(4), trial(0.5), accepted=True)
    slow.option = option(pool=slow.option.pool, bound=slow.option.bound.__class__(
        min_replicas=1, work_s=1.0, ratio=0.9, reason=None))  # fmt: skip
    entries = [missed, routed, met, dear, slow, cheap, unseen((5.0, 0.0, 0, 1)), unseen((1.0, 0.0, 0, 1))]
    found = list(rejections(entries, best, {}, 0.8))
    kinds = [(rejection.pool.max_num_seqs, rejection.kind) for rejection in found]
    assert kinds == [
        (1, "slo"), (3, "costlier"), (4, "unmeetable"), (5, "unresolved"), (99, "costlier"), (99, "unresolved"),
    ]  # fmt: skip
    assert "9 replicas: 9 GPUs, no better than the best candidate's 4 GPUs" in found[1].reason
    assert not is_unresolved(missed, best)
    assert is_unresolved(cheap, best)


def test_a_pair_whose_first_tokens_are_late_at_any_number_says_so() -> None:
    prefill = Pool(gpu="h100")
    first = FirstTokenSearch(1)
    pair = PairReplicaSearch([option(prefill=prefill, prefill_replicas=count) for count in (1, 2)], first)
    ask = pair.ask(None)
    assert ask is not None
    assert ask.first_tokens
    assert ask.candidate.replicas == 2
    pair.learn(ask, trial(1.5), accepted=False)
    assert pair.settled
    (found,) = rejections([pair], None, {}, None)
    assert "TTFT misses its limit even with the maximum number of prefill replicas" in found.reason


def test_a_miss_is_described_by_its_worst_level() -> None:
    late, mild = level(2.5), level(1.1, slo="tpot:p95:1s")
    assert describe_miss(trial(2.5, levels=(mild, late))) == "ttft:p95:1s: 2,500 ms, 2.50 times the limit"
    owed = level(None, good_fraction=0.9, required_fraction=0.99, met=False)
    assert "90.0% of requests meet it, 99.0% needed" in describe_miss(trial(2.0, levels=(owed,)))
    assert EvaluatedCandidate(option(), 2, trial(0.5)).objective == 2
