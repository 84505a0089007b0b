"""A second model: run, predicted, never fitted, and said by name."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign  # noqa: E402
from capacity_validate.cases import make_case, read_measurements  # noqa: E402
from capacity_validate.constant_fits import fit_families  # noqa: E402
from capacity_validate.devices import cpu_facts  # noqa: E402
from capacity_validate.predictions import Predictor  # noqa: E402
from capacity_validate.residuals import full_depth_steps  # noqa: E402
from capacity_validate.review import review  # noqa: E402
from capacity_validate.session import open_session  # noqa: E402
from capacity_validate.small_models import find_model  # noqa: E402
from capacity_validate.stages import StageResults  # noqa: E402
from capacity_validate.stages.steps import unseen_stage  # noqa: E402
from capacity_validate.transformer import require_supported  # noqa: E402
from invented_kernels import H200, evidence, measured_case, write_log  # noqa: E402
from validation_reports import bare_report  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = """
name = "small"
description = "A second model alone."
budget_s = 60
[cpu]
case_s = 0.002
[cpu.unseen]
model = "tiny-moe"
max_layers = 2
prefill = [16, 32, 48]
decode = [{ batch = 1, context = 32 }, { batch = 2, context = 32 }, { batch = 3, context = 32 }]
kv_tokens = 512
[cuda]
"""


def session_of(folder: Path, campaign: str = SMALL, *, left_s: float = 60.0) -> Any:
    path = folder / "small.toml"
    path.write_text(campaign)
    session, _ = open_session(
        torch=torch, facts=cpu_facts(torch), campaign=load_campaign(str(path)), folder=folder, gpu=None, profiles=(),
        deadline=time.monotonic() + left_s, seed=0, progress=None,
    )  # fmt: skip
    return session


def test_its_steps_are_measured_and_no_fit_takes_them(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    results = StageResults()
    unseen_stage(session, results)
    assert results == StageResults()
    found = read_measurements(session.log.path)
    assert found.unseen == "tiny-moe"
    assert {m.case.operator for m in found.timed} == {"unseen prefill", "unseen decode"}
    assert {m.case["layers"] for m in found.timed} == {2}
    assert len(found.timed) == 6
    assert fit_families(found.timed, session.profile, source="test") == ([], [])
    assert full_depth_steps(found.timed) == []
    said = review([session.log.path])
    assert {row.role for row in said.cases} == {"held out"}
    assert all(row.before_s for row in said.cases)


def test_it_is_left_out_where_time_or_memory_is_short(tmp_path: Path) -> None:
    results = StageResults()
    unseen_stage(session_of(tmp_path, left_s=-10.0), results)
    full = session_of(tmp_path)
    unseen_stage(replace(full, facts=replace(full.facts, memory_free_bytes=1000)), results)
    spent, full_up = results.remarks
    assert "the budget was spent" in spent
    assert "does not fit in memory next to the first model" in full_up


def test_the_bundled_second_model_is_a_mixture_that_the_harness_can_run() -> None:
    for name in ("quick", "standard", "full"):
        for plan in (load_campaign(name).cpu, load_campaign(name).cuda):
            assert plan.unseen is not None
            assert plan.transformer is not None
            model = find_model(plan.unseen.model)
            require_supported(model)
            assert model.is_moe != find_model(plan.transformer.model).is_moe
            assert min(len(plan.unseen.prefill), len(plan.unseen.decode)) >= 3


def test_another_models_errors_are_in_the_verdict(tmp_path: Path) -> None:
    """Its steps made 10 % slower than the first model's constants say: that is what the verdict reports."""
    moe = find_model("qwen3-30b-a3b")
    true = Predictor(H200, unseen=moe)
    cases = [make_case("unseen prefill", "bf16", tokens=n, layers=16) for n in (256, 1024, 4096)]
    cases += [make_case("unseen decode", "bf16", batch=b, context=1024, layers=16) for b in (1, 8, 32)]
    slower = [measured_case(case, (true.seconds(case) or 0.0) / 0.9, "events") for case in cases]
    header = {"model": "llama-3.1-8b", "unseen": moe.name}
    path = write_log(tmp_path / "m.jsonl", [*evidence(), *slower], **header)
    rows = tuple(replace(row, after_s=row.before_s) for row in review([path]).cases)
    report = bare_report(cases=rows, unseen=moe.name)
    assert report.unseen_errors == pytest.approx((0.1, 0.1), rel=1e-3)
    assert "for qwen3-30b-a3b, a held-out model, prefills within 10%" in report.verdict
    assert "decode steps within 10%" in report.verdict
    assert Predictor(H200, model=moe).seconds(cases[0]) is None
