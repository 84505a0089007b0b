"""Power that GPUs draw: limits of the formula, and the constants and intervals of measured and other GPUs."""

from __future__ import annotations

import importlib
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.hardware import load_profile
from capacity.hardware.drawn_power import TABLE, GpuUse, drawn_power_table, drawn_watts

EVIDENCE = Path(__file__).parents[2] / "docs/evidence.md"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
H100, H200, A100 = (load_profile(name) for name in ("h100", "h200", "a100-80gb"))
USE = GpuUse(duty=1.0, kernel_fraction=0.9, bytes_per_s=2e12, flops_per_s=5e13)


def test_formula_by_hand() -> None:
    table = drawn_power_table()
    own = table.gpus["h100-sxm-80gb"]
    load = own.busy * 0.9 + own.memory * 2e12 / 3.35e12 + own.compute * 5e13 / 9.894e14
    share = table.idle_share + (table.limit_share - table.idle_share) * (1 - math.exp(-load))
    assert drawn_watts(H100, USE).value == pytest.approx(700 * share)


def test_idle_gpu_draws_its_idle_share_and_half_duty_the_mean() -> None:
    idle, full, half = (drawn_watts(H100, replace(USE, duty=duty)).value for duty in (0.0, 1.0, 0.5))
    assert idle == pytest.approx(700 * drawn_power_table().idle_share)
    assert half == pytest.approx((idle + full) / 2)


def test_power_rises_with_each_use_and_stays_below_the_tdp() -> None:
    for profile in (H100, load_profile("b200"), A100):
        base = drawn_watts(profile, USE).value
        assert drawn_watts(profile, replace(USE, flops_per_s=2 * USE.flops_per_s)).value > base
        assert drawn_watts(profile, replace(USE, kernel_fraction=1.0)).value >= base
        assert drawn_watts(profile, replace(USE, bytes_per_s=4e12)).value > base
        assert drawn_watts(profile, replace(USE, flops_per_s=1e15)).value < profile.tdp_watts


def test_other_gpus_have_constants_of_their_architecture_and_a_wider_interval() -> None:
    table = drawn_power_table()
    assert table.constants(H100).fit.basis == "fitted"
    for profile, nearest in ((H200, "h100-sxm-80gb"), (A100, "all")):
        constants = table.constants(profile)
        assert constants.fit.basis == "assumed"
        assert constants.busy == table.gpus[nearest].busy
        watts, own = drawn_watts(profile, USE), drawn_watts(H100, USE)
        assert watts.low is not None
        assert watts.high is not None
        assert own.low is not None
        assert watts.low / watts.value < own.low / own.value < 1 < watts.high / watts.value
        assert watts.high <= profile.tdp_watts


def test_constants_are_those_that_the_fit_writes(
    monkeypatch: pytest.MonkeyPatch, shared_dir: Path, tmp_path: Path
) -> None:
    """Held-out rows are judged only: errors and coverage as docs/evidence.md states."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("CAPACITY_SHARED", str(shared_dir))
    fit = importlib.import_module("fit_drawn_power")
    rows = fit.read_rows(shared_dir)
    fitted, held_out = fit.split_by_configuration(rows)
    assert not {row.configuration for row in fitted} & {row.configuration for row in held_out}
    written = tmp_path / "drawn_power.toml"
    fit.write(fit.fit_table(fitted), written, header=fit.HEADER)
    assert tomllib.loads(written.read_text()) == tomllib.loads(TABLE.read_text())
    page = " ".join(EVIDENCE.read_text(encoding="utf-8").split())
    for measured_rate in (True, False):
        for chosen in (fitted, held_out):
            found = fit.errors_at(drawn_power_table(), chosen, measured_rate=measured_rate)
            median, p90 = f"{100 * found.median:.1f}", f"{100 * found.p90:.1f} %"
            assert re.search(rf"{median}( %( off at the median)?)? and {p90}", page), (median, p90)
            covered = (
                f"{100 * found.covered:.0f} % of the {'fitted' if chosen is fitted else 'held-out'} rows"
            )
            assert covered in page
