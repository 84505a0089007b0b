"""The chase: the first in order that does, of any contenders; the fewest replicas, and the least latency."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from brute_force import brute_force
from hypothesis import example, given
from hypothesis import strategies as st
from long_forms import mostly_slow
from planned_options import level, option, trial
from quick_plans import PLAIN, PRICES, SHORT, quick

from capacity.deployment import Pool
from capacity.planning.evaluation.cost_bounds import Bound
from capacity.planning.evaluation.evaluation_context import OutOfTime
from capacity.planning.evaluation.evaluation_pool import Ahead, EvaluationPool, EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.plan import plan
from capacity.planning.search.best_first_search import BestFirstSearch, LeastLatencySearch
from capacity.planning.search.candidate_family import EvaluatedCandidate, Order
from capacity.planning.search.replica_search import (
    FirstTokenSearch,
    PairReplicaSearch,
    ReplicaSearch,
    UnresolvedCandidate,
)
from capacity.planning.space import Candidate


class Judge:
    """Stands for the evaluation pool: an engine needs `needs` replicas, and seems to need fewer on a sample.

    On the whole traffic it needs `more`. Calls with the numbers `late` raise OutOfTime.
    """

    def __init__(
        self,
        needs: dict[int, int],
        flattered: dict[int, int],
        more: dict[int, int] | None = None,
        late: Collection[int] = (),
        workers: int = 12,
    ) -> None:
        self.needs, self.flattered, self.more = needs, flattered, more or {}
        self.late, self.calls, self.checks, self.workers = late, 0, 0, workers
        self.asked: list[EvaluationRequest] = []
        self.ahead: list[list[EvaluationRequest]] = []  # what was expected after each request
        self.found: list[
            tuple[int, int, bool]
        ] = []  # of each request: engine, replicas, whether it met the SLO

    def check(self) -> None:
        self.calls += 1
        if self.calls in self.late:
            raise OutOfTime
        self.checks += 1

    def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
        self.check()
        self.ahead.append(list(ahead()))
        self.asked.append(ask)
        number = ask.candidate.pool.max_num_seqs
        assert number is not None
        needs = self.needs[number] - (self.flattered[number] if ask.sample else 0)
        needs += self.more.get(number, 0) if ask.whole else 0
        met = ask.candidate.replicas >= needs
        self.found.append((number, ask.candidate.replicas, met))
        window = cast("Any", "a window") if ask.whole else None
        return trial(0.5 if met else 1.5, seen="sample" if ask.sample else "all", window=window)


Engine = tuple[int, int, int, int, bool, float, int]
ENGINES = st.lists(
    st.tuples(
        st.integers(1, 24),  # replicas that it needs; above 20 there are too few
        st.integers(0, 3),  # fewer that a sample says
        st.sampled_from((1, 2, 4)),  # GPUs of one
        st.integers(0, 3),  # complexity penalty
        st.booleans(),  # looked at before its turn
        st.floats(0, 1),  # of the replicas that it needs, the bound
        st.integers(0, 3),  # more that the whole traffic needs
    ),
    min_size=1,
    max_size=12,
)


def assert_best_first(judge: Judge, least: dict[int, int]) -> None:
    """Verify that the best engine is settled first, and that each request after a miss was expected."""
    best, low, high = 0, dict(least), 0
    for (engine, replicas, met), asked, ahead in zip(judge.found, judge.asked[1:], judge.ahead):
        if met:
            best, high = engine, replicas
        else:
            low[engine] = max(low[engine], replicas + 1)
        following = asked.candidate.pool.max_num_seqs
        if best and low[best] < high:
            assert following == best
        assert met or asked in ahead or following == engine


@given(
    engines=ENGINES,
    below=st.none() | st.integers(1, 30),
    full=st.booleans(),
    whole=st.booleans(),
    late=st.sets(st.integers(1, 20), max_size=4),
)
@example(
    engines=[(1, 0, 1, 2, False, 0.0, 0), (1, 0, 2, 0, False, 0.0, 0), (2, 1, 1, 1, False, 0.0, 0)],
    below=None,
    full=False,
    whole=False,
    late=set(),
)  # one taken back hid another
@example(
    engines=[(4, 0, 1, 0, True, 0.0, 0), (24, 0, 1, 1, True, 0.0, 0)],
    below=None,
    full=True,
    whole=False,
    late=set(),
)  # the first needs 4 or 5, which is known before the second is tried
def test_it_finds_the_first_in_order_that_does(
    engines: list[Engine], below: int | None, full: bool, whole: bool, late: set[int]
) -> None:
    entries: list[UnresolvedCandidate | ReplicaSearch] = []
    needs, flattered, more, expected = {}, {}, {}, []
    found, searches = list[EvaluatedCandidate](), dict[int, ReplicaSearch]()
    chase: Any = None

    def enter(entered: UnresolvedCandidate, _: object) -> None:
        """Verify that the entry is first in order, and that it can be better than the best."""
        waiting = [e.order for e in entries if isinstance(e, UnresolvedCandidate) and not e.entered]
        limit = chase.best.order if chase.best else chase.below
        keys = [(order[2] if limit is None else 0, order) for order in (entered.order, *waiting)]
        assert keys[0] == min(keys)

    def resolve(contender: ReplicaSearch, order: Order) -> tuple[ReplicaSearch]:
        limit = chase.best.order if chase.best else chase.below
        assert limit is None or order < limit
        return (contender,)

    for number, (need, less, width, odd, looked, bound, extra) in enumerate(engines, start=1):
        pool = Pool(gpu="h100", max_num_seqs=number, tensor_parallel_size=width)
        engine = option(pool=pool, complexity=odd, least=max(1, min(int(bound * need), 20)))
        needs[number], flattered[number], more[number] = need, less, extra
        expected += [engine.order(replicas) for replicas in range(need + extra * whole, 21)]
        contender = searches[number] = ReplicaSearch(engine)
        order = (float(width), 0.0, odd, 1)
        prospect = UnresolvedCandidate(
            engine.candidate_at(1), order, partial(resolve, contender, order), enter
        )
        entries.append(contender if looked else prospect)
    judge = Judge(needs, flattered, more, late)
    limit = None if below is None else (below, -1.0)
    chase = BestFirstSearch(
        entries, cast("EvaluationPool", judge), improved=found.append, below=limit,
        **{name: True for name, on in (("full", full), ("whole", whole)) if on},
    )  # fmt: skip
    assert not chase.done
    while not chase.done:
        with suppress(OutOfTime):
            chase.run()
    best = None if chase.best is None else chase.best.order
    assert best == min((order for order in expected if limit is None or order < limit), default=None)
    assert chase.verified
    assert len(set(judge.asked)) == len(judge.asked)
    assert not (full and any(ask.sample or ask.first_draw for ask in judge.asked))
    assert judge.checks == len(judge.asked) + sum(
        isinstance(entry, UnresolvedCandidate) and entry.entered for entry in entries
    )
    assert len(chase.entries) == len(entries)
    for number, contender in searches.items():
        verdicts = {replicas: met for engine, replicas, met in judge.found if engine == number}
        assert sorted(tried.replicas for tried in contender.met) == sorted(r for r in verdicts if verdicts[r])
        misses = [replicas for engine, replicas, met in judge.found if engine == number and not met]
        assert [tried.replicas for tried in contender.missed] == misses
    assert full or not judge.asked or judge.asked[0].sample
    if full and not whole:  # nothing is taken back
        assert_best_first(judge, {n: each.option.least for n, each in searches.items()})
        orders = [tried.order for tried in found]
        assert orders == sorted(orders, reverse=True)
    if chase.best is not None:
        assert found[-1][:2] == chase.best[:2]
        owner = searches[chase.best.candidate.pool.max_num_seqs]
        assert any(tried is chase.best for tried in owner.met)
        fewer = EvaluatedCandidate(owner.option, chase.best.replicas - 1, chase.best.trial)
        chase.replace_best(fewer)
        chase.run()
        assert chase.best is found[-1] is fewer is owner.met[-1]
        assert owner.settled
        assert len(judge.asked) == len(judge.found)


@given(
    needs=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    promise=st.integers(0, 2),
    most=st.integers(2, 12),
    told=st.booleans(),
)
def test_a_pair_finds_the_fewest_of_both(needs: tuple[int, int], promise: int, most: int, told: bool) -> None:
    """First tokens need so many that prefill, or more with the decodes behind them; decode needs so many of its own."""
    prefill = Pool(gpu="h100", max_num_seqs=1)
    pairs = [
        option(pool=Pool(gpu="h100", max_num_seqs=2), prefill=prefill, prefill_replicas=count, most=most - count)
        for count in range(1, most)
    ]  # fmt: skip

    def late(candidate: Candidate) -> bool:
        return candidate.prefill_replicas < needs[0]

    def slow(candidate: Candidate) -> bool:
        return candidate.replicas < needs[1]

    class Pairs(Judge):
        def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:  # noqa: ARG002
            if ask.first_tokens:
                return trial(0.5 if ask.candidate.replicas >= needs[0] - promise else 1.5)
            levels = [replace(trial(1.5).levels[0], slo="tpot:p95:1s")] if slow(ask.candidate) else []
            levels += [trial(1.5 if late(ask.candidate) else 0.5).levels[0]]
            return replace(trial(1.0), levels=tuple(levels), met=all(level.met for level in levels))

    chase = BestFirstSearch(
        [PairReplicaSearch(pairs, FirstTokenSearch(1) if told else None)],
        cast("EvaluationPool", Pairs({}, {})),
    )
    chase.run()
    least = min((each.gpus(d) for each in pairs for d in range(1, each.most + 1)
                 if not late(each.candidate_at(d)) and not slow(each.candidate_at(d))), default=math.inf)  # fmt: skip
    assert (math.inf if chase.best is None else chase.best.objective) == least


@pytest.mark.parametrize("rate", mostly_slow([60.0, 160.0, 240.0, 280.0], [60.0, 280.0]))
def test_the_fewest_replicas_of_a_single_engine(rate: float) -> None:
    space = {
        "gpus": "a100", "tensor_parallel_sizes": (1,), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
        "max_num_batched_tokens": (None,), "max_gpus": 32, **PLAIN,
    }  # fmt: skip
    traffic = SHORT | {"request_rate": rate}
    slo = "ttft:p90:400ms tpot:p90:30ms"
    best, _, _ = brute_force("llama-3.1-8b", slo, space, traffic)
    answer = plan("llama-3.1-8b", slo=slo, price=PRICES, **space, **traffic)
    assert answer.best is not None
    assert answer.best.objective == pytest.approx(best)
    assert answer.counts.simulated <= 10


@pytest.mark.parametrize(
    "slo",
    [
        "ttft:500 tpot:50",
        "e2e:3000",
        "ttft:500",
        "ttft:p95:500ms tpot:50",
        "ttft:500 tpot:p95:50ms",
        "ttft:p95:500ms tpot:p95:50ms",
        "ttft:p50:500ms itl:p99:80ms",
    ],
)
@pytest.mark.parametrize("lengths", mostly_slow([{}, {"random_range_ratio": 0.5}], [{}]))
def test_no_objective_calls_infeasible_what_cost_finds_feasible(slo: str, lengths: dict[str, float]) -> None:
    """However a service level is written; and latency is never worse than that of the cheapest deployment."""
    traffic = {"request_rate": 2.0, "max_gpus": 4, "price": "2", "slo": slo, **lengths}
    cheapest = quick(objective="cost", **traffic).best
    assert cheapest is not None
    for objective in ("gpus", "energy", "latency"):
        found = quick(objective=objective, **traffic).best
        assert found is not None
        assert found.trial.met
    assert 0 < found.trial.ratio <= cheapest.trial.ratio * 1.3  # --latency-tolerance
    assert found.objective == found.trial.ratio


def test_objective_latency_of_each_request_is_found_on_several_gpus() -> None:
    """The defect needed no special space: of two GPUs and several sizes nothing was left."""
    found = quick(
        model="llama-3.1-70b",
        gpus="h100,h200",
        tensor_parallel_sizes=(4, 8),
        objective="latency",
        slo="ttft:500 tpot:50",
        request_rate=2.0,
        max_gpus=8,
    )
    assert found.best is not None
    assert "unmeetable" not in found.reasons or found.reasons["unmeetable"] < found.counts.engines


def test_latency_rents_the_fewest_gpus_near_the_least_of_all() -> None:
    """What a second GPU, or a tenth, still gains is more than the share that may be lost; and no fewer would do."""
    traffic = {"request_rate": 2.0, "max_gpus": 12, "tensor_parallel_sizes": (1, 2)}
    answer = quick(objective="latency", latency_tolerance=0.02, **traffic)
    near = quick(objective="latency", **traffic)
    assert answer.best is not None
    assert near.best is not None
    assert answer.proved
    assert answer.best.objective == pytest.approx(answer.best.trial.ratio)
    least = min(point.worst_ratio for point in answer.speed_front + answer.cost_front)
    assert answer.best.objective <= least * 1.02
    assert answer.best.num_gpus < 12
    assert near.best.num_gpus <= answer.best.num_gpus
    for fewer in range(1, answer.best.num_gpus):
        other = quick(objective="latency", **(traffic | {"max_gpus": fewer}))
        assert other.best is None or other.best.objective > least * 1.02


def test_the_best_on_a_sample_is_simulated_in_full() -> None:
    """Two replicas meet the SLO on a sample only; three are needed."""
    judge = cast("EvaluationPool", Judge({1: 3}, {1: 1}))
    chase = BestFirstSearch([ReplicaSearch(option(pool=Pool(gpu="h100", max_num_seqs=1)))], judge)
    chase.run()
    assert chase.best is not None
    assert chase.best.replicas == 3
    chase.replace_best(EvaluatedCandidate(chase.best.option, 2, trial(0.5, seen="sample")))
    assert not chase.verified
    chase.verify()
    assert chase.verified
    assert chase.best.replicas == 3


@given(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 9), st.booleans(), st.booleans()), min_size=1))
@example([(1, 1, False, True), (1, 5, False, False), (1, 2, False, False)])  # the first leaves the queue
def test_searches_over_some_of_the_same_candidates_are_merged(
    engines: list[tuple[int, int, bool, bool]],
) -> None:
    """An engine that one of them has resolved is one entry of both, and the others keep their order."""
    needs = {number: need for number, (need, *_) in enumerate(engines, start=1)}
    judge = cast("EvaluationPool", Judge(needs, dict.fromkeys(needs, 0)))
    entered, prospects = list[UnresolvedCandidate](), list[UnresolvedCandidate]()
    record = lambda entry, _: entered.append(entry)  # noqa: E731
    for number, (_, width, *_) in enumerate(engines, start=1):
        engine = option(pool=Pool(gpu="h100", max_num_seqs=number, tensor_parallel_size=width))
        resolve = partial(tuple, [ReplicaSearch(engine)])
        prospects.append(UnresolvedCandidate(engine.candidate_at(1), engine.order(1), resolve, record))
    first = BestFirstSearch([p for p, (*_, one, _) in zip(prospects, engines) if one], judge)
    first.run()
    rest = [p for p, (*_, one, _) in zip(prospects, engines) if not one]
    everything = BestFirstSearch([*first.entries, *rest], judge)
    part = BestFirstSearch([e for e, (*_, other) in zip(everything.entries, engines) if other], judge)
    part.run()
    everything.merge(part)
    everything.merge(part)
    numbers = [entry.candidate.pool.max_num_seqs for entry in everything.entries]
    assert sorted(numbers) == sorted(needs)
    assert sum(isinstance(entry, ReplicaSearch) for entry in everything.entries) == len(entered)
    count = len(entered)
    everything.run()
    orders = [entry.order for entry in entered[count:]]
    assert orders == sorted(orders)
    known = BestFirstSearch([*everything.entries], judge)
    met = [tried.order for entry in known.entries if isinstance(entry, ReplicaSearch) for tried in entry.met]
    assert (known.best.order if known.best else None) == min(met, default=None)
    known.verify()
    assert known.verified


def test_what_is_expected_next_are_the_first_entries_of_the_queue() -> None:
    """Two for each worker; each engine with the most replicas that are before the best, and none behind it."""
    engines = [
        ReplicaSearch(option(pool=Pool(gpu="h100", max_num_seqs=n), complexity=n)) for n in range(1, 8)
    ]
    judge = Judge({1: 3, **dict.fromkeys(range(2, 8), 30)}, dict.fromkeys(range(8), 0), workers=2)
    chase = BestFirstSearch(engines, cast("EvaluationPool", judge), full=True)
    chase.run()
    number = lambda ask: (ask.candidate.pool.max_num_seqs, ask.candidate.replicas)  # noqa: E731
    asked = [number(ask) for ask in judge.asked]
    assert asked[:3] == [(1, 1), (1, 2), (1, 3)]
    assert [number(ask) for ask in judge.ahead[0]] == [(2, 1), (3, 1), (4, 1), (5, 1)]
    assert asked[3:] == [(n, 2) for n in range(2, 8)]  # with 3 they come behind the first engine
    assert [number(ask) for ask in judge.ahead[3]] == [(3, 2), (4, 2), (5, 2), (6, 2)]
    assert judge.ahead[-1] == []
    assert BestFirstSearch([], cast("EvaluationPool", judge)).verified


QUARTERS = st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0))


@given(
    ratios=st.lists(st.tuples(QUARTERS, QUARTERS), max_size=8),
    first=st.sampled_from((math.inf, 1.2, 0.5)),
)
def test_the_least_latency_simulates_only_engines_with_a_lower_bound(
    ratios: list[tuple[float, float]], first: float
) -> None:
    """The bounds are shares of the latencies, which reach 2: above 1, the SLO is missed."""
    latency = {number: 2 * ratio for number, (ratio, _) in enumerate(ratios, start=1)}
    bounds = {number: latency[number] * share for number, (_, share) in enumerate(ratios, start=1)}
    best, simulated = [first], list[int]()

    class Latency(Judge):
        def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
            number = ask.candidate.pool.max_num_seqs or 0
            assert ask.candidate.replicas == 20
            assert bounds[number] < best[-1]
            assert not ask.sample
            simulated.append(number)
            others = {number: bound for number, bound in bounds.items() if number not in simulated}
            expected = [
                number for number in sorted(others, key=lambda n: others[n]) if others[number] < best[-1]
            ]
            assert [other.candidate.pool.max_num_seqs for other in ahead()] == expected
            best.append(min(best[-1], latency[number] if latency[number] <= 1 else math.inf))
            return trial(latency[number])

    engines = []
    for number, bound in bounds.items():
        least = Bound(min_replicas=1, work_s=1.0, ratio=bound, reason=None)
        engines.append(ReplicaSearch(option(pool=Pool(gpu="h100", max_num_seqs=number), bound=least)))
    fastest = LeastLatencySearch(cast("EvaluationPool", Latency({}, {})), first)
    fastest.simulate_candidates(engines)
    met = [ratio for ratio in latency.values() if ratio <= 1]
    assert fastest.ratio == min([first, *met])
    assert all(bounds[number] >= fastest.ratio for number in set(bounds) - set(simulated))
    for number, engine in enumerate(engines, start=1):
        assert engine.settled == (number in simulated and latency[number] > 1)
        assert not engine.met


@given(st.integers(1, 40), st.floats(0.1, 9), st.floats(0.1, 9))
@example(1, 1.0, 9.0)
def test_the_least_latency_of_a_pair_is_that_of_the_best_split(
    most: int, prefill: float, decode: float
) -> None:
    """TTFT is inverse to the prefill replicas and TPOT to the decode replicas: all splits are compared."""
    pairs = [
        option(prefill=Pool(gpu="h100"), prefill_replicas=count, most=most + 1 - count)
        for count in range(1, most + 1)
    ]
    latencies = [(prefill / pair.prefill_replicas, decode / pair.most) for pair in pairs]
    tried = list[Candidate]()

    class Split(Judge):
        def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
            assert list(ahead()) == []
            tried.append(ask.candidate)
            ttft, tpot = latencies[ask.candidate.prefill_replicas - 1]
            levels = (level(ttft), replace(level(tpot), slo="tpot:p95:1s"))
            return replace(trial(max(ttft, tpot)), levels=levels, met=True)

    fastest = LeastLatencySearch(cast("EvaluationPool", Split({}, {})))
    fastest.simulate_candidates([PairReplicaSearch(pairs, None)])
    assert fastest.ratio == min(map(max, latencies))
    assert len(tried) <= math.log2(most) + 1
