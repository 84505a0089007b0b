"""What other machines differ by: found where it was put in, and judged by sources left out."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from capacity.answers.interval_parts import Z_90, Part
from capacity.answers.interval_parts import relative_ends as interval_ends
from capacity.hardware.spreads import MetricSpread, load_spreads

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
JUDGED, OTHERS = 0.05, 0.02
ENDS = {
    f"{kind}_{what}": (-1.2, 1.3)
    for kind in ("dense", "moe")
    for what in ("ttft", "tpot", "e2e", "saturated")
}


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("beyond_said")


def figure(metric: str, error: float, *, source: str = "a", said: str = "nothing", place: int = 0) -> Any:
    evidence, left_out = (importlib.import_module(name) for name in ("interval_evidence", "left_out"))
    found = evidence.Figure(
        source=source, group=f"{source} {place // 3}", run=str(place), gpu="h100-sxm-80gb", engine="vllm",
        version="vllm@0.15", model="m", is_moe=False, metric=metric, statistic="mean", said=said,
        measured_s=math.exp(error), predicted_s=1.0, queue_share=0.0, load_fraction=None, sensitivity={},
    )  # fmt: skip
    parts = (
        Part(name="memory", what="", deviation=JUDGED),
        Part(name="--max-num-seqs", what="", deviation=OTHERS, judged=False),
    )
    return left_out.Judged(found, source, parts, 0.0)


def drawn(sources: int, deviation: float) -> list[Any]:
    rng = np.random.default_rng(sources)
    return [
        figure(metric, rng.normal(0, deviation), source=f"s{source}", place=place)
        for source in range(sources)
        for place in range(9)
        for metric in ("ttft", "tpot")
    ]


@pytest.mark.parametrize("error", [-0.7, -0.2, 0.2, 0.9])
def test_with_what_it_needed_an_interval_just_holds(beyond: ModuleType, error: float) -> None:
    each = figure("tpot", error)
    needed = beyond._needed(each, ENDS)
    kind = MetricSpread(deployment=0.0, run=0.0, low=-1.2, high=1.3, rows=0)
    low, high = interval_ends((*each.parts, Part(name="", what="", deviation=needed, judged=False)), kind)
    assert (high if error > 0 else low) == pytest.approx(math.exp(error))
    assert beyond._needed(figure("tpot", 0.03), ENDS) == 0.0  # held as it is


def test_what_was_put_in_is_found_and_holds_of_sources_left_out(beyond: ModuleType) -> None:
    judged = drawn(40, 0.3)
    quantiles = beyond.fit_quantiles(judged, lambda _: ENDS, beyond.nothing_said)
    found = beyond.spreads_of(judged, ENDS, quantiles)["dense"]
    assert found.tpot == pytest.approx(0.3, rel=0.2)
    assert found.ttft == pytest.approx(0.3, rel=0.25)
    assert found.deployments == 40 * 3
    fresh = [each for each in drawn(41, 0.3) if each.figure.metric == "tpot"]
    wide = math.hypot(1.2 * JUDGED, Z_90 * math.hypot(OTHERS, found.tpot))
    assert np.mean([abs(each.figure.log_error) < wide for each in fresh]) == pytest.approx(0.9, abs=0.05)


def test_figures_of_the_judging_rows_are_not_used(beyond: ModuleType) -> None:
    published = [figure(metric, 0.5, said="as published") for metric in ("ttft", "tpot")]
    assert beyond.fit_quantiles(published, lambda _: ENDS, beyond.nothing_said) == {}
    assert beyond.spreads_of(published, ENDS, {"dense ttft": 0.9, "dense tpot": 0.9}) == {}


def test_other_machines_hold_nine_in_ten_of_sources_counted_once(beyond: ModuleType) -> None:
    """Sources of forty figures and of six weigh the same; one that is far off decides once it is a fifth of them."""

    def other_lab(source: str, error: float, count: int) -> list[Any]:
        return [
            figure(metric, error, source=source, said="other lab", place=3 * place)
            for place in range(count)
            for metric in ("ttft", "tpot")
        ]

    near = [each for source in range(4) for each in other_lab(f"c{source}", 0.0, 40)]
    level = {"dense ttft": 0.9, "dense tpot": 0.9}
    assert beyond.other_machines(near, ENDS, level)["dense"].tpot == 0.0
    far = other_lab("far", 0.5, 6)
    found = beyond.other_machines([*near, *far], ENDS, level)["dense"]
    assert found.tpot == pytest.approx(beyond._needed(far[1], ENDS), abs=1e-3)
    more = [each for source in range(4, 16) for each in other_lab(f"c{source}", 0.0, 6)]
    assert beyond.other_machines([*near, *more, *far], ENDS, level)["dense"].tpot == 0.0


@pytest.mark.usefixtures("beyond")
def test_the_part_for_machines_is_made_without_the_campaign_that_is_judged() -> None:
    """A laboratory far off widens the intervals of all other campaigns, but not those that judge it."""
    fit = importlib.import_module("fit_spreads")
    near = [
        figure(metric, error, source=f"n{source} x", said="all", place=place)
        for source in range(5)
        for place, error in enumerate(np.random.default_rng(source).normal(0, 0.06, 9))
        for metric in ("ttft", "tpot")
    ]
    far = [
        figure(m, 0.6, source="far x", said="other lab", place=p) for p in range(9) for m in ("ttft", "tpot")
    ]
    machines = fit.Machines(judged=[*near, *far], ends=ENDS, quantiles={"dense ttft": 0.9, "dense tpot": 0.9})
    assert machines.without()["dense"].tpot > 3 * machines.without("far")["dense"].tpot
    rows = fit.holds([*near, *far], dict.fromkeys((*fit.KINDS, *fit.E2E_KINDS), 0.05), machines)
    found = {each.label: each for each in fit.coverage(rows, fit.by_level)}
    assert set(found) == {"TTFT, dense, full launch line", "TPOT, dense, full launch line"}
    assert found["TPOT, dense, full launch line"].sources == 6
    for each, inside, half_width in rows:
        is_far = each.figure.source == "far x"
        assert inside != is_far
        assert (half_width > 0.5) != is_far


def test_the_part_of_a_figure_is_that_of_the_product(beyond: ModuleType) -> None:
    known = load_spreads()
    least, most = known.other_machines, known.beyond_said
    (all_said,) = beyond.parts_of(figure("tpot", 0.5, said="all").figure, least, most)
    (nothing_said,) = beyond.parts_of(figure("tpot", 0.5).figure, least, most)
    assert all_said.deviation == pytest.approx(least["dense"].tpot, rel=1e-12)
    assert nothing_said.deviation == pytest.approx(max(least["dense"].tpot, most["dense"].tpot), rel=1e-12)


def test_the_file_has_what_other_laboratories_showed() -> None:
    known = load_spreads()
    assert known.other_machines_fit is not None
    assert "ML.ENERGY" in known.other_machines_fit.source
    assert known.beyond_said_fit is not None
    assert "blind" not in known.beyond_said_fit.source
    assert known.other_machines["dense"].ttft > 0
    for kind in ("dense", "moe"):
        assert known.other_machines[kind].tpot > 0
    assert known.beyond_said["moe"].tpot > known.beyond_said["dense"].tpot  # experts: more choices of kernels
    assert (
        known.classes["experts"] > known.classes["memory"]
    )  # most of what differs between machines is in the classes
