"""Replays the evidence in validate/measurements, on any machine and without torch, and holds claims to it."""

import statistics
from pathlib import Path

import pytest
from capacity_validate import calibrate
from capacity_validate.calibrating import base_profile
from capacity_validate.cases import read_measurements
from capacity_validate.constant_fits import calibrated_profile, fit_families, fit_host_time, split_cases
from capacity_validate.predictions import FAMILY, Predictor
from capacity_validate.small_models import small_model

from capacity.hardware import load_profile

FOLDER = Path(__file__).parent.parent.parent / "validate" / "measurements"
FILES = sorted(FOLDER.glob("*.jsonl"))
CPU = FOLDER / "2026-11-21-cpu-quick.jsonl"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_whole_named_in_the_readme_and_free_of_host_names(path: Path) -> None:
    found = read_measurements(path)
    assert found.timed
    assert found.environment["date"][:10] == path.stem[:10]
    assert not {"host", "hostname", "node"} & set(found.environment)
    assert f"`{path.name}`" in (FOLDER / "README.md").read_text()
    for measured in found.timed:
        assert measured.timing is not None
        assert measured.timing.low_s <= measured.seconds <= measured.timing.high_s


def test_half_of_the_cpus_cases_predict_the_other_half() -> None:
    """Operators within 20 %, prefill and decode steps of the transformer within 25 %, at the median."""
    found = read_measurements(CPU)
    profile = base_profile([found], gpu=None, directories=())
    fits, _ = fit_families(found.timed, profile, source="replay")
    assert {fit.target.operator for fit in fits} == {
        "gemm",
        "prefill_attention",
        "decode_attention",
        "elementwise",
    }
    for fit in fits:
        assert fit.error_after.median < 0.20
        assert fit.error_after.median < fit.error_before.median
    calibrated = calibrated_profile(profile, fits, family=FAMILY)
    model = small_model("tiny")
    steps = [m for m in found.timed if m.case.operator.startswith("model ")]
    fitted, held_out = split_cases(steps)
    host = fit_host_time(fitted, Predictor(calibrated, model=model).step_model())
    predictor = Predictor(calibrated, model=model, host=host)
    for operator in ("model prefill", "model decode"):
        own = [m for m in held_out if m.case.operator == operator]
        errors = [abs((predictor.seconds(m.case) or 0.0) / m.seconds - 1) for m in own]
        assert statistics.median(errors) < 0.25, (operator, errors)


def test_the_newest_file_names_its_model_and_so_earns_a_band(tmp_path: Path) -> None:
    newest = FOLDER / "2026-11-21-cpu-standard.jsonl"
    answer = calibrate([newest], name="replayed", out=tmp_path)
    assert {"gemm fp32", "mla_decode 16bit", "moe fp32", "decode_attention 16bit"} <= set(answer.errors)
    for low, high in answer.bands.values():
        assert -0.5 < low <= 0 <= high < 0.6
    assert set(answer.bands) == {"prefill", "decode"}
    assert any(line.startswith("steps of the harness's own loop, decode") for line in answer.lines())


def test_the_file_calibrates_a_profile_that_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate([CPU], name="replayed", out=tmp_path)
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    profile = load_profile("cpu@replayed")
    assert profile.step_time is not None
    elementwise = profile.step_time.families[FAMILY].elementwise
    assert elementwise is not None
    assert elementwise.fit.rows == 16
