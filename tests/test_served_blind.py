"""The blind judge's table: every row can be asked, and its requests are those of its source."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from capacity.deployment import Pool
from capacity.pool.resolve import resolve

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import served_blind as blind
finally:
    sys.path.remove(str(BENCHMARKS))

ROWS = blind.read_rows()


def row(**fields: str) -> dict[str, str]:
    """The first row with these fields."""
    return next(each for each in ROWS if fields.items() <= each.items())


def test_every_row_says_where_it_is_from_and_can_be_asked() -> None:
    assert len(ROWS) >= 194
    assert len({each["source"] for each in ROWS}) >= 20
    for each in ROWS:
        assert each["source"], each
        assert each["url"].startswith("https://"), each
        assert each["date"], each
        assert blind.figures_of(each), each
        assert bool(each["concurrency"]) != bool(each["rate"]), each
        resolve(each["model"], Pool.model_validate(blind.pool_fields(each)))


def test_judged_rows_are_asked_like_blind_rows_and_no_fit_reads_them() -> None:
    judged = blind.read_rows(blind.JUDGED)
    assert len({each["gpu"] for each in judged}) >= 9
    assert {each["url"] for each in judged}.isdisjoint(each["url"] for each in ROWS)
    for each in judged:
        assert each["url"].startswith("https://"), each
        resolve(each["model"], Pool.model_validate(blind.pool_fields(each)))
    readers = [path.name for path in BENCHMARKS.glob("*.py") if "JUDGED" in path.read_text()]
    assert sorted(readers) == ["gate.py", "head_to_head.py", "interval_widths.py", "served_blind.py"]


def test_judged_rows_on_mi300x_are_inside_their_intervals() -> None:
    """They were 31 to 46 % too fast, four of eight outside, before the chip's share of the rates was fitted."""
    rows = [each for each in blind.read_rows(blind.JUDGED) if each["gpu"] == "mi300x-192gb"]
    found = blind.predictions(rows)
    tpots = [each.error for each in found if each.metric == "tpot"]
    assert len(tpots) == 16
    assert np.median(np.abs(tpots)) < 0.1
    assert np.mean([each.inside for each in found]) >= 0.9


@pytest.mark.parametrize(
    ("lengths", "prompts", "sums"),
    [
        (("1000", "1000"), "10", (6101, 4220)),
        (("1000", "1000"), "80", (39668, 40805)),
        (("1000", "1000"), "500", (249831, 252662)),
    ],
)
def test_lengths_are_drawn_as_the_benchmark_drew_them(
    lengths: tuple[str, str], prompts: str, sums: tuple[int, int]
) -> None:
    """The sums are those that SGLang's cookbook prints of its runs."""
    own = row(lengths="sglang", input_len=lengths[0], output_len=lengths[1], prompts=prompts)
    assert tuple(int(each.sum()) for each in blind.lengths_of(own)) == sums


def test_what_counts_of_a_run() -> None:
    second = row(counted="second pass", concurrency="8")
    workload = blind.workload_of(second)
    count = int(second["prompts"])
    assert len(workload) == 2 * count
    assert blind.counted_of(second, 2 * count) == slice(count, 2 * count)
    assert workload.arrival_s[count - 1] == 0
    assert workload.arrival_s[count] > 3600
    assert blind.counted_of(row(counted="steady", concurrency="50"), 300) == slice(100, 250)
    assert blind.counted_of(row(source="dstack"), 500) == slice(0, 500)


def test_a_prompt_that_was_sent_before_is_in_the_cache() -> None:
    own = row(counted="second pass", concurrency="8")
    (again, _), (first, _) = blind.judged(own), blind.judged({**own, "counted": ""})
    assert again.metric == first.metric == "ttft"
    assert again.predicted.value < first.predicted.value / 2


def test_a_row_is_judged_by_its_own_statistic() -> None:
    own = row(source="Tenstorrent's GPU runs", gpu="rtx-4090-24gb", input_len="128")
    (found,) = blind.judged(own)
    assert (found.metric, found.measured, found.is_moe) == ("tpot", 10.4, False)
    assert found.error == pytest.approx(found.predicted.value / 10.4 - 1)
    assert found.inside == (found.predicted.low <= 10.4 <= found.predicted.high)
    line = blind.summary("one", [found])
    assert f"{abs(found.error):.1%}" in line
    assert ("100%" if found.inside else "0%") in line


def test_a_throughput_is_of_the_whole_run() -> None:
    own = row(source="SGLang threads", settings="tensor_parallel_size=4", concurrency="8")
    found = blind.judged(own)
    assert [each.metric for each in found] == ["throughput"]
    longer = blind.judged({**own, "prompts": "16"})[0].predicted.value
    assert math.isclose(longer, found[0].predicted.value, rel_tol=0.1)


def test_rows_that_cannot_be_predicted_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    beyond = {**row(source="Vultr"), "settings": "max_model_len=4096", "input_len": "99999", "prompts": "2"}
    assert blind.predictions([beyond]) == []
    assert capsys.readouterr().err.startswith("Vultr nemotron-3-nano b200-sxm-180gb vllm@0.16")


def test_the_script_prints_and_saves_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert blind.main(["--only", "A6000 lab", "--rows", "--save", str(tmp_path / "found.csv")]) == 0
    printed = capsys.readouterr().out
    assert "rtx-a6000-48gb" in printed
    assert "A6000 lab" in printed
    saved = (tmp_path / "found.csv").read_text().splitlines()
    assert len(saved) == 1 + 2
    assert saved[0].startswith("source,gpu,engine")
    assert np.isfinite(float(saved[1].split(",")[-1]))
