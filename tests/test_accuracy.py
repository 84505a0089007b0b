"""Replayed evidence: the step model against published measurements, within the errors that it claims."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from capacity.deployment.client_latency import USUAL_S
from capacity.hardware import load_profile
from capacity.hardware.calibration import fit_constants
from capacity.model.quantization import find_format, weight_formats
from capacity.step.layers.builder import activation_bits

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def errors(evidence: list, **chosen: str) -> np.ndarray:
    return np.array([e.error for e in evidence if all(getattr(e, k) == v for k, v in chosen.items())])


def test_published_steps_are_predicted_within_the_claimed_error(benchmark: object) -> None:
    """75 steps of gpt-fast, LMDeploy and TensorRT-LLM documents; measured 2026-11-21, bounds a little above."""
    found = list(benchmark("step_evidence").published())  # type: ignore[operator]
    assert len(found) == 75
    decode, prefill = errors(found, regime="decode"), errors(found, regime="prefill")
    assert np.median(np.abs(decode)) < 0.08  # 7.1 %
    assert np.quantile(np.abs(decode), 0.9) < 0.20  # 17 %
    assert np.median(np.abs(prefill)) < 0.11  # 9.1 %: 2024's kernels, and L40S products 20 % slow
    assert np.quantile(np.abs(prefill), 0.9) < 0.30  # 26.9 %


def test_published_steps_lie_in_their_intervals(benchmark: object) -> None:
    """Nine of ten measurements must lie in the 90 % band; 80 % allows for 75 rows of few origins."""
    found = list(benchmark("step_evidence").published())  # type: ignore[operator]
    inside = []
    for e in found:
        residuals = load_profile(e.gpu).step_time.residuals[e.regime]
        inside.append(residuals.low <= e.measured_s / e.predicted_s - 1 <= residuals.high)
    assert np.mean(inside) >= 0.8


# the page's table


PAGE = BENCHMARKS.parent / "docs" / "accuracy.md"
SAMPLE = BENCHMARKS.parent / "tests" / "data" / "measured"
HEADING = "| predicted against measured |"
Cells = tuple[str, ...]


def claims() -> dict[str, Cells]:
    """Label to (used for; rows, median, p90, bias of the whole tables; rows, median, p90 of the sample)."""
    table = PAGE.read_text(encoding="utf-8").split(HEADING)[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: tuple(row[1:]) for row in rows}


def in_the_sample(line: object | None) -> Cells:
    """A line of the benchmark as the page's last columns have it; empty for what is not in the sample."""
    if line is None:
        return ("", "", "")
    return (str(line.rows), f"{line.median:.1%}", f"{line.p90:.1%}")  # type: ignore[attr-defined]


def in_the_whole(line: object) -> Cells:
    """A line of the benchmark as the page's middle columns have it."""
    return (*in_the_sample(line), f"{line.bias:+.1%}")  # type: ignore[attr-defined]


def write_claims(found: dict[str, Cells]) -> None:
    """The page's table with these rows."""
    text = PAGE.read_text(encoding="utf-8")
    before, table = text.split(HEADING)
    rows, after = table.split("\n\n", 1)
    new = ["| " + " | ".join((label, *cells)) + " |" for label, cells in found.items()]
    PAGE.write_text(
        before + HEADING + "\n".join([*rows.splitlines()[:2], *new]) + "\n\n" + after, encoding="utf-8"
    )


def benchmark_lines(accuracy: ModuleType, measured: Path) -> dict[str, object]:
    return {line.label: line for lines in accuracy.accuracy_tables(measured).values() for line in lines}


@pytest.mark.ci
def test_a_clean_clone_shows_what_the_accuracy_page_says(benchmark: object) -> None:
    """Without the library: every claim's use, and its rows, median and 90th percentile in the sample that ships."""
    accuracy = benchmark("accuracy")  # type: ignore[operator]
    lines = benchmark_lines(accuracy, SAMPLE)
    shown = {
        label: (
            lines[label].used_for if label in lines else "chosen by",  # type: ignore[attr-defined]
            *cells[1:5],
            *in_the_sample(lines.get(label)),
        )
        for label, cells in claims().items()
    }
    if os.environ.get("UPDATE_README"):
        write_claims(shown)
    assert claims() == shown
    assert sum(cells[-1] != "" for cells in shown.values()) >= 20


@pytest.mark.slow
def test_the_script_prints_it_without_the_library() -> None:
    environment = {**os.environ, "CAPACITY_SHARED": "/nonexistent"}
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "accuracy.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    assert "the sample that ships with the tests" in run.stdout
    assert "Reliability" in run.stdout
    printed = {line[:58].strip(): line[58:].split() for line in run.stdout.splitlines()}
    for label, cells in claims().items():
        if cells[-1]:
            assert tuple(printed[label][:3]) == cells[5:], label


# where the reference library is at hand


@pytest.mark.slow
def test_the_accuracy_page_says_what_the_whole_tables_show(benchmark: object, shared_dir: Path) -> None:
    lines = benchmark_lines(benchmark("accuracy"), shared_dir / "reference/measured")  # type: ignore[operator]
    shown = {label: (cells[0], *in_the_whole(lines[label]), *cells[5:]) for label, cells in claims().items()}
    if os.environ.get("UPDATE_README"):
        write_claims(shown)
    assert claims() == shown


@pytest.mark.parametrize("metric", ["ttft_s", "tpot_s", "e2e_s"])
def test_open_loops_of_the_inference_sim_runs(benchmark: object, shared_dir: Path, metric: str) -> None:
    """Twenty stages of vLLM V1 on H100, 7B to 70B. The client's latency was chosen with them in view, nothing else."""
    found = list(benchmark("served_open").inference_sim_runs(shared_dir))  # type: ignore[operator]
    error = np.abs([run.error(metric) for run in found])
    median, p90 = {"ttft_s": (0.03, 0.08), "tpot_s": (0.03, 0.05), "e2e_s": (0.03, 0.05)}[metric]
    assert len(error) == 20
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < p90


def test_the_usual_client_is_what_those_runs_lack_without_one(benchmark: object, shared_dir: Path) -> None:
    found = benchmark("served_open").inference_sim_runs(shared_dir, client_latency_s=0.0)  # type: ignore[operator]
    lacking = [run.ttft_s - run.predicted_ttft_s for run in found]
    assert np.median(lacking) == pytest.approx(USUAL_S, abs=1e-3)


def test_one_table_gives_back_its_profiles_numbers(benchmark: object, shared_dir: Path) -> None:
    """`fit_profiles.py` reproduces them all in half a minute; here one of them."""
    tables = benchmark("reference_tables").gemm(shared_dir / "reference/measured", quantized=False)  # type: ignore[operator]
    sisters = benchmark("sister_fits")  # type: ignore[operator]
    _, both = sisters.part_sisters(tables, {"h100": "h200"})
    constants = fit_constants(both.predict, both.tables["h100", "vllm", "bf16"], both.parameters)
    for card in ("h100", "h200"):
        stored = load_profile(card).step_time.families["vllm"].gemm["bf16"]
        for name, value in sisters.split_constants(constants, faster=card == "h200").items():
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


def test_steps_take_a_tables_constants_at_the_roof_they_were_fitted_to(benchmark: object) -> None:
    """A fraction is of a peak: taken of another one, MXFP4 experts ran four times as fast as their table."""
    tables = benchmark("reference_tables.form").FORMATS.values()  # type: ignore[operator]
    peaks = load_profile("b200-sxm-180gb").dense_flops_per_s
    formats = [find_format(name) for name in weight_formats()]
    for table in tables:
        executions = [stored.execution(peaks) for stored in formats if stored.kernel == table.kernel]
        assert executions, table
        for execution in executions:
            assert execution.compute_dtype == table.dtype, table
            assert activation_bits(execution.compute_dtype) == table.activation_bits, table


def test_experts_of_eight_bit_activations_reach_what_their_table_does() -> None:
    """MXFP4 under TensorRT-LLM multiplies at the rate of FP8 experts, whatever peak its fraction is of."""
    card = load_profile("b200-sxm-180gb")
    assert card.step_time is not None
    families, peaks = card.step_time.families, card.dense_flops_per_s
    served = families["trtllm"].moe["mxfp4"].compute_fraction
    roof = peaks[find_format("mxfp4").execution(peaks).compute_dtype]
    assert served * roof == pytest.approx(
        families["vllm"].moe["fp8"].compute_fraction * peaks["fp8"], rel=1e-3
    )


@pytest.mark.slow
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
        ("one_shot_fraction", 0.8, True),  # nothing in this table's rows depends on it
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
    fit_pool, key = benchmark("pooled_fits").fit_pool, ("gb200", "vllm", "all_reduce")  # type: ignore[operator]
    fit = fit_pool(operator.predict, {key: operator.tables[key]}, operator.parameters)[key]
    stored = fit_profiles.stored_constants(fit_profiles.BUNDLED, operator, key)
    changed = {**stored, constant: stored[constant] * factor}
    assert fit_profiles.fits_as_well(operator, key, fit, changed) is kept


def test_a_stated_error_must_be_what_the_held_out_rows_show(benchmark: object, shared_dir: Path) -> None:
    fit_profiles = benchmark("fit_profiles")  # type: ignore[operator]
    operator = benchmark("reference_tables").all_reduce(shared_dir / "reference/measured")  # type: ignore[operator]
    fit_pool, key = benchmark("pooled_fits").fit_pool, ("b200", "vllm", "all_reduce")  # type: ignore[operator]
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
    from capacity_validate.constant_fits import calibrated_profile, fit_families
    from capacity_validate.predictions import FAMILY
    from capacity_validate.residuals import step_evidence
    from capacity_validate.small_models import find_model

    found = read_measurements(path)
    profile = base_profile([found], gpu=None, directories=())
    fits, _ = fit_families(found.timed, profile, source="replay")
    pooled = [
        np.median([abs(np.expm1(-ratio)) for fit in fits for ratio in getattr(fit, which).log_ratios])
        for which in ("error_before", "error_after")
    ]
    calibrated = calibrated_profile(profile, fits, family=FAMILY)
    model = find_model(found.model or "tiny")  # the first file does not name it
    evidence = step_evidence(found.timed, model, calibrated)
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
