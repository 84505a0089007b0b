"""One GPU and weight format: its incumbent, what it must beat, and why the rest is no answer."""

from __future__ import annotations

from planned_options import level, option, trial

from capacity.deployment import Pool
from capacity.planning.family import Ceiling, Family, describe_miss


def test_the_incumbent_is_the_least_objective_then_the_widest_margin() -> None:
    engine, other = option(), option(pool=Pool(gpu="h100", max_num_seqs=8))
    family = Family(options=[engine, other])
    assert not family.record(engine, 2, trial(1.5))
    assert family.objective == float("inf")
    assert family.record(engine, 4, trial(0.9))
    assert not family.record(engine, 5, trial(0.1))
    assert family.record(other, 4, trial(0.5))
    assert family.incumbent is not None
    assert family.incumbent.option is other
    assert (family.objective, len(family.met), len(family.missed)) == (4, 3, 1)


def test_an_incumbent_that_is_taken_back_leaves_the_next_best_and_loosens_the_ceiling() -> None:
    engine = option()
    ceiling = Ceiling(shared=True)
    family, rival = (Family(options=[engine], ceiling=ceiling) for _ in range(2))
    family.record(engine, 3, trial(0.9))
    family.record(engine, 2, trial(0.9, seen="sample"))
    assert (ceiling.value, rival.to_beat, ceiling.loosened) == (2, 2, False)
    assert family.retract() == (engine, 2)
    assert (family.objective, rival.to_beat, ceiling.loosened) == (3, 3, True)


def test_each_engine_is_turned_down_once_for_its_strongest_reason() -> None:
    missed, open_, met = (option(pool=Pool(gpu="h100", max_num_seqs=seqs)) for seqs in (1, 2, 3))
    family = Family(options=[missed, open_, met], open=[missed, open_])
    family.record(missed, 2, trial(1.5))
    family.record(missed, 3, trial(1.2))
    family.record(met, 2, trial(0.5))
    kinds = {rejection.pool.max_num_seqs: rejection.kind for rejection in family.rejections()}
    assert kinds == {1: "slo", 2: "unresolved"}
    assert len(family.rejections()) == 2


def test_a_miss_is_described_by_its_worst_level() -> None:
    late, mild = level(2.5), level(1.1, slo="tpot:p95:1s")
    assert describe_miss(trial(2.5, levels=(mild, late))) == "ttft:p95:1s: 2,500 ms, 2.50 times the limit"
    owed = level(None, good_fraction=0.9, required_fraction=0.99, met=False)
    assert "90.0% of requests within, 99.0% needed" in describe_miss(trial(2.0, levels=(owed,)))
