"""The chase: the first in order that does, of any contenders; the fewest replicas, and the least latency."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest
from brute_force import brute_force
from hypothesis import example, given
from hypothesis import strategies as st
from long_forms import mostly_slow
from planned_options import option, trial
from quick_plans import PLAIN, PRICES, SHORT, quick

from capacity.deployment import Pool
from capacity.planning.evaluation.evaluation_pool import Ahead, EvaluationPool, EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.plan import plan
from capacity.planning.search.best_first_search import BestFirstSearch
from capacity.planning.search.replica_search import (
    FirstTokenSearch,
    PairReplicaSearch,
    ReplicaSearch,
    UnresolvedCandidate,
)
from capacity.planning.space import Candidate


class Judge:
    """Stands for a evaluator: an engine does with `needs` replicas or more, though a sample may flatter it."""

    workers = 2

    def __init__(self, needs: dict[int, int], flattered: dict[int, int]) -> None:
        self.needs = needs
        self.flattered = flattered
        self.asked: list[EvaluationRequest] = []

    def check(self) -> None:
        pass

    def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
        ahead()  # what is likely changes nothing
        self.asked.append(ask)
        number = ask.candidate.pool.max_num_seqs
        assert number is not None
        needs = self.needs[number] - (self.flattered[number] if ask.sample else 0)
        met = ask.candidate.replicas >= needs
        return trial(0.5 if met else 1.5, seen="sample" if ask.sample else "all")


ENGINES = st.lists(
    st.tuples(
        st.integers(1, 24),  # replicas that it needs; above 20 there are too few
        st.integers(0, 3),  # fewer that a sample says
        st.sampled_from((1, 2, 4)),  # GPUs of one
        st.integers(0, 3),  # complexity penalty
        st.booleans(),  # looked at before its turn
        st.floats(0, 1),  # of the replicas that it needs, the bound
    ),
    min_size=1,
    max_size=12,
)


@given(ENGINES)
@example(
    [(1, 0, 1, 2, False, 0.0), (1, 0, 2, 0, False, 0.0), (2, 1, 1, 1, False, 0.0)]
)  # one taken back hid another
def test_it_finds_the_first_in_order_that_does(engines: list[tuple[int, int, int, int, bool, float]]) -> None:
    entries: list[UnresolvedCandidate | ReplicaSearch] = []
    needs, flattered, expected = {}, {}, []
    for number, (need, less, width, odd, looked, bound) in enumerate(engines, start=1):
        pool = Pool(gpu="h100", max_num_seqs=number, tensor_parallel_size=width)
        engine = option(pool=pool, complexity=odd, least=max(1, min(int(bound * need), 20)))
        needs[number], flattered[number] = need, less
        expected += [engine.order(replicas) for replicas in range(need, 21)]
        contender = ReplicaSearch(engine)
        order = (float(width), 0.0, odd, 1)
        prospect = UnresolvedCandidate(
            engine.candidate_at(1), order, lambda contender=contender: (contender,), lambda *_: None
        )  # type: ignore[misc]
        entries.append(contender if looked else prospect)
    judge = Judge(needs, flattered)
    chase = BestFirstSearch(entries, cast("EvaluationPool", judge))
    chase.run()
    best = None if chase.best is None else chase.best.order
    assert best == min(expected, default=None)
    assert chase.done
    assert len(set(judge.asked)) == len(judge.asked)


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
