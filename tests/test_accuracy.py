"""Replayed evidence: the step model against published measurements, within the errors that it claims."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from capacity.hardware import load_profile
from capacity.hardware.calibration import fit_constants, fit_pool

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> object:
    """Import a benchmark script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def errors(evidence: list, **chosen: str) -> np.ndarray:
    return np.array([e.error for e in evidence if all(getattr(e, k) == v for k, v in chosen.items())])


def test_published_steps_are_predicted_within_the_claimed_error(benchmark: object) -> None:
    """75 steps of gpt-fast, LMDeploy and TensorRT-LLM documents; measured 2026-11-21, bounds a little above."""
    found = list(benchmark("step_evidence").published())  # type: ignore[operator]
    assert len(found) == 75
    decode, prefill = errors(found, regime="decode"), errors(found, regime="prefill")
    assert np.median(np.abs(decode)) < 0.08  # 7.1 %
    assert np.quantile(np.abs(decode), 0.9) < 0.20  # 17 %
    assert np.median(np.abs(prefill)) < 0.17  # 14.7 %: 2024's kernels, and L40S tables 30 % slow
    assert np.quantile(np.abs(prefill), 0.9) < 0.36


def test_published_steps_lie_in_their_intervals(benchmark: object) -> None:
    """Nine of ten measurements must lie in the 90 % band; 80 % allows for 75 rows of few origins."""
    found = list(benchmark("step_evidence").published())  # type: ignore[operator]
    inside = []
    for e in found:
        residuals = load_profile(e.gpu).step_time.residuals[e.regime]
        inside.append(residuals.low <= e.measured_s / e.predicted_s - 1 <= residuals.high)
    assert np.mean(inside) >= 0.8


def test_the_short_form_runs_without_the_library() -> None:
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "accuracy.py"), "--measured", "/nonexistent"],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
    )
    assert run.returncode == 0, run.stderr
    assert "TensorRT-LLM: prefill" in run.stdout
    assert "Reliability" in run.stdout


def claims() -> dict[str, tuple[str, ...]]:
    """The rows of the README's accuracy table: label to (rows, median, p90, bias)."""
    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    table = readme.split("| predicted against measured |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: tuple(row[1:]) for row in rows}


def said(line: object) -> tuple[str, ...]:
    """A line of the benchmark as the README writes it."""
    return (str(line.rows), f"{line.median:.1%}", f"{line.p90:.1%}", f"{line.bias:+.1%}")  # type: ignore[attr-defined]


PUBLISHED = ("gpt-fast: decode", "LMDeploy: decode", "TensorRT-LLM: prefill")


def test_the_readme_says_what_published_steps_show(benchmark: object) -> None:
    accuracy = benchmark("accuracy")  # type: ignore[operator]
    lines = {line.label: line for line in accuracy.step_table(accuracy.all_evidence(None))}
    for label in PUBLISHED:
        assert claims()[label] == said(lines[label])


# where the reference library is at hand


def test_the_readme_says_what_the_measured_tables_show(benchmark: object, shared_dir: Path) -> None:
    accuracy = benchmark("accuracy")  # type: ignore[operator]
    measured = shared_dir / "reference/measured"
    classes, _ = accuracy.kernel_tables(measured)
    lines = {line.label: line for line in (*classes, *accuracy.step_table(accuracy.all_evidence(measured)))}
    for label, claim in claims().items():
        assert claim == said(lines[label]), label


def test_one_table_gives_back_its_profiles_numbers(benchmark: object, shared_dir: Path) -> None:
    """`fit_profiles.py` reproduces them all in half a minute; here one of them."""
    tables = benchmark("reference_tables").gemm(shared_dir / "reference/measured", quantized=False)  # type: ignore[operator]
    constants = fit_constants(tables.predict, tables.tables["h100", "vllm", "bf16"], tables.parameters)
    stored = load_profile("h100").step_time.families["vllm"].gemm["bf16"]
    for name, value in constants.items():
        assert getattr(stored, name) == pytest.approx(value, rel=1e-3), name


def test_every_step_of_the_vllm_log(benchmark: object, shared_dir: Path) -> None:
    found = list(benchmark("step_evidence").step_log(shared_dir / "reference/measured"))  # type: ignore[operator]
    error = np.abs(errors(found))
    assert np.median(error) < 0.08
    assert np.quantile(error, 0.9) < 0.20


@pytest.mark.parametrize(
    ("table", "median", "p90"), [("silicon_e2e_dense", 0.06, 0.16), ("silicon_e2e_moe", 0.14, 0.35)]
)
def test_served_token_times_by_formula(
    benchmark: object, shared_dir: Path, table: str, median: float, p90: float
) -> None:
    found = list(benchmark("step_evidence").served(shared_dir / "reference/measured", table))  # type: ignore[operator]
    error = np.abs(errors(found))
    assert len(error) > 200
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


def test_profiles_are_what_the_fit_writes(shared_dir: Path) -> None:
    run = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "fit_profiles.py"),
            "--check",
            "--measured",
            str(shared_dir / "reference/measured"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


@pytest.mark.parametrize(
    ("constant", "factor", "kept"),
    [
        ("one_shot_fixed_s", 1.0, True),
        ("one_shot_fraction", 0.054, True),  # nothing in this table's rows depends on it
        ("two_shot_fraction", 1.01, False),
        ("sharpness", 0.98, False),
        ("two_shot_fixed_s", 1.05, False),
        ("one_shot_fraction", 3.0, False),  # above what is physical
    ],
)
def test_stored_constants_stay_only_where_they_fit_as_well(
    benchmark: object, shared_dir: Path, constant: str, factor: float, kept: bool
) -> None:
    fit_profiles = benchmark("fit_profiles")  # type: ignore[operator]
    operator = benchmark("reference_tables").all_reduce(shared_dir / "reference/measured")  # type: ignore[operator]
    key = ("b200", "vllm", "all_reduce")
    fit = fit_pool(operator.predict, {key: operator.tables[key]}, operator.parameters)[key]
    stored = fit_profiles.stored_constants(fit_profiles.BUNDLED, operator, key)
    changed = {**stored, constant: stored[constant] * factor}
    assert fit_profiles.fits_as_well(operator, key, fit, changed) is kept


def test_a_stated_error_must_be_what_the_held_out_rows_show(benchmark: object, shared_dir: Path) -> None:
    fit_profiles = benchmark("fit_profiles")  # type: ignore[operator]
    operator = benchmark("reference_tables").all_reduce(shared_dir / "reference/measured")  # type: ignore[operator]
    key = ("b200", "vllm", "all_reduce")
    fit = fit_pool(operator.predict, {key: operator.tables[key]}, operator.parameters)[key]
    stored = fit_profiles.stored_constants(fit_profiles.BUNDLED, operator, key)
    flattered = {**stored, "fit": {**stored["fit"], "median_error": 0.03}}
    assert not fit_profiles.fits_as_well(operator, key, fit, flattered)


# what the validation harness measured


MEASUREMENTS = BENCHMARKS.parent / "validate" / "measurements"


def measured_claims() -> dict[str, tuple[str, ...]]:
    """The rows of the measurements' own README: file to (operators before, after, prefill, decode), in percent."""
    text = (MEASUREMENTS / "README.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "`20" in line
    ]
    return {row[0].strip("`"): tuple(row[2:]) for row in rows}


def replayed(path: Path) -> tuple[float, ...]:
    """Percent off. Half of a file's cases fitted, the other half predicted, with and without what was fitted."""
    from capacity_validate.calibrating import base_profile
    from capacity_validate.cases import read_measurements
    from capacity_validate.fitting import calibrated_profile, fit_families
    from capacity_validate.predictions import FAMILY
    from capacity_validate.residuals import step_evidence
    from capacity_validate.small_models import find_model

    found = read_measurements(path)
    profile = base_profile([found], gpu=None, directories=())
    on_gpu = found.environment["kind"] != "cpu"
    fits, _ = fit_families(found.timed, profile, source="replay", on_gpu=on_gpu)
    pooled = [
        np.median([abs(np.expm1(-ratio)) for fit in fits for ratio in getattr(fit, which).log_ratios])
        for which in ("error_before", "error_after")
    ]
    calibrated = calibrated_profile(profile, fits, family=FAMILY)
    model = find_model(found.model or "tiny")  # the first file does not name it
    evidence = step_evidence(found.timed, model, calibrated, on_gpu=on_gpu)
    assert evidence is not None
    steps = [
        np.median([abs(predicted / seconds - 1) for predicted, seconds in evidence.held_out[phase]])
        for phase in ("prefill", "decode")
    ]
    return tuple(float(100 * value) for value in (*pooled, *steps))


@pytest.mark.parametrize("path", sorted(MEASUREMENTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_what_was_measured_says_what_its_readme_says(path: Path) -> None:
    """And is within what must be shown: operators 20 %, prefill and decode steps of a whole model 25 %."""
    claimed = [float(cell.split()[0]) for cell in measured_claims()[path.name]]
    assert replayed(path) == pytest.approx(
        claimed, abs=0.7
    )  # rounded; solvers differ a little between machines
    _, operators, prefill, decode = claimed
    assert operators <= 20
    assert max(prefill, decode) <= 25
