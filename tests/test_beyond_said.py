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
    quantiles = beyond.fit_quantiles(judged, lambda _: ENDS)
    found = beyond.spreads_of(judged, ENDS, quantiles)["dense"]
    assert found.tpot == pytest.approx(0.3, rel=0.2)
    assert found.ttft == pytest.approx(0.3, rel=0.25)
    assert found.deployments == 40 * 3
    fresh = [each for each in drawn(41, 0.3) if each.figure.metric == "tpot"]
    wide = math.hypot(1.2 * JUDGED, Z_90 * math.hypot(OTHERS, found.tpot))
    assert np.mean([abs(each.figure.log_error) < wide for each in fresh]) == pytest.approx(0.9, abs=0.05)


def test_figures_of_the_judging_rows_are_not_used(beyond: ModuleType) -> None:
    published = [figure(metric, 0.5, said="as published") for metric in ("ttft", "tpot")]
    assert beyond.fit_quantiles(published, lambda _: ENDS) == {}
    assert beyond.spreads_of(published, ENDS, {"dense ttft": 0.9, "dense tpot": 0.9}) == {}


def test_other_machines_are_nine_in_ten_figures_with_campaigns_alike(beyond: ModuleType) -> None:
    """Nine campaigns that are predicted exactly, one that is far off: only the tenth's share of figures decides."""
    near = [
        figure(metric, 0.0, source=f"c{source}", said="other lab", place=place)
        for source in range(4)
        for place in range(9)
        for metric in ("ttft", "tpot")
    ]
    far = [
        figure(m, 0.5, source="far", said="other lab", place=p) for p in range(9) for m in ("ttft", "tpot")
    ]
    assert beyond.other_machines(near, ENDS)["dense"].tpot == 0.0
    found = beyond.other_machines([*near, *far], ENDS)["dense"]
    assert found.tpot == pytest.approx(beyond._needed(far[1], ENDS), abs=1e-3)


def test_the_part_of_a_figure_is_that_of_the_product(beyond: ModuleType) -> None:
    known = load_spreads()
    least, most = known.other_machines, known.beyond_said
    (all_said,) = beyond.parts_of(figure("tpot", 0.5, said="all").figure, least, most)
    (nothing_said,) = beyond.parts_of(figure("tpot", 0.5).figure, least, most)
    assert all_said.deviation == least["dense"].tpot
    assert nothing_said.deviation == max(least["dense"].tpot, most["dense"].tpot)


def test_the_file_has_what_other_laboratories_showed() -> None:
    known = load_spreads()
    assert known.other_machines_fit is not None
    assert "ML.ENERGY" in known.other_machines_fit.source
    assert known.beyond_said_fit is not None
    assert "blind" not in known.beyond_said_fit.source
    for kind in ("dense", "moe"):
        assert known.other_machines[kind].ttft > 0
        assert known.other_machines[kind].tpot > 0
    assert known.other_machines["moe"].tpot > known.other_machines["dense"].tpot
