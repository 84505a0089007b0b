"""The spreads of intervals: what was fitted is plausible, judged, and found by engine and GPU."""

from __future__ import annotations

import pytest

from capacity.hardware.spreads import Spreads, load_spreads
from capacity.step.time_classes import EFFECTS


@pytest.fixture
def known() -> Spreads:
    return load_spreads()


def test_every_class_of_seconds_has_a_deviation_that_can_be(known: Spreads) -> None:
    """Kernels bound by memory are known best; none is known exactly, none is a guess of more than a factor."""
    assert set(known.classes) == set(EFFECTS)
    assert all(0.01 < deviation < 1.0 for deviation in known.classes.values())
    assert known.classes["memory"] < known.classes["experts"]
    assert known.fit.basis == "fitted"
    assert known.fit.rows > 500


def test_intervals_hold_for_sources_that_had_no_part_in_them(known: Spreads) -> None:
    """Nine in ten, as fitted: 85 to 95 % of sources where several were judged, and for each metric. Before any run an
    interval also covers other machines than those that constants were fitted to, so that these hold more."""
    for metric in ("TTFT", "TPOT", "E2E and throughput"):
        for kind in ("dense", "experts"):
            held = known.held[f"{metric}, {kind}"]
            assert held.sources >= 5
            assert (held.held + held.held_by_source) / 2 >= 0.85
            learnt = known.held[f"{metric}, {kind}, 1 own runs"]
            assert 0.85 <= (learnt.held + learnt.held_by_source) / 2 <= 0.95
        for kind in ("dense", "experts"):
            full = known.held[f"throughput of full engines, {kind}"]
            assert (full.held + full.held_by_source) / 2 >= 0.85
    assert known.held["TPOT, dense"].half_width < 0.2
    for tail in ("p99 of TTFT", "p99 of TPOT"):
        assert known.held[tail].held >= 0.85


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("metric", ["TTFT", "TPOT", "E2E and throughput"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_intervals_hold_after_runs_of_ones_own_too(known: Spreads, kind: str, metric: str, runs: int) -> None:
    """Of sources that had no part in them: 85 to 95 % of figures, and no wider than before but by a little."""
    held = known.held[f"{metric}, {kind}, {runs} own runs"]
    assert held.sources >= 5
    assert 0.85 <= held.held <= 0.95
    assert 0.85 <= held.held_by_source <= 0.95
    assert held.half_width < 1.1 * known.held[f"{metric}, {kind}"].half_width
    more = known.held[f"{metric}, {kind}, 3 own runs"]
    assert more.half_width <= held.half_width


def test_nothing_said_is_wider_and_still_held(known: Spreads) -> None:
    for metric in ("TTFT", "TPOT"):
        said, unsaid = (known.held[f"{metric}, dense{more}"] for more in ("", ", no settings"))
        assert unsaid.half_width > 1.2 * said.half_width
        assert unsaid.held >= 0.8


def test_kinds_are_by_model_metric_and_load(known: Spreads) -> None:
    assert known.kind("e2e", is_moe=False) == known.dense_e2e
    assert known.kind("e2e", is_moe=True, saturated=True) == known.moe_saturated
    assert known.kind("ttft", is_moe=True, saturated=True) == known.moe_ttft


def test_the_nearest_deployments_tell(known: Spreads) -> None:
    """This GPU's, else the engine's on others, else nothing; an engine never seen is started as the worst."""
    own = known.find_evidence("vllm", "h100-sxm-80gb", is_moe=False)
    other = known.find_evidence("vllm", "mi300x-192gb", is_moe=False)
    assert own is not None
    assert other is not None
    assert (own.gpu, other.gpu) == ("h100-sxm-80gb", None)
    assert other.deployments > own.deployments
    assert known.find_evidence("tgi", "h100-sxm-80gb", is_moe=False) is None
    worst = known.spread_of_unspecified("tgi", "max_num_seqs")
    assert worst is not None
    assert worst.ttft == max(each["max_num_seqs"].ttft for each in known.unsaid.values())


def test_tails_are_wider_the_farther_out(known: Spreads) -> None:
    for tail in known.tails.values():
        assert 0 < tail.p90 < tail.p95 < tail.p99
