"""Steps of a model that is cut to fit stand for the whole by two depths."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import validate  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_models_cut_to_fit_are_extrapolated_from_two_depths(tmp_path: Path) -> None:
    campaign = tmp_path / "cut.toml"
    campaign.write_text(
        'name = "cut"\ndescription = "x"\nbudget_s = 30\n[cuda]\n[cpu]\npasses = 2\n'
        "techniques = false\nmemory = false\n"
        '[cpu.transformer]\nmodel = "tiny"\nmax_layers = 4\nprefill = [16, 64]\n'
        "decode = [{ batch = 1, context = 64 }, { batch = 2, context = 64 }]\n"
    )
    report = validate("cpu", str(campaign), out=tmp_path / "out")
    assert report.extrapolation is not None
    assert report.extrapolation.layers == 6
    four = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=4" in r.id)
    two = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=2" in r.id)
    assert report.extrapolation.measured_s == pytest.approx(four + (four - two))
    assert any("cut to 4 of 6 layers" in remark for remark in report.remarks)
