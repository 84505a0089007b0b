"""Contenders: what they ask for next, of what they have learned."""

from __future__ import annotations

from planned_options import level, option, trial

from capacity.deployment import Pool
from capacity.planning.search.candidate_family import Order
from capacity.planning.search.replica_search import FirstTokenSearch, PairReplicaSearch, ReplicaSearch


def asked(contender: ReplicaSearch, best: Order | None) -> int:
    ask = contender.ask(best)
    assert ask is not None
    return ask.candidate.replicas


def miss(contender: ReplicaSearch, best: Order | None) -> int:
    """What it asks for, which does not do."""
    ask = contender.ask(best)
    assert ask is not None
    contender.learn(ask, trial(1.5), accepted=False)
    return ask.candidate.replicas


def test_without_an_answer_it_asks_for_ever_more_and_in_the_end_for_the_most() -> None:
    engine = ReplicaSearch(option(most=64))
    assert [miss(engine, None) for _ in range(7)] == [1, 2, 3, 5, 8, 12, 64]
    assert engine.settled
    assert engine.ask(None) is None


def test_beside_an_answer_one_trial_settles_it() -> None:
    engine = ReplicaSearch(option(most=64))
    assert miss(engine, (10.0, 0.0, 0, 10)) == 9
    assert engine.ask((10.0, 0.0, 0, 10)) is None
    assert not engine.settled  # more of them might do, were the answer taken back
    assert engine.order == (10.0, 0.0, 0, 10)


def test_what_does_is_narrowed_down_and_what_was_flattered_is_taken_back() -> None:
    engine = ReplicaSearch(option(most=64))
    ask = engine.option.first_look(9)
    tried = engine.learn(ask, trial(0.5, seen="sample"), accepted=True)
    assert tried is not None
    assert asked(engine, tried.order) == 4
    assert miss(engine, tried.order) == 4
    assert asked(engine, tried.order) == 6
    engine.retract(tried)
    assert (engine.low, engine.high, engine.met) == (10, None, [])
    assert asked(engine, None) == 10


def pair(most: int, first: FirstTokenSearch | None) -> PairReplicaSearch:
    prefill = Pool(gpu="a100")
    return PairReplicaSearch(
        [option(prefill=prefill, prefill_replicas=count, most=most - count) for count in range(1, most)],
        first,
    )


def test_pairs_of_one_prefill_engine_share_what_first_tokens_need() -> None:
    first = FirstTokenSearch(1)
    one, other = pair(9, first), pair(9, first)
    while not first.known:
        ask = one.ask(None)
        assert ask is not None
        assert ask.first_tokens
        met = ask.candidate.replicas >= 3
        one.learn(ask, trial(0.5 if met else 1.5), accepted=met)
    assert first.known
    ask = other.ask(None)
    assert ask is not None
    assert (ask.candidate.prefill_replicas, ask.candidate.replicas) == (3, 6)


def test_where_decode_is_too_slow_more_that_prefill_do_not_help() -> None:
    slow = trial(1.5, levels=(level(1.5, slo="tpot:p95:1s"),))
    late = trial(1.5)
    for told, places in ((slow, 1), (late, 5)):
        contender, seen = pair(6, None), 0
        while (ask := contender.ask(None)) is not None:
            contender.learn(ask, told, accepted=False)
            seen += 1
        assert seen == places
        assert contender.settled
