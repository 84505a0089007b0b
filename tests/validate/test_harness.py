"""`capacity validate` from end to end on a CPU: what it must show there, what it writes, and how it ends early."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from library import heed_interrupts

torch = pytest.importorskip("torch")

from capacity_validate import calibrate, harness, validate  # noqa: E402
from capacity_validate import stages as stage_module  # noqa: E402
from capacity_validate.cases import read_measurements  # noqa: E402
from capacity_validate.fresh_process import run_in_fresh_processes  # noqa: E402
from capacity_validate.harness import measure  # noqa: E402
from capacity_validate.html_report import summary_lines, to_html  # noqa: E402
from capacity_validate.report_data import ValidationReport  # noqa: E402
from capacity_validate.session import MEASUREMENTS, Session  # noqa: E402
from capacity_validate.stages import StageResults  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402

from capacity.base.errors import InvalidInput, OutsideValidity  # noqa: E402
from capacity.hardware import parse_profile  # noqa: E402

SHORT = """
name = "short"
description = "A few cases of each kind."
budget_s = 300

[cpu]
passes = 2
case_s = 0.004

[[cpu.kernels]]
operator = "gemm"
kernels = ["fp32"]
shapes = [{ n = 512, k = 512 }, { n = 1536, k = 512 }]
grid = { m = [1, 4, 8, 16, 32, 64, 128] }

[[cpu.kernels]]
operator = "launch"
kernels = ["fp32"]
variants = ["eager", "graph"]

[cpu.transformer]
model = "tiny"
prefill = [16, 24, 32, 48, 64, 128]
decode = [
    { batch = 1, context = 64 }, { batch = 1, context = 256 }, { batch = 2, context = 128 },
    { batch = 4, context = 64 }, { batch = 4, context = 128 }, { batch = 4, context = 256 },
]
kv_tokens = 2048

[cpu.serving]
requests = 6
load_fraction = 0.5
prompt_tokens = [16, 64]
output_tokens = [4, 8]
max_num_seqs = 4
max_num_batched_tokens = 128

[cpu.speculation]
draft_tokens = [2]
agreements = [0.6]
output_tokens = 40
distribution_samples = 1000

[cuda]
"""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[ValidationReport, Path]:
    folder = tmp_path_factory.mktemp("short")
    campaign = folder / "short.toml"
    campaign.write_text(SHORT)
    return validate("cpu", str(campaign), out=folder / "out"), folder / "out"


def test_a_short_run_measures_fits_and_judges(short: tuple[ValidationReport, Path]) -> None:
    report, _ = short
    assert report.profile == "cpu"
    assert {row.role for row in report.cases} == {"fitted", "held out", "shown"}
    assert report.ttft_error is not None
    assert report.tpot_error is not None
    assert [f for f in report.findings if not f.passed] == []
    assert any("launch" in case.id and case.status == "unsupported" for case in report.not_timed)
    assert any("not a GPU" in remark for remark in report.remarks)


def test_the_serving_run_is_scheduled_alike(short: tuple[ValidationReport, Path]) -> None:
    (serving,) = short[0].serving
    assert serving.equal_steps == serving.steps > 5


def test_the_report_is_json_with_a_schema_and_html_that_needs_no_network(
    short: tuple[ValidationReport, Path],
) -> None:
    report, folder = short
    document = json.loads((folder / "report.json").read_text())
    assert document["schema"] == "capacity/validation/v1"
    assert document["environment"]["device"]
    assert document["verdict"] == report.verdict
    html = to_html(report)
    assert "<script src=" not in html
    assert html.count("Plotly.newPlot") == 2
    assert report.verdict.split(":")[0][:40] in html


def test_the_summary_ends_in_one_sentence(short: tuple[ValidationReport, Path]) -> None:
    lines = summary_lines(short[0], short[1])
    assert lines[-1].startswith("On this ")
    assert lines[-1].endswith(".")


def test_the_profile_it_writes_is_a_profile(short: tuple[ValidationReport, Path]) -> None:
    _, folder = short
    profile = parse_profile((folder / "cpu@mine.toml").read_text())
    assert profile.name == "cpu@mine"
    assert profile.vendor == "other"
    assert profile.provenance["hbm_bytes_per_s"].basis == "measured"


def test_a_second_run_continues_the_first(short: tuple[ValidationReport, Path]) -> None:
    report, folder = short
    before = (folder / MEASUREMENTS).read_text()
    again = validate("cpu", str(folder.parent / "short.toml"), budget_s=0.5, out=folder)
    assert (folder / MEASUREMENTS).read_text().startswith(before)
    assert {row.id for row in again.cases} == {row.id for row in report.cases}
    assert again.roofs == report.roofs


def test_a_run_that_cannot_calibrate_writes_no_profile(
    short: tuple[ValidationReport, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: Any) -> None:
        raise InvalidInput("the card drifted")

    shutil.copytree(short[1], tmp_path / "out")
    (tmp_path / "out" / "cpu@mine.toml").unlink()
    monkeypatch.setattr(harness, "require_valid", reject)
    report = validate("cpu", str(short[1].parent / "short.toml"), budget_s=0.5, out=tmp_path / "out")
    assert "no calibrated profile was written: the card drifted" in report.remarks
    assert not (tmp_path / "out" / "cpu@mine.toml").exists()
    (first, *_) = read_measurements(tmp_path / "out" / MEASUREMENTS).runs
    assert (first["verdict"], first["order_seed"]) == (short[0].verdict, 0)
    assert len(first["references"]) >= 2
    assert not any("reference" in row.id for row in report.cases)


def test_its_measurements_calibrate_by_themselves(
    short: tuple[ValidationReport, Path], tmp_path: Path
) -> None:
    answer = calibrate([short[1] / MEASUREMENTS], name="again", out=tmp_path)
    assert answer.profile == "cpu@again"
    assert "gemm fp32" in answer.errors


def test_a_budget_of_nothing_ends_with_what_there_is(tmp_path: Path) -> None:
    report = validate("cpu", "quick", budget_s=1.0, out=tmp_path)
    assert report.left_out
    assert report.exit_code in (1, 3)
    with pytest.raises(OutsideValidity, match="nothing can be calibrated"):
        calibrate([tmp_path / MEASUREMENTS], out=tmp_path)


def test_ctrl_c_leaves_a_report(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, label: str) -> None:  # noqa: ARG001
        if done == 5:
            raise KeyboardInterrupt

    report = validate("cpu", "quick", out=tmp_path, progress=interrupt)
    assert report.interrupted
    assert len(report.cases) == 5
    assert (tmp_path / "report.html").is_file()
    assert any("interrupted" in remark for remark in report.remarks)


def test_a_real_sigint_leaves_measurements_report_and_a_run_that_goes_on(tmp_path: Path) -> None:
    """The signal that a terminal sends, to the command itself, in the middle of its cases."""
    out = tmp_path / "out"
    arguments = ["validate", "--device", "cpu", "--out", str(out)]
    command = [sys.executable, "-W", "ignore", "-m", "capacity", *arguments]
    checkout = Path(__file__).parent.parent.parent
    path = os.pathsep.join(str(checkout / part) for part in (".", "validate", "app"))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=heed_interrupts,
    ) as process:
        lines = 0
        while lines < 12 and process.poll() is None:
            time.sleep(0.05)
            lines = len((out / MEASUREMENTS).read_text().splitlines()) if (out / MEASUREMENTS).exists() else 0
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=120)
    assert "Traceback" not in complaints
    assert "interrupted: this report contains the results up to the interruption" in printed
    assert process.returncode in (1, 3)
    document = json.loads((out / "report.json").read_text())
    assert document["interrupted"] is True
    assert 10 <= len(document["cases"]) < 140
    kept = (out / MEASUREMENTS).read_text()
    again = validate("cpu", "quick", budget_s=1.0, out=out)
    assert (out / MEASUREMENTS).read_text().startswith(kept)
    assert len(again.cases) >= len(document["cases"])


def test_a_stage_that_fails_costs_its_own_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import capacity_validate.stages.model_runs as speculation

    def fail(**_: Any) -> None:
        raise TypeError("a version that this was not written for")

    monkeypatch.setattr(speculation, "distribution_findings", fail)
    parts = SHORT.split("[cpu.serving]")
    few = (
        parts[0]
        .replace("case_s = 0.004", "case_s = 0.004\ntechniques = false")
        .replace("passes = 2", "passes = 1")
    )
    campaign = tmp_path / "short.toml"
    campaign.write_text(few + "[cpu.speculation]\n[cuda]\n")
    report = validate("cpu", str(campaign), out=tmp_path / "out")
    assert report.memory
    assert report.exit_code == 1
    assert report.failures[-1].startswith("speculative decoding failed: TypeError: a version")


def test_no_gpu_is_refused_and_the_cpu_never_stands_in(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for device in ("auto", "cuda"):
        with pytest.raises(InvalidInput, match="--device cpu"):
            validate(device, out=tmp_path)


def test_a_number_that_is_not_finite_is_null_in_the_report(
    short: tuple[ValidationReport, Path], tmp_path: Path
) -> None:
    odd = replace(short[0], memory={"activation_peak_bytes": float("nan")})
    odd.write_json(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["memory"] == {"activation_peak_bytes": None}


def test_a_tight_tolerance_fails_and_says_by_how_much(short: tuple[ValidationReport, Path]) -> None:
    report = replace(short[0], tolerance_ttft=1e-6)
    assert report.exit_code == 1
    assert any(failure.startswith("TTFT error") for failure in report.failures)
    assert "but some checks failed" in report.verdict


@pytest.mark.slow
def test_what_the_cpu_must_show(tmp_path: Path) -> None:
    """Under 90 s; held-out operators within 20 % at the median, TTFT and TPOT of the small transformer within 25 %.

    One thread's CPU time, medians over three passes. A machine may be so busy that caches and clocks are not its
    own: the best of three runs counts, and a failure says all three.
    """
    attempts: list[Any] = []
    for attempt in range(3):
        report = validate("cpu", "quick", out=tmp_path / str(attempt))
        assert report.operator_error is not None
        ttft, tpot = report.ttft_error or 1.0, report.tpot_error or 1.0
        attempts.append((report.seconds, report.operator_error[1], ttft, tpot))
        assert all(f.passed for f in report.findings)
        if report.seconds < 90 and report.operator_error[1] <= 0.20 and max(ttft, tpot) <= 0.25:
            assert report.operator_error[1] < report.operator_error[0]
            assert all(s.equal_steps == s.steps for s in report.serving)
            return
    pytest.fail(f"(seconds, operators, TTFT, TPOT) of three runs: {attempts}")


class Stopped(SimpleNamespace):
    """A session of which stages need next to nothing."""

    def with_model(self, *_: object) -> "Stopped":
        return self

    def with_time_fraction(self, fraction: float) -> "Stopped":
        assert 0 < fraction <= 1
        return self

    def free_memory(self) -> None: ...


def staged(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, **stages: Callable[[Any], Any]) -> Session:
    made = tuple(
        stage_module.ValidationStage(name.replace("_", " "), lambda _, results, work=work: work(results))
        for name, work in stages.items()
    )
    monkeypatch.setattr(stage_module, "STAGES", made)
    return Stopped(torch=fake.torch, facts=SimpleNamespace(torch_name="cuda:0"))  # type: ignore[return-value]


def said(remark: str) -> Callable[[StageResults], None]:
    return lambda results: results.remarks.append(remark)


def test_a_stage_that_breaks_the_device_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By any name: an error that a list of names does not hold, and the next process leaves the stage out."""
    fake = FakeCuda()
    stages = {
        "techniques": said("done"),
        "serving": lambda _: fake.kernel(breaks="CUDA error: invalid program counter")(),
        "collectives": said("never"),
    }
    measured = measure(staged(fake, monkeypatch, **stages))
    assert (measured.stage, str(measured.lost)) == (
        "serving",
        "serving made the device's context unusable (CUDA error: invalid program counter)",
    )
    assert measured.results.remarks == ["done"]
    fresh = FakeCuda()
    again = measure(staged(fresh, monkeypatch, **stages), skip={"serving": str(measured.lost)})
    assert again.lost is None
    assert again.results.remarks == ["done", "never"]
    assert again.results.broken[0].startswith(
        "serving: cut short, serving made the device's context unusable"
    )


def test_a_stage_that_has_no_memory_or_fails_leaves_the_device_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda()
    measured = measure(
        staged(
            fake,
            monkeypatch,
            memory=lambda _: fake.kernel(bytes=2**60)(),
            serving=lambda _: fake.kernel(fails="no such kernel")(),
            collectives=said("done"),
        )
    )
    assert measured.lost is None
    assert measured.results.broken == ["serving failed: no such kernel"]
    assert measured.results.remarks[0].startswith("memory: skipped or cut short, because memory ran out")
    assert measured.results.remarks[1] == "done"


def test_a_whole_run_in_a_process_of_its_own_gives_its_report(
    short: tuple[ValidationReport, Path], tmp_path: Path
) -> None:
    """As on a GPU, with the CPU in its place: arguments, progress and the report cross over."""
    _, folder = short
    shutil.copytree(folder, tmp_path / "out")
    report = run_in_fresh_processes(
        "capacity_validate.harness:run_in_child",
        {
            "device": "cpu", "campaign": str(folder.parent / "short.toml"), "out": str(tmp_path / "out"),
            "gpu": None, "profiles": (), "tolerance_ttft": 0.25, "tolerance_tpot": None, "threads": 1, "seed": 0,
        },
        deadline=time.monotonic() + 2.0,
    )  # fmt: skip
    assert isinstance(report, ValidationReport)
    assert {row.id for row in report.cases} == {row.id for row in short[0].cases}
