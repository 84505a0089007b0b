"""Evidence that ships: every row names a source of docs/evidence.md with a licence, and stands for the whole tables."""

from __future__ import annotations

import csv
import os
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from capacity.hardware.profile import UNMEASURED_RESIDUALS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "evidence.md"
DATA = ROOT / "tests" / "data"
SAMPLE = DATA / "measured"
BENCHMARKS = ROOT / "benchmarks"
FREE = {"Apache-2.0", "MIT", "BSD-3-Clause"}
MOST_BYTES = 340_000
LEAST_ROWS = 500
CONSTANTS = "fold_constants.csv"


class Line(NamedTuple):
    """One source on the page; `key` is what rows call it, `repository` its `owner/name`."""

    key: str
    repository: str
    licence: str
    used_for: str
    rows: str

    def names(self, source: str) -> bool:
        return self.key in source or (self.repository != "" and self.repository in source)


def lines() -> list[Line]:
    """Every line of the page's tables."""
    found = []
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if (
            text.startswith("|")
            and len(cells) >= 5
            and not set(cells[0]) <= {"-", " "}
            and cells[0] != "source"
        ):
            repository = re.search(r"https://github\.com/([\w.-]+/[\w.-]+)", cells[1])
            name = repository.group(1) if repository else ""
            found.append(Line(cells[0].strip("`"), name, cells[3], cells[4], cells[5] if cells[5:] else ""))
    return found


class Row(NamedTuple):
    """One row that ships."""

    file: str
    source: str
    used_for: str


def shipped() -> list[Row]:
    """Every row of the sample and of the published steps."""
    found = []
    for path in (*sorted(SAMPLE.glob("*.csv")), DATA / "published_steps.csv"):
        if path.name != CONSTANTS:
            with path.open(encoding="utf-8", newline="") as file:
                found += [Row(path.stem, row["source"], row["used_for"]) for row in csv.DictReader(file)]
    return found


def test_what_ships_is_modest_and_enough() -> None:
    assert len(shipped()) >= LEAST_ROWS
    assert sum(path.stat().st_size for path in (*DATA.glob("*.csv"), *SAMPLE.iterdir())) < MOST_BYTES


def test_every_row_that_ships_names_a_source_that_may_be_copied() -> None:
    rows: Counter[str] = Counter()
    for row in set(shipped()):
        named = [line for line in lines() if line.rows and row.source.startswith(line.key)]
        assert len(named) == 1, row
        assert named[0].licence in FREE, row
        assert row.used_for in named[0].used_for.split(", "), row
    for row in shipped():
        rows[next(line.key for line in lines() if row.source.startswith(line.key))] += 1
    if os.environ.get("UPDATE_README"):
        write_counts(rows)
    assert {line.key: int(line.rows) for line in lines() if line.rows} == rows


def write_counts(rows: Counter[str]) -> None:
    """The page with these numbers of rows."""
    text = PAGE.read_text(encoding="utf-8")
    for key, count in rows.items():
        text = re.sub(rf"(?m)^(\| `{re.escape(key)}` \|.*\| )\d+ \|$", rf"\g<1>{count} |", text)
    PAGE.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("withheld", ["InferenceX", "inference-sim", "IOG", "APEX", "Qwen", "e2e"])
def test_nothing_ships_whose_licence_is_not_stated(withheld: str) -> None:
    assert not [row for row in shipped() if withheld in row.source or withheld in row.file]


REPOSITORIES = re.compile(r"<!-- start-up lines -->\n(.*?)\n*(?=\n## )", re.S)


def startup_lines() -> list[dict[str, str]]:
    with (DATA / "startup_lines.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_lists_where_start_up_lines_come_from() -> None:
    """`UPDATE_README=1` writes the list."""
    counts = Counter(
        "/".join(re.split(r"[/ ]", row["source"].split("://", 1)[1])[1:3]) for row in startup_lines()
    )
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_README"):
        wrapped = "\n".join(textwrap.wrap(listed, 120, break_on_hyphens=False, break_long_words=False))
        text = REPOSITORIES.sub(f"<!-- start-up lines -->\n{wrapped}\n", text)
        PAGE.write_text(text, encoding="utf-8")
    shown = REPOSITORIES.search(text)
    assert shown is not None
    assert " ".join(shown.group(1).split()) == listed


def test_every_start_up_line_names_its_thread_and_part() -> None:
    rows = startup_lines()
    assert all("https://" in row["source"] and row["date"] for row in rows)
    assert {row["part"] for row in rows} <= {"tuned", "aside"}


def fitted_sources(value: Any) -> Iterator[str]:
    """The source of every fit in a profile: coefficient sets, residuals, and facts whose basis is a fit."""
    if isinstance(value, dict):
        fit = value.get("fit")
        if isinstance(fit, dict) and "source" in fit:
            yield fit["source"]
        if value.get("basis") == "fitted" and "source" in value:
            yield value["source"]
        for inner in value.values():
            yield from fitted_sources(inner)


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "hardware_profiles").glob("*.toml")), UNMEASURED_RESIDUALS],
    ids=lambda path: path.stem,
)
def test_every_fit_of_a_profile_names_a_line(path: Path) -> None:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    found = set(fitted_sources(document))
    assert found or "families" not in document["step_time"]
    for source in found:
        assert any(line.names(source) for line in lines()), source


# against the whole tables


def test_the_sample_is_what_is_drawn_from_the_whole(benchmark: Any, shared_dir: Path) -> None:
    """Every figure of every table, and, to what solvers on two machines differ by, the fits beside them."""
    transcribe = benchmark("transcribe")
    tables = transcribe.tables(shared_dir / "reference/measured")
    assert {path.stem for path in SAMPLE.glob("*.csv")} == {*tables, Path(CONSTANTS).stem}
    for name, table in tables.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        assert (SAMPLE / f"{name}.csv").read_text(encoding="utf-8") == text, name


@pytest.fixture(scope="module")
def predictions() -> Any:
    """Held-out kernels of a folder of tables by operator, computed once."""
    kept: dict[Path, Any] = {}

    def of(accuracy: ModuleType, measured: Path) -> Any:
        if measured not in kept:
            kept[measured] = accuracy.kernel_predictions(measured)
        return kept[measured]

    return of


@pytest.mark.slow
def test_the_sample_errs_as_the_whole_does(benchmark: Any, shared_dir: Path, predictions: Any) -> None:
    """Median and 90th percentile of each class lie within two standard errors of those of the whole."""
    accuracy = benchmark("accuracy")
    folders = (SAMPLE, shared_dir / "reference/measured")
    for label, name, wanted, regime, _ in accuracy.TARGETS:
        sample, whole = (
            [
                abs(k.held_out_s / k.measured_s - 1)
                for k in predictions(accuracy, folder)[name]
                if wanted(k.key) and regime in ("", k.regime)
            ]
            for folder in folders
        )
        for fraction in (0.5, 0.9):
            width = 2 * np.sqrt(fraction * (1 - fraction) / len(sample))
            low, high = np.quantile(whole, [max(0, fraction - width), min(1, fraction + width)])
            assert low <= np.quantile(sample, fraction) <= high, (label, fraction)


@pytest.mark.slow
def test_a_kernel_of_the_sample_is_held_out_as_in_the_whole(
    benchmark: Any, shared_dir: Path, predictions: Any
) -> None:
    """The stored constants predict what a fit of the whole tables predicts of the same kernel."""
    accuracy = benchmark("accuracy")
    alike: dict[Any, list[Any]] = {}
    for name, rows in predictions(accuracy, shared_dir / "reference/measured").items():
        for k in rows:
            alike.setdefault((name, k.key, k.row), []).append(k)
    differences = []
    for name, rows in predictions(accuracy, SAMPLE).items():
        for k in rows:
            same = min(alike[name, k.key, k.row], key=lambda other: abs(other.measured_s / k.measured_s - 1))
            assert same.measured_s == pytest.approx(k.measured_s, rel=1e-5)
            differences.append(k.held_out_s / same.held_out_s - 1)
    assert len(differences) > LEAST_ROWS
    assert np.max(np.abs(differences)) < 0.02


def test_the_reader_takes_the_whole_table_where_both_are(benchmark: Any, tmp_path: Path) -> None:
    form = benchmark("reference_tables.form")
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "t.csv", index=False)
    assert form.read(tmp_path, "t").a.tolist() == [1]
    pd.DataFrame({"a": [1, 2]}).to_csv(tmp_path / "t.csv.gz", index=False)
    assert form.read(tmp_path, "t").a.tolist() == [1, 2]


def test_constants_without_a_fold_come_back_as_written(benchmark: Any, tmp_path: Path) -> None:
    held_out = benchmark("reference_tables.held_out")
    families = benchmark("reference_tables").operators(SAMPLE)
    folds = held_out.fold_constants(SAMPLE, families)
    assert {table: len(sets) for table, sets in folds.items()} == dict.fromkeys(folds, 5)
    held_out.write_folds(tmp_path / CONSTANTS, folds)
    assert held_out.read_folds(tmp_path / CONSTANTS, families) == folds


def test_rows_are_drawn_evenly_over_their_order(benchmark: Any) -> None:
    spread = benchmark("transcribe").spread
    assert spread(list(range(100)), 4) == [12, 37, 62, 87]
    assert spread([1, 2, 3], 5) == [1, 2, 3]
