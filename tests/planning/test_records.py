"""What the planner answers: rejections in words, and shares of what was searched."""

from __future__ import annotations

from typing import get_args

from capacity.deployment import Pool
from capacity.planning.records import KINDS, Kind, PairRejection, Rejection, SearchCounts
from capacity.planning.space import Candidate

POOL = Pool(gpu="h100", tensor_parallel_size=2, quantization="fp8")


def test_every_kind_of_rejection_is_explained() -> None:
    assert set(KINDS) == set(get_args(Kind))


def test_a_rejection_names_its_hardware_and_a_pair_both_sides() -> None:
    alone = Rejection.from_candidate(Candidate(pool=POOL, replicas=3), "slo", "late", replicas=3)
    assert (alone.engine, alone.replicas) == ("h100 TP2 fp8", 3)
    prefill = POOL.model_copy(update={"tensor_parallel_size": 4})
    candidate = Candidate(pool=POOL, replicas=3, prefill=prefill, prefill_replicas=5)
    pair, any_number = (
        Rejection.from_candidate(candidate, "slo", "late", replicas=count) for count in (3, None)
    )
    assert isinstance(pair, PairRejection)
    assert isinstance(any_number, PairRejection)
    assert pair.engine == "h100 TP4 before TP2 fp8"
    assert (pair.prefill_replicas, any_number.prefill_replicas) == (5, None)


def test_the_share_that_was_simulated() -> None:
    counts = SearchCounts(engines=3, points=40, excluded=1, bounded=1, simulated=10, unresolved=0)
    assert counts.simulated_fraction == 0.25
    assert (
        SearchCounts(engines=0, points=0, excluded=0, bounded=0, simulated=0, unresolved=0).simulated_fraction
        == 0
    )
