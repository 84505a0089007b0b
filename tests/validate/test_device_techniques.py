"""What a GPU is asked of each technique, run on a CPU in its place; and the words that say where it was checked."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import technique_checks  # noqa: E402
from capacity_validate.cases import ON_HOST, Finding  # noqa: E402
from capacity_validate.small_models import small_model_names  # noqa: E402
from capacity_validate.stages import StageResults  # noqa: E402
from capacity_validate.stages import checks as stage  # noqa: E402
from capacity_validate.technique_checks import (  # noqa: E402
    WINDOWS,
    device_findings,
    device_model,
    graph_logit_gap,
)
from capacity_validate.transformer import Transformer  # noqa: E402
from validation_reports import bare_report  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_model_and_every_window_is_checked_on_the_device() -> None:
    found = list(device_findings("cpu", None))
    assert [f.name for f in found if not f.passed] == []
    assert len(found) == len(small_model_names()) + len(WINDOWS)
    assert all("on cpu in fp32" in f.name for f in found)


def test_a_wrong_kernel_on_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = technique_checks.paged_decode_attention

    def off_by_one(*args: Any, window_tokens: int | None = None, **options: Any) -> Any:
        return right(*args, window_tokens=window_tokens and window_tokens - 20, **options)

    monkeypatch.setattr(technique_checks, "paged_decode_attention", off_by_one)
    found = [
        technique_checks.paged_finding("cpu", heads=h, kv_heads=k, width=d, window=w)
        for h, k, d, w in WINDOWS
    ]
    assert [f.passed for f in found] == [True, True, False]


def test_graphs_are_held_to_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the eager model in the graphs' place: alike; with one whose choices are another's: not."""
    model = Transformer(device_model("cpu", "tiny"), device="cpu", num_blocks=64)
    captures: Any = None
    monkeypatch.setattr(technique_checks, "GraphedTransformer", lambda model, *_, **__: model)
    assert graph_logit_gap(model, captures) < 1e-5

    class Shifted(SimpleNamespace):
        def next_tokens(self, step: Any) -> list[int]:
            return [(token + 1) % 4096 for token in model.next_tokens(step)]

    monkeypatch.setattr(
        technique_checks, "GraphedTransformer", lambda model, *_, **__: Shifted(inputs=model.inputs)
    )
    assert graph_logit_gap(model, captures) > technique_checks.GRAPH_DOUBT


def session(*, on_gpu: bool, left_s: float = 100.0, missing: dict[str, str] | None = None) -> Any:
    return SimpleNamespace(
        plan=SimpleNamespace(techniques=True), time_left_s=lambda: left_s, announce=lambda _: None, on_gpu=on_gpu,
        facts=SimpleNamespace(torch_name="cuda:0"), missing=missing or {}, torch=torch,
    )  # fmt: skip


def finding(name: str) -> Finding:
    return Finding(name=name, value=0.0, limit=1.0, detail="")


def said(opened: Any) -> StageResults:
    results = StageResults()
    stage.technique_stage(opened, results)
    return results


def test_a_gpus_techniques_are_its_own_and_the_hosts_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "device_findings", lambda *_: iter([finding("a"), finding("b")]))
    monkeypatch.setattr(stage, "quantizer_findings", lambda: [finding("q")])
    monkeypatch.setattr(stage, "technique_findings", lambda: [finding("t")])
    found = said(session(on_gpu=True))
    assert [(f.name, f.device) for f in found.findings] == [
        ("a", ""),
        ("b", ""),
        ("q", ON_HOST),
        ("t", ON_HOST),
    ]
    assert [f.name for f in said(session(on_gpu=False)).findings] == ["q", "t"]
    found = said(session(on_gpu=True, missing={"bf16": "no bf16 here"}))
    assert found.remarks == ["no inference technique was checked on cuda:0: no bf16 here"]
    monkeypatch.setattr(stage, "DEVICE_S", -1.0)
    cut = said(session(on_gpu=True))
    assert [f.name for f in cut.findings] == ["a", "q", "t"]
    assert "did not cover the last checks of inference techniques" in cut.remarks[0]


def test_the_verdict_says_on_which_device() -> None:
    report = bare_report(findings=(finding("a"), replace(finding("q"), device=ON_HOST)))
    assert "gave the correct result (1 on this GPU, 1 on its host's CPU)." in report.verdict
    on_cpu = replace(report, environment={"device": "a CPU", "kind": "cpu"})
    assert on_cpu.verdict.endswith("gave the correct result.")
