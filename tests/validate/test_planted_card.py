"""A card whose truth is known, measured through the harness's own runner, log, fits and reports.

Planted: constants of products and paged attention, an efficiency of each shape's own, scatter from call to call, heat
that holds the clocks down in the middle of the run, and one product whose kernel is bad. What comes out must be those
constants as well as the answer says that it knows them, the slow stretch, and the bad kernel by name.
"""

import math
import statistics
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign, order_cases  # noqa: E402
from capacity_validate.cases import Case, MeasurementLog  # noqa: E402
from capacity_validate.constant_fits import (  # noqa: E402
    FamilyFit,
    fit_families,
    shape_key,
)
from capacity_validate.kernels import KernelContext, PreparedCase  # noqa: E402
from capacity_validate.predictions import formula, is_calibration_case  # noqa: E402
from capacity_validate.review import Review, review  # noqa: E402
from capacity_validate.runner import CaseRunner  # noqa: E402
from capacity_validate.telemetry import Reading, Telemetry  # noqa: E402
from capacity_validate.timing import CudaStopwatch  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402
from invented_kernels import H200, TRUE_DECODE, TRUE_GEMM  # noqa: E402

SHAPES_SCATTER = 0.06  # ln: some matrices suit their kernel better than others
CALLS_SCATTER = 0.01
BAD = (28672, 8192)  # k, n of the bad product
BAD_FACTOR = 2.4
HOT_FACTOR = 1.6
HEADER = {"environment": {"device": "NVIDIA H200", "torch": "t", "kind": "cuda"}, "profile": H200.name}


def truth_s(case: Case) -> float:
    """What a case takes by the planted constants alone."""
    function = formula(case, H200)
    assert function is not None
    return function(TRUE_GEMM if case.operator == "gemm" else TRUE_DECODE)


def planted_cases() -> list[Case]:
    return [
        case
        for case in order_cases(load_campaign("standard").cuda)
        if case.kernel == "bf16"
        and case.operator in ("gemm", "decode_attention")
        and is_calibration_case(case, H200)
    ]


def is_bad(case: Case) -> bool:
    return case.operator == "gemm" and (case["k"], case["n"]) == BAD


class Planted:
    """The card: what a call takes, and what its driver says while it runs."""

    def __init__(self, folder: Path) -> None:
        self.cases = planted_cases()
        count = len(self.cases)
        self.hot = {case.id for case in self.cases[int(0.4 * count) : int(0.5 * count)]}
        rng = np.random.default_rng(11)
        shapes = dict.fromkeys(shape_key(case) for case in self.cases)
        self.own = {key: math.exp(SHAPES_SCATTER * rng.normal()) for key in shapes}
        self.rng = rng
        self.fake = FakeCuda(launch_s=0.0)
        self.telemetry = Telemetry(lambda: None)
        self.path = folder / "measurements.jsonl"
        runner = CaseRunner(
            bench=KernelContext(self.fake.torch, "cuda:0", 2**20, None, 1e9),
            stopwatch=CudaStopwatch(self.fake.torch, "cuda:0"),
            log=MeasurementLog(self.path, HEADER),
            case_s=1e-3,
            own_calls=self.prepared,
            telemetry=self.telemetry,
            datasheet=H200,
        )
        self.outcome = runner.run(self.cases, passes=1, deadline=time.monotonic() + 120)

    def prepared(self, case: Case) -> PreparedCase:
        hot = case.id in self.hot
        reading = Reading(
            at_s=time.monotonic(),
            sm_clock_hz=1.2e9 if hot else 1.9e9,
            reasons=("heat (hardware)",) if hot else (),
        )
        self.telemetry.readings.append(reading)
        seconds = truth_s(case) * self.own[shape_key(case)]
        seconds *= (HOT_FACTOR if hot else 1.0) * (BAD_FACTOR if is_bad(case) else 1.0)
        calls = [self.fake.kernel(seconds * math.exp(CALLS_SCATTER * self.rng.normal())) for _ in range(4)]
        return PreparedCase(calls=calls, check=None, tolerance=0.0, flops=1.0, bytes=1.0)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def said(card: Planted) -> Review:
    return review([card.path])


def fits_of(card: Planted) -> dict[str, FamilyFit]:
    from capacity_validate.cases import read_measurements

    fits, _ = fit_families(read_measurements(card.path).timed, H200, source="planted", final=True)
    return {fit.target.operator: fit for fit in fits}


def test_it_is_measured_to_its_end(card: Planted) -> None:
    assert (card.outcome.stopped, card.outcome.skipped) == ("", 0)
    assert card.outcome.timed == len(card.cases) > 120
    assert 10 < len(card.hot) < 20


def test_the_planted_constants_come_back_within_the_stated_error(card: Planted) -> None:
    """Against what the constants alone say, without any shape's own efficiency: half of all cases lie within the
    stated median error, nine of ten within the stated 90 % quantile."""
    fits = fits_of(card)
    assert set(fits) == {"gemm", "decode_attention"}
    for operator, fit in fits.items():
        off = sorted(
            abs(function(fit.after) / truth_s(case) - 1)
            for case in card.cases
            if case.operator == operator and (function := formula(case, H200)) is not None
        )
        assert statistics.median(off) <= fit.error_after.median, operator
        assert off[int(0.9 * len(off))] <= fit.error_after.p90, operator
        assert fit.error_after.median < 2 * SHAPES_SCATTER, operator
        assert fit.after.fit.held_out_by.startswith("whole shapes")


def test_the_throttled_part_is_named_and_no_fit_takes_it(card: Planted, said: Review) -> None:
    (remark,) = (text for text in said.remarks if text.startswith("clocks were throttled in all samples"))
    named = [case_id for case_id in card.hot if case_id in remark]
    assert len(named) == 5
    assert f"and {len(card.hot) - 5} more" in remark
    for row in said.cases:
        assert (row.role == "shown") == (row.id in card.hot), row.id


def test_the_bad_kernel_is_named_and_no_other(said: Review) -> None:
    (odd,) = (text for text in said.remarks if "as the other shapes" in text)
    assert odd.startswith("gemm/bf16 with k=28672, n=8192 is ")
    factor = float(odd.split(" is ")[1].split()[0])
    assert factor == pytest.approx(BAD_FACTOR, rel=0.15)
