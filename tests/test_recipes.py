"""Recipes of CONTRIBUTING.md, followed in a copy of the checkout as a contributor would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNNEEDED = shutil.ignore_patterns(".*", "__pycache__", "gpu-results", "wheels", "build", "dist")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy without the reference library."""
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=UNNEEDED))


def run(checkout: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAPACITY_")}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(checkout / folder) for folder in (".", "app", "validate")]
    )
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_gpu_is_one_file_and_needs_no_measured_tables(checkout: Path) -> None:
    profiles = checkout / "hardware_profiles"
    text = (profiles / "h20-96gb.toml").read_text(encoding="utf-8")
    facts, _, _ = text.partition("\n[step_time]")
    for old, new in (("h20-96gb", "h20e-141gb"), ('aliases = ["h20"', 'aliases = ["h20e"')):
        assert old in facts
        facts = facts.replace(old, new)
    tables = '\n[step_time]\ngpu = "h20e-141gb"\ntransferred_from = "h200-sxm-141gb"\n'
    (profiles / "h20e-141gb.toml").write_text(facts + tables, encoding="utf-8")

    told = run(checkout, "pytest", "tests/hardware", "tests/test_evidence.py", "-k", "h20e", "-v")
    assert " 7 passed" in told, told
    question = [
        "--gpu",
        "h20e",
        "--input-len",
        "1000",
        "--output-len",
        "100",
        "--concurrency",
        "8",
        "--format",
        "json",
    ]
    answer = json.loads(run(checkout, "capacity", "estimate", "llama-3.1-8b", *question))
    assert answer["tpot_s"]["low"] < answer["tpot_s"]["value"] < answer["tpot_s"]["high"]


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


def test_a_metric_is_two_files_and_shows_everywhere(with_sentence: Path) -> None:
    def ask(*words: str, form: str = "json") -> str:
        return run(with_sentence, "capacity", *words, "--format", form)

    estimate = json.loads(ask("estimate", *MODEL))
    ends = [estimate[name][end] for name, end in (("ttft_s", "low"), ("sentence_s", "low"), ("e2e_s", "low"))]
    assert ends == sorted(set(ends))
    assert estimate["sentence_s"]["low"] < estimate["sentence_s"]["value"] < estimate["sentence_s"]["high"]
    assert "Sentence" in ask("estimate", *MODEL, form="table")

    simulate = json.loads(ask("simulate", *MODEL, *SLO, "--goodput", "sentence:2000"))
    assert simulate["mean_ttft_ms"] < simulate["mean_sentence_ms"] < simulate["mean_e2el_ms"]
    assert simulate["mean_sentence_ms"] == pytest.approx(estimate["sentence_s"]["value"] * 1e3, rel=0.1)
    assert simulate["slos"][0]["value_ms"] == pytest.approx(simulate["p95_sentence_ms"])
    assert simulate["prediction_intervals"]["p95_sentence_ms"]["low"] < simulate["p95_sentence_ms"]
    assert {"p99_sentence_ms", "p50_sentence_ms"} <= simulate["intervals"].keys()
    assert simulate["request_goodput"] > 0
    for form in ("table", "html"):
        assert "Sentence" in ask("simulate", *MODEL, *SLO, form=form)

    for verb, name in (("simulate", "p99_sentence_ms"), ("estimate", "sentence_s")):
        assert name in json.loads(run(with_sentence, "capacity", "schema", verb))["properties"]

    goal = ["--slo", "ttft:p95:1s", *SLO, "--gpus", "h100", "--objective", "gpus", "--speculators", "none"]
    plan = json.loads(ask("plan", "llama-3.1-8b", *LOAD, *goal))
    levels = {level["slo"]: level for level in plan["ranked"][0]["trial"]["levels"]}
    assert levels["sentence:p95:2s"]["met"]
    assert "sentence:p95:2s: " in ask("plan", "llama-3.1-8b", *LOAD, *goal, form="table")

    page = with_sentence / "tests" / "app" / "test_sentence.py"
    page.write_text(PAGE, encoding="utf-8")
    assert "1 passed" in run(with_sentence, "pytest", str(page), "-p", "no:cacheprovider")


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

    question = ["capacity", "fit", "llama-3.1-8b", "--gpu", "h100", "--format", "json"]
    plain, taken = (json.loads(run(checkout, *question, *more)) for more in ([], ["--taken-gib", "2"]))
    lost = plain["memory"]["kv_cache_bytes"] - taken["memory"]["kv_cache_bytes"]
    assert lost == 2 << 30
