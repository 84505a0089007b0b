"""The measurement log that survives being killed, and the split of its cases."""

import json
from pathlib import Path

import pytest
from capacity_validate.cases import MeasuredCase, MeasurementLog, make_case, read_measurements
from capacity_validate.timing import Timing, summarise_samples

from capacity.base.errors import InvalidInput, MalformedFile

HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "cpu"}


def measured(operator: str = "gemm", seconds: float = 1e-3, **sizes: int) -> MeasuredCase:
    timing = summarise_samples([seconds] * 5, "thread time")
    return MeasuredCase(
        case=make_case(operator, "fp32", **sizes),
        status="ok",
        timing=timing,
        flops=float(sum(sizes.values())),
        bytes=1.0,
    )


def test_a_log_is_continued_and_survives_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    log = MeasurementLog(path, HEADER)
    log.add(measured(m=1))
    log.add(measured(m=2))
    log.add(measured(m=2, seconds=2e-3))  # a later pass: the last line counts
    with path.open("a") as file:
        file.write('{"operator": "gemm", "ker')
    again = MeasurementLog(path, HEADER)
    assert {m.case["m"]: m.seconds for m in again.done.values()} == {1: 1e-3, 2: 2e-3}


def test_evidence_of_two_machines_is_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    MeasurementLog(path, HEADER)
    other = {"environment": {"device": "another", "torch": "t"}, "profile": "cpu"}
    with pytest.raises(InvalidInput, match="different machines or conditions"):
        MeasurementLog(path, other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("[]\n", "not a JSON object"),
        ('{"schema": "x"}\n', "not a measurement file"),
        ("{\n", "not JSON"),
    ],
)
def test_what_is_no_measurement_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    with pytest.raises(MalformedFile, match=problem):
        read_measurements(path)


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    log = MeasurementLog(path, HEADER)
    with path.open("a") as file:
        file.write('{"operator": "gemm"}\n')
    log.add(measured(m=1))
    with pytest.raises(MalformedFile, match="line 2"):
        read_measurements(path)


def test_cases_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    case = MeasuredCase(
        case=make_case("decode_attention", "bf16", variant="paged", batch=8, context=1024),
        status="ok",
        timing=Timing(
            seconds=1e-5, low_s=9e-6, high_s=2e-5, repetitions=7, outliers=1, drift=0.1, how="graph"
        ),
        flops=5.0,
        bytes=6.0,
        reference_error=1e-3,
    )
    MeasurementLog(path, HEADER).add(case)
    assert read_measurements(path).cases == (case,)
    assert json.loads(path.read_text().splitlines()[0])["schema"] == "capacity/measurements/v1"


def test_families_keep_variants_apart() -> None:
    cases = [MeasuredCase(case=make_case("gemm", k, m=1), status="ok") for k in ("bf16", "fp8")]
    assert [each.case.family for each in cases] == ["gemm/bf16", "gemm/fp8"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written.*--out"):
        MeasurementLog(tmp_path / "file" / "m.jsonl", HEADER)
