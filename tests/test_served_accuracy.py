"""Served runs, interval coverage and calibration are as docs/accuracy.md says; UPDATE_README=1 writes its tables."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
SPREADS = ROOT / "capacity" / "hardware" / "spreads.toml"


def page_table(heading: str) -> dict[str, list[str]]:
    """Cells of the page's table under this heading cell, by the first of each row."""
    table = PAGE.read_text(encoding="utf-8").split(f"| {heading} |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {label: cells for label, *cells in rows}


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def judged_cells(row: dict[str, float]) -> list[str]:
    """Figures of sources left out, how many intervals held, of sources alike, and their half-width."""
    return [f"{row['figures']:.0f}", *(share(row[key]) for key in ("held", "held_by_source", "half_width"))]


def write_table(heading: str, rows: dict[str, list[str]]) -> None:
    """The page's table under this heading cell, its head as it was."""
    head, rest = PAGE.read_text(encoding="utf-8").split(f"| {heading} |", 1)
    table, after = rest.split("\n\n", 1)
    lines = [
        *table.splitlines()[:2],
        *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items()),
    ]
    PAGE.write_text(f"{head}| {heading} |" + "\n".join(lines) + f"\n\n{after}", encoding="utf-8")


@pytest.mark.parametrize(
    "heading", ["90 % intervals, sources left out", "90 % intervals after own runs, sources left out"]
)
def test_the_pages_intervals_are_those_that_were_judged(heading: str) -> None:
    """Both as `spreads.toml` has them; UPDATE_README=1 writes them."""
    held = tomllib.loads((SPREADS).read_text(encoding="utf-8"))["held"]
    rows = {}
    for label in page_table(heading):
        after = [held[f"{label}{runs}"] for runs in OWN_RUNS_JUDGED if f"{label}{runs}" in held]
        rows[label] = (
            [f"{share(row['held'])}, {share(row['half_width'])}" for row in after]
            if "own runs" in heading
            else judged_cells(held[label])
        )
    if os.environ.get("UPDATE_README"):
        write_table(heading, rows)
    assert page_table(heading) == rows


@pytest.mark.ci
def test_the_pages_coverage_by_vendor_is_that_of_the_rows_that_judge(benchmark: object) -> None:
    """Rows of `judged_runs.csv`, which no fit reads; UPDATE_README=1 writes them."""
    widths, blind = benchmark("interval_widths"), benchmark("blind_figures")  # type: ignore[operator]
    fit, served = benchmark("fit_spreads"), benchmark("served_blind")  # type: ignore[operator]
    judged = widths.held(blind.blind_figures(served.read_rows(served.JUDGED)))
    heading = "90 % intervals, rows that judge"
    rows = {each.label: judged_cells(vars_of(each)) for each in fit.coverage(judged, widths.by_vendor)}
    if os.environ.get("UPDATE_README"):
        write_table(heading, rows)
    assert page_table(heading) == rows


def vars_of(each: object) -> dict[str, float]:
    return {key: getattr(each, key) for key in ("figures", "held", "held_by_source", "half_width")}


OWN_RUNS_JUDGED = ("", ", 1 own runs", ", 2 own runs", ", 3 own runs")
OWN_RUNS = "own runs | TPOT, dense | TTFT, dense | TPOT, experts | TTFT, experts"
OWN_RUNS_LEARNT = ("none", "1", "2", "2, suggested", "3")


def own_runs_claimed(learnt: str) -> dict[tuple[str, str], tuple[float, ...]]:
    """Median and p90 error, share of intervals that held and half-width, in per cent, by class and metric."""
    cells = page_table(OWN_RUNS)[learnt]
    keys = [(kind, metric) for kind in ("dense", "experts") for metric in ("tpot", "ttft")]
    return {
        key: tuple(float(number) for number in re.findall(r"[\d.]+", cell))
        for key, cell in zip(keys, cells, strict=True)
    }


SHORT_RUNS = {  # groups that are replayed in a second or three
    "dense": {"backend": "sglang", "model": "qwen3-32b", "concurrency": 16},
    "experts": {
        "backend": "vllm",
        "model": "gpt-oss-120b",
        "version": "0.18.0",
        "output_len": 1024,
        "concurrency": 8,
    },
}


@pytest.mark.ci
@pytest.mark.parametrize("kind", SHORT_RUNS)
def test_two_runs_of_ones_own_do_what_the_accuracy_page_says(
    benchmark: object, shared_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One group a class, by few of its rows: not further off than most of all groups. Of engines whose deployments are
    alike, and with all of their launch said, both were known about as well before."""
    module, data = benchmark("calibration"), benchmark("served_data")  # type: ignore[operator]
    monkeypatch.setattr(module, "LEARNT", (0, 2))
    alike = SHORT_RUNS[kind]
    rows = [
        row
        for row in data.read_rows(shared_dir, dense=kind == "dense", moe=kind != "dense")
        if all(getattr(row, key) == wanted for key, wanted in alike.items() if key != "concurrency")
        and row.concurrency <= alike["concurrency"]
        and (kind != "dense" or row.tensor_parallel > 1)
    ]
    found, groups = module.judged_groups(rows, draws=1, most=6)
    assert len(groups) == 1
    for metric in ("tpot", "ttft"):
        before, after = (
            [each for each in found if each.metric == metric and each.learnt == learnt and not each.suggested]
            for learnt in (0, 2)
        )
        _, p90, _, _ = own_runs_claimed("2")[kind, metric]
        assert 100 * np.median([abs(each.error_beyond) for each in after]) < p90
        assert np.mean([each.held for each in after]) >= 0.5
        widths = [np.median([each.half_width for each in group]) for group in (before, after)]
        assert widths[1] < 1.2 * widths[0]


def test_what_the_accuracy_page_says_of_the_table_of_own_runs_is_in_it() -> None:
    before, after = own_runs_claimed("none"), own_runs_claimed("3")
    narrowed = {key: 1 - after[key][3] / before[key][3] for key in before}
    assert narrowed["dense", "ttft"] == pytest.approx(1 / 4, abs=0.05)
    assert narrowed["dense", "tpot"] == pytest.approx(1 / 10, abs=0.05)
    assert narrowed["experts", "tpot"] == pytest.approx(1 / 10, abs=0.05)
    assert narrowed["experts", "ttft"] == pytest.approx(0, abs=0.05)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    by_class = (
        "dense models' TTFT by a quarter, that of TPOT by a tenth, and that of experts' TTFT not at all"
    )
    assert f"narrows the interval of {by_class}" in text


@pytest.mark.slow
def test_runs_of_ones_own_teach_what_the_accuracy_page_says(benchmark: object, shared_dir: Path) -> None:
    """All groups by other sources' spreads, eight minutes: all figures of the table. UPDATE_README=1 writes it."""
    module, data = benchmark("calibration"), benchmark("served_data")  # type: ignore[operator]
    spreads = benchmark("fit_spreads")  # type: ignore[operator]
    known = spreads.of_others(spreads.figures_of(shared_dir, None))
    found, dense = module.judged_groups(data.read_rows(shared_dir), draws=2, most=10, known=known)
    shown: dict[tuple[str, str, str], tuple[float, ...]] = {}
    for learnt in OWN_RUNS_LEARNT:
        number, _, how = learnt.partition(", ")
        for kind, metric in own_runs_claimed(learnt):
            own = [
                each
                for each in found
                if dense[each.group] == (kind == "dense")
                and each.metric == metric
                and each.learnt == (0 if number == "none" else int(number))
                and each.suggested == (how == "suggested")
            ]
            errors = 100 * np.abs([each.error_beyond for each in own])
            shown[learnt, kind, metric] = (
                np.median(errors),
                np.percentile(errors, 90),
                100 * np.mean([each.held for each in own]),
                100 * np.median([each.half_width for each in own]),
            )
    if os.environ.get("UPDATE_README"):
        write_own_runs(shown)
    for (learnt, kind, metric), figures in shown.items():
        assert figures == pytest.approx(own_runs_claimed(learnt)[kind, metric], abs=0.6), (
            learnt,
            kind,
            metric,
        )


def write_own_runs(shown: dict[tuple[str, str, str], tuple[float, ...]]) -> None:
    """The page's table of these figures."""
    head, rest = PAGE.read_text(encoding="utf-8").split(f"| {OWN_RUNS} |\n", 1)
    table, after = rest.split("\n\n", 1)
    lines = table.splitlines()[:1]
    for learnt in OWN_RUNS_LEARNT:
        cells = [
            "{:.1f} / {:.0f} %, {:.0f} %, {:.0f} %".format(*shown[learnt, kind, metric])
            for kind in ("dense", "experts")
            for metric in ("tpot", "ttft")
        ]
        lines.append(f"| {learnt} | {' | '.join(cells)} |")
    PAGE.write_text(f"{head}| {OWN_RUNS} |\n" + "\n".join(lines) + f"\n\n{after}", encoding="utf-8")


@pytest.mark.slow
def test_served_runs_are_as_far_off_as_the_accuracy_page_says(benchmark: object, shared_dir: Path) -> None:
    """All of them, half a minute. UPDATE_README=1 writes the table."""
    served, data = benchmark("served_rows"), benchmark("served_data")  # type: ignore[operator]
    scored = benchmark("served_errors").scored  # type: ignore[operator]
    found = [served.by_simulation(row) for row in data.read_rows(shared_dir) if scored(row)]
    runs = benchmark("served_open")  # type: ignore[operator]
    groups = {
        "closed loops, dense": [each for each in found if each.row.dense],
        "closed loops, experts": [each for each in found if not each.row.dense],
        "open loops, 7B to 70B, vLLM V1 on H100": list(runs.inference_sim_runs(shared_dir)),
        "open loops, 3B to 70B, vLLM on H100 PCIe": list(runs.iog_runs(shared_dir)),
    }
    shown = {}
    for label in page_table("served runs"):
        errors = [np.abs([each.error(metric) for each in groups[label]]) for metric in ("tpot_s", "ttft_s")]
        known = [each[~np.isnan(each)] for each in errors]
        assert len(known[0]) == len(known[1])
        cells = [f"{100 * np.median(each):.1f} / {100 * np.quantile(each, 0.9):.1f} %" for each in known]
        shown[label] = [str(len(known[0])), *cells]
    if os.environ.get("UPDATE_README"):
        write_table("served runs", shown)
    assert page_table("served runs") == shown
