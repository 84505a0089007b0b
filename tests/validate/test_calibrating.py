"""Calibration: a profile that is written, found and used; thin and torn evidence is refused."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from capacity_validate import calibrate
from capacity_validate.predictions import FAMILY
from invented_kernels import H200, TRUE_GEMM, evidence, gemm_cases, timed, write_log

from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.deployment import Pool, build
from capacity.hardware import load_profile
from capacity.pool.resolve import resolve
from capacity.step import decode_shape


def test_a_calibrated_profile_is_written_found_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles"
    answer = calibrate([write_log(tmp_path / "m.jsonl", evidence())], name="mine", out=folder)
    assert (folder / "h200-sxm-141gb@mine.toml").is_file()
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    profile = load_profile("h200@mine")
    assert profile.provenance == H200.provenance
    assert profile.step_time is not None
    fit = profile.step_time.families[FAMILY].gemm["bf16"].fit
    assert fit.basis == "fitted"
    assert "NVIDIA H200" in fit.source
    resolved = [resolve("llama-3.1-8b", build(Pool, {"gpu": gpu})) for gpu in ("h200", "h200@mine")]
    seconds = [r.step_model.step_seconds(decode_shape(32, 1024)) for r in resolved]
    assert seconds[0] != seconds[1]
    assert {m.name for m in answer.moved} >= {"fixed_s", "bandwidth_fraction"}
    assert answer.lines()[-1].endswith("use it with --gpu h200-sxm-141gb@mine")
    assert json.loads(json.dumps(answer.to_dict()))["schema"] == "capacity/calibration/v1"


def test_no_host_name_is_in_a_profile(tmp_path: Path) -> None:
    import platform

    path = calibrate([write_log(tmp_path / "m.jsonl", evidence())], out=tmp_path).path
    assert platform.node() not in Path(path).read_text()


def test_thin_evidence_is_refused(tmp_path: Path) -> None:
    few = [timed(case, TRUE_GEMM) for case in gemm_cases()[:5]]
    with pytest.raises(OutsideValidity, match="5 cases are too few"):
        calibrate([write_log(tmp_path / "m.jsonl", few)], out=tmp_path)
    with pytest.raises(InvalidInput, match="no result to calibrate on"):
        calibrate([])


def test_contradictory_evidence_is_refused(tmp_path: Path) -> None:
    """Times that no constants explain; and two files that disagree about the same cases."""
    rng = np.random.default_rng(1)
    torn = [timed(case, TRUE_GEMM, noise=2.5, rng=rng) for case in gemm_cases()]
    with pytest.raises(OutsideValidity, match="inconsistent cases"):
        calibrate([write_log(tmp_path / "torn.jsonl", torn)], out=tmp_path)
    slow = SimpleNamespace(
        **{**vars(TRUE_GEMM), "compute_fraction": 0.3, "bandwidth_fraction": 0.3, "fixed_s": 1e-5}
    )
    one = write_log(tmp_path / "one.jsonl", [timed(case, TRUE_GEMM) for case in gemm_cases()])
    two = write_log(tmp_path / "two.jsonl", [timed(case, slow) for case in gemm_cases()])
    with pytest.raises(OutsideValidity, match="contradict each other"):
        calibrate([one, two], out=tmp_path)


def test_files_of_one_device_combine_and_of_two_do_not(tmp_path: Path) -> None:
    cases = evidence()
    one, two = write_log(tmp_path / "1.jsonl", cases[:30]), write_log(tmp_path / "2.jsonl", cases[20:])
    assert calibrate([one, two], out=tmp_path).cases == len(cases)
    environment = {"device": "NVIDIA B200", "torch": "2.13.0", "kind": "cuda"}
    other = write_log(tmp_path / "3.jsonl", cases, environment=environment)
    with pytest.raises(InvalidInput, match="different devices"):
        calibrate([one, other], out=tmp_path)
    with pytest.raises(InvalidInput, match="letters, digits"):
        calibrate([one], name="../../etc", out=tmp_path)


def test_what_was_measured_on_a_cpu_is_no_gpu(tmp_path: Path) -> None:
    environment = {"device": "a CPU", "torch": "2.13.0", "kind": "cpu"}
    write_log(tmp_path / "m.jsonl", evidence(), environment=environment, profile="cpu")
    with pytest.raises(InvalidInput, match="was measured on a CPU and cannot calibrate h200-sxm-141gb"):
        calibrate([tmp_path / "m.jsonl"], gpu="h200", out=tmp_path)


@pytest.mark.parametrize("verb", ["validate", "calibrate", "compare"])
def test_an_unknown_format_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    import sys
    from unittest.mock import patch

    from capacity.cli.main import main

    arguments = ["capacity", verb, *(["x"] if verb != "validate" else []), "--format", "yaml"]
    with patch.object(sys, "argv", arguments), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    forms = "table, json, csv, html" if verb == "compare" else "table, json"
    assert capsys.readouterr().err.strip().endswith(f"--format is 'yaml': must be one of {forms}")


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
def test_a_tolerance_is_a_share(tolerance: float, tmp_path: Path) -> None:
    from capacity_validate import validate

    with pytest.raises(InvalidInput, match="must be a fraction of at least 0"):
        validate("cpu", out=tmp_path, tolerance_tpot=tolerance)
