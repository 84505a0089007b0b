"""Measurements of another, busy, hot or drifting GPU calibrate nothing; doubtful ones say so in answer and profile."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from capacity_validate import calibrate
from capacity_validate.cases import MeasurementLog, read_measurements
from capacity_validate.devices import DeviceFacts
from capacity_validate.plausibility import ReferenceReading, require_valid, run_summary
from capacity_validate.runner import RunOutcome
from invented_kernels import H200, evidence, write_log
from validation_reports import bare_report

from capacity.base.errors import InvalidInput
from capacity.hardware import load_profile

GIB = 2**30
IDLE = DeviceFacts(
    kind="cuda", index=0, name="NVIDIA H200", memory_total_bytes=140 * GIB, memory_free_bytes=139 * GIB,
    compute_units=132, cache_bytes=50 * 2**20, compute_capability="9.0", power_limit_watts=700.0, other_processes=0,
    utilization_fraction=0.0,
)  # fmt: skip
STEADY = {
    "drift": 0.01,
    "throttled_fraction": 0.0,
    "references": [[0.0, 1e-3], [10.0, 1.01e-3], [20.0, 1e-3]],
}


def measured(
    folder: Path, *, run: dict[str, Any] | None = STEADY, name: str = "NVIDIA H200", **facts: Any
) -> Path:
    known = {**IDLE.as_json(), **facts}
    environment = {"device": name, "torch": "2.13.0", "kind": "cuda", "facts": known}
    path = write_log(folder / "m.jsonl", evidence(), environment=environment)
    if run is not None:
        MeasurementLog(path, {"environment": environment, "profile": H200.name}).add_run(run)
    return path


def test_a_sound_run_has_no_doubts(tmp_path: Path) -> None:
    answer = calibrate([measured(tmp_path)], out=tmp_path)
    assert answer.notices == ()
    assert "doubtful" not in Path(answer.path).read_text()


@pytest.mark.parametrize("gpu", ["b200", "h100", "l4", "tpu-v6e-32gb", "mi300x"])
def test_measurements_of_another_gpu_are_rejected(tmp_path: Path, gpu: str) -> None:
    with pytest.raises(InvalidInput, match="was measured on NVIDIA H200; leave --gpu out") as caught:
        calibrate([measured(tmp_path)], gpu=gpu, out=tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.toml"))


def test_another_form_of_the_same_gpu_can_be_named(tmp_path: Path) -> None:
    assert calibrate([measured(tmp_path)], gpu="h200-nvl-141gb", out=tmp_path).base == "h200-nvl-141gb"


@pytest.mark.parametrize(
    ("run", "facts", "said"),
    [
        ({**STEADY, "drift": 0.14}, {}, r"changed by \+14% during the run \(limit 10%\)"),
        ({**STEADY, "throttled_fraction": 0.7}, {}, "reduced the clocks in 70% of the readings"),
        ({**STEADY, "utilization_fraction": 0.97}, {}, "kept the GPU 97% busy"),
        (None, {"utilization_fraction": 0.97}, "kept the GPU 97% busy"),
    ],
)
def test_a_busy_hot_or_drifting_card_calibrates_nothing(
    tmp_path: Path, run: dict[str, Any] | None, facts: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        calibrate([measured(tmp_path, run=run, **facts)], out=tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.parametrize(
    ("run", "facts", "said"),
    [
        (None, {}, "no summary of a completed run"),
        ({**STEADY, "utilization_fraction": 0.2}, {}, "20% busy before the run"),
        ({**STEADY, "throttle_reasons": ["heat (software)"]}, {}, "before the run by: heat (software)"),
        ({**STEADY, "memory_shared": True}, {}, "other processes used memory"),
        ({**STEADY, "throttled_fraction": 0.1}, {}, "in 10% of the readings"),
        ({**STEADY, "references": [[0, 1e-3], [9, 1.3e-3], [18, 1e-3]]}, {}, "up to 30% slower"),
        ({**STEADY, "interrupted": True}, {}, "interrupted"),
        (STEADY, {"power_limit_watts": 350.0}, "power limit was 350 W"),
    ],
)
def test_doubtful_measurements_are_marked_in_answer_and_profile(
    tmp_path: Path, run: dict[str, Any] | None, facts: dict[str, Any], said: str
) -> None:
    answer = calibrate([measured(tmp_path, run=run, **facts)], out=tmp_path)
    (notice,) = answer.notices
    assert said in notice
    assert f"note: {notice}" in answer.lines()
    assert f"doubtful: {notice}" in Path(answer.path).read_text()


def test_a_cpu_file_and_a_users_own_profile_are_not_questioned(tmp_path: Path) -> None:
    path = measured(tmp_path, run={**STEADY, "drift": 0.3})
    document = path.read_text().replace('"kind": "cuda"', '"kind": "cpu"')
    path.write_text(document)
    assert require_valid([read_measurements(path)], H200) == ()
    own = H200.model_copy(update={"name": "rack-7"})
    assert require_valid([read_measurements(measured(tmp_path / "b"))], own) == ()
    assert load_profile("h200").name == H200.name


def test_a_run_writes_its_seed_tenancy_drift_and_verdict(tmp_path: Path) -> None:
    """The line that a run appends to its file is what calibration reads."""
    busy = DeviceFacts(
        **{**IDLE.as_json(), "memory_free_bytes": 60 * GIB, "other_processes": 2, "utilization_fraction": 0.3}
    )
    outcome = RunOutcome(
        timed=1, skipped=0, left_out=(), interrupted=False, drift=0.04,
        references=(ReferenceReading(50.0, 1e-3, 1.7e9, 650.0), ReferenceReading(60.0, 1.04e-3, 1.6e9, 640.0)),
    )  # fmt: skip
    session = SimpleNamespace(facts=busy, on_gpu=True, seed=5)
    results = SimpleNamespace(outcome=outcome, throttled_fraction=0.05)
    path = measured(tmp_path, run=run_summary(bare_report(), session, results))  # type: ignore[arg-type]
    (run,) = read_measurements(path).runs
    assert (run["order_seed"], run["drift"], run["exit_code"]) == (5, 0.04, 0)
    assert run["references"] == [[0.0, 1e-3, 1.7e9, 650.0], [10.0, 1.04e-3, 1.6e9, 640.0]]
    assert (run["memory_shared"], run["other_processes"], run["utilization_fraction"]) == (True, 2, 0.3)
    assert run["verdict"].startswith("On this NVIDIA H200")
    assert len(require_valid([read_measurements(path)], H200)) == 3
    assert json.loads(path.read_text().splitlines()[-1]).keys() == {"run"}
