"""Recipes of CONTRIBUTING.md, followed in a copy of the checkout as a contributor would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkout_copy import copy_checkout, run_commands, run_python

pytestmark = pytest.mark.ci  # many seconds


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_checkout(tmp_path)


def test_a_gpu_is_one_file_and_needs_no_measured_tables(checkout: Path) -> None:
    profiles = checkout / "hardware_profiles"
    text = (profiles / "h20-96gb.toml").read_text(encoding="utf-8")
    facts, _, _ = text.partition("\n[step_time]")
    for old, new in (("h20-96gb", "h20e-141gb"), ('aliases = ["h20"', 'aliases = ["h20e"')):
        assert old in facts
        facts = facts.replace(old, new)
    tables = '\n[step_time]\ngpu = "h20e-141gb"\ntransferred_from = "h200-sxm-141gb"\n'
    (profiles / "h20e-141gb.toml").write_text(facts + tables, encoding="utf-8")

    tested = ("tests/hardware", "tests/test_evidence.py", "-k", "h20e", "-v", "-p", "no:cacheprovider")
    told = run_python(checkout, ["-m", "pytest", *tested])
    assert " 7 passed" in told, told
    asked = "estimate llama-3.1-8b --gpu h20e --input-len 1000 --output-len 100 --concurrency 8 --format json"
    (printed,) = run_commands(checkout, [asked.split()])
    tpot = json.loads(printed)["tpot_s"]
    assert tpot["low"] < tpot["value"] < tpot["high"]


SENTENCE = """        LatencyMetric(
            key="sentence",
            label="Sentence",
            title="Sentence",
            error="e2e",
            span=lambda request: (
                request.first_token_ps
                - request.arrival_ps
                + (request.finish_ps - request.first_token_ps)
                * (request.output_tokens.clip(1, 20) - 1)
                / (request.output_tokens - 1).clip(1),
                1,
            ),
        ),
"""  # the time to the first 20 tokens
LOAD = ["--input-len", "700", "--output-len", "60", "--request-rate", "4", "--num-prompts", "200"]
MODEL = ["llama-3.1-8b", "--gpu", "h100", *LOAD]
SLO = ["--slo", "sentence:p95:2s"]
PAGE = """
def test_a_page_shows_the_metric(dashboard):
    opened = dashboard("simulate", sim_requests="120", sim_metric="Sentence").settled()
    charts = [chart.proto.alt for chart in opened.at.get("plotly_chart")]
    assert any(alt.startswith("Sentence: as configured p95") for alt in charts), charts
    assert "Sentence" in dashboard("estimate").settled().kpis
"""


@pytest.fixture
def with_sentence(checkout: Path) -> Path:
    """A copy with one more metric, in the two files that CONTRIBUTING.md names."""
    changes = (
        ("base/latency_metrics.py", '        LatencyMetric(\n            key="e2el"', SENTENCE),
        (
            "answers/records.py",
            "    as_found: Mapping[str, Quantity | None]",
            "    sentence_s: Quantity | None\n",
        ),
    )
    for name, before, new in changes:
        path = checkout / "capacity" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        path.write_text(text.replace(before, new + before), encoding="utf-8")
    return checkout


@pytest.mark.slow
def test_a_metric_is_two_files_and_shows_everywhere(with_sentence: Path) -> None:
    goals = ["--slo", "ttft:p95:1s", "sentence:p95:2s"]
    simulated = ["simulate", *MODEL, *SLO, "--goodput", "sentence:2000", "--format"]
    plan = [
        "plan",
        "llama-3.1-8b",
        *LOAD,
        *goals,
        "--gpus",
        "h100",
        "--objective",
        "gpus",
        "--speculators",
        "none",
    ]
    plan += ["--quantizations", "default", "--format"]
    commands = (
        *(["estimate", *MODEL, "--format", form] for form in ("json", "table")),
        *([*simulated, form] for form in ("json", "table", "html")),
        *(["schema", verb] for verb in ("simulate", "estimate")),
        *([*plan, form] for form in ("json", "table")),
    )
    printed = run_commands(with_sentence, commands)
    estimate, simulate, plan_json = (json.loads(printed[number]) for number in (0, 2, 7))
    ends = [estimate[name][end] for name, end in (("ttft_s", "low"), ("sentence_s", "low"), ("e2e_s", "low"))]
    assert ends == sorted(set(ends))
    assert estimate["sentence_s"]["low"] < estimate["sentence_s"]["value"] < estimate["sentence_s"]["high"]
    assert simulate["mean_ttft_ms"] < simulate["mean_sentence_ms"] < simulate["mean_e2el_ms"]
    assert simulate["mean_sentence_ms"] == pytest.approx(estimate["sentence_s"]["value"] * 1e3, rel=0.1)
    assert simulate["slos"][0]["value_ms"] == pytest.approx(simulate["p95_sentence_ms"])
    assert simulate["prediction_intervals"]["p95_sentence_ms"]["low"] < simulate["p95_sentence_ms"]
    assert {"p99_sentence_ms", "p50_sentence_ms"} <= simulate["intervals"].keys()
    assert simulate["request_goodput"] > 0
    for number in (1, 3, 4):
        assert "Sentence" in printed[number], commands[number]
    for number, name in ((5, "p99_sentence_ms"), (6, "sentence_s")):
        assert name in json.loads(printed[number])["properties"]
    levels = {level["slo"]: level for level in plan_json["ranked"][0]["trial"]["levels"]}
    assert levels["sentence:p95:2s"]["met"]
    assert "sentence:p95:2s: " in printed[8]

    page = with_sentence / "tests" / "app" / "test_sentence.py"
    page.write_text(PAGE, encoding="utf-8")
    assert "1 passed" in run_python(with_sentence, ["-m", "pytest", str(page), "-p", "no:cacheprovider"])


def test_a_flag_is_a_field_and_the_line_that_reads_it(checkout: Path) -> None:
    """Memory that another process takes of each GPU: declared in `pool.py`, read in `memory.py`."""
    declared, read = checkout / "capacity/deployment/pool.py", checkout / "capacity/pool/memory.py"
    for path, old, new in (
        (declared, "import FiniteOrInf, FlagSpec\n", "import FiniteOrInf, FlagSpec, flag\n"),
        (
            declared,
            "    swap_space: float",
            '    taken_gib: float = flag(0.0, "GiB that others take of a GPU.", read_by="memory", ge=0)\n'
            "    swap_space: float",
        ),
        (
            read,
            "        return engine.nontorch_bytes_tp1\n",
            "        return engine.nontorch_bytes_tp1 + round(pool.taken_gib * GIB)\n",
        ),
    ):
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new), encoding="utf-8")

    question = ["fit", "llama-3.1-8b", "--gpu", "h100", "--format", "json"]
    plain, taken = map(json.loads, run_commands(checkout, [question, [*question, "--taken-gib", "2"]]))
    lost = plain["memory"]["kv_cache_bytes"] - taken["memory"]["kv_cache_bytes"]
    assert lost == 2 << 30
