"""Campaign files, their order under a budget, and the measurement log that survives being killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capacity_validate.campaigns import (
    campaign_names,
    load_campaign,
    ordered_cases,
    parse_budget,
    spread_out,
)
from capacity_validate.cases import (
    MeasuredCase,
    MeasurementLog,
    by_family,
    make_case,
    read_measurements,
    split,
)
from capacity_validate.kernels.prepared import supported_operators
from capacity_validate.timing import Timing, quantile, rotations, summarise_samples
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName

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


@pytest.mark.parametrize("name", campaign_names())
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_bundled_campaign_names_kernels_that_exist(name: str, kind: str) -> None:
    campaign = load_campaign(name)
    cases = ordered_cases(campaign.plan("cpu" if kind == "cpu" else "cuda"))
    assert cases
    assert len({case.id for case in cases}) == len(cases)
    assert {case.operator for case in cases} <= set(supported_operators())


def test_campaigns_grow() -> None:
    sizes = [len(ordered_cases(load_campaign(name).cuda)) for name in ("quick", "standard", "full")]
    assert sizes == sorted(sizes)
    assert load_campaign("quick").budget_s <= 60
    assert load_campaign("standard").budget_s <= 300


def test_every_beginning_of_a_campaign_is_a_balanced_sample() -> None:
    """After a quarter of the cases every valuable group has been seen, at both ends of its range."""
    cases = ordered_cases(load_campaign("quick").cuda)
    beginning = cases[: len(cases) // 4]
    assert {"gemm", "decode_attention", "prefill_attention", "elementwise"} <= {c.operator for c in beginning}
    rows = [c["m"] for c in beginning if c.operator == "gemm"]
    assert min(rows) == 1
    assert max(rows) >= 4096


@given(st.integers(1, 200))
def test_spreading_out_loses_nothing(count: int) -> None:
    cases = [make_case("gemm", "bf16", m=i) for i in range(1, count + 1)]
    assert sorted(c["m"] for c in spread_out(cases)) == list(range(1, count + 1))


def test_a_campaign_file_is_held_to_its_schema(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="quick"):
        load_campaign("quik")
    path = tmp_path / "own.toml"
    path.write_text('name = "own"\ndescription = "x"\nextends = "quick"\nbudget_s = 5\n')
    assert load_campaign(str(path)).budget_s == 5
    path.write_text('name = "own"\nextends = "nowhere"\n')
    with pytest.raises(MalformedFile, match="no bundled campaign"):
        load_campaign(str(path))
    path.write_text('name = "own"\ndescription = "x"\nbudget_s = 5\n[cpu]\n[cuda]\ntypo = 1\n')
    with pytest.raises(MalformedFile, match="typo"):
        load_campaign(str(path))


def test_budgets() -> None:
    assert [parse_budget(text) for text in ("60", "60s", "5m", "1h")] == [60, 60, 300, 3600]
    for text in ("", "m", "-5s", "nan", "inf", "5 parsecs"):
        with pytest.raises(InvalidInput, match="budget"):
            parse_budget(text)


# the log


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
    with pytest.raises(InvalidInput, match="two machines"):
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


# the split


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40, unique=True))
def test_a_split_halves_each_family_and_overlaps_in_nothing(sizes: list[int]) -> None:
    cases = [measured(m=m) for m in sizes]
    fitted, held_out = split(cases)
    assert sorted(m.case.id for m in (*fitted, *held_out)) == sorted(m.case.id for m in cases)
    assert len(held_out) == len(cases) // 2
    if len(cases) > 3:
        ends = {min(sizes), max(sizes)}
        assert ends <= {m.case["m"] for m in fitted}


def test_a_split_is_the_same_whatever_the_order_and_the_times() -> None:
    cases = [measured(m=m, seconds=m * 1e-6) for m in range(1, 20)]
    shuffled = [measured(m=m, seconds=1e-3) for m in reversed(range(1, 20))]
    assert {m.case.id for m in split(cases)[1]} == {m.case.id for m in split(shuffled)[1]}


def test_families_keep_variants_apart() -> None:
    cases = [MeasuredCase(case=make_case("gemm", k, m=1), status="ok") for k in ("bf16", "fp8")]
    assert list(by_family(cases)) == ["gemm/bf16", "gemm/fp8"]


# timing arithmetic


def test_a_timing_is_a_median_with_its_spread_outliers_and_drift() -> None:
    timing = summarise_samples([1.0, 1.0, 1.0, 1.0, 5.0, 1.2, 1.2, 1.2, 1.2], "thread time")
    assert timing.seconds == 1.2
    assert timing.outliers == 1
    assert timing.drift == pytest.approx(0.2)


def test_quantiles_are_numpys() -> None:
    import numpy as np

    values = sorted([3.0, 1.0, 4.0, 1.5, 9.0])
    for fraction in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert quantile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)))


@given(st.integers(1, 2**34), st.integers(1, 2**28))
def test_rotated_inputs_exceed_the_cache_twice_or_are_many(bytes_per_set: int, cache_bytes: int) -> None:
    count = rotations(bytes_per_set, cache_bytes)
    assert count * bytes_per_set >= 2 * cache_bytes or count == 32


def test_a_campaign_of_ones_own_with_an_unknown_operator_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.toml"
    kernels = '[[cpu.kernels]]\noperator = "gem"\nkernels = ["fp32"]\n'
    path.write_text(f'name = "own"\ndescription = "d"\nbudget_s = 1\n[cpu]\n{kernels}[cuda]\n')
    with pytest.raises(MalformedFile, match=r"no kernel for operator 'gem'; known: gemm"):
        load_campaign(str(path))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written.*--out"):
        MeasurementLog(tmp_path / "file" / "m.jsonl", HEADER)
