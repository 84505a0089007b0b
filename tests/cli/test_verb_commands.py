"""The techniques' verbs as a user meets them: tables that say what they should, JSON that parses, one-line refusals."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from library import SHARED
from schema_checks import check_answer
from spec_counts import count_specs

from capacity.cli.main import main

H100 = ("--gpu", "h100")
METHODS = ["--method", "fp8-tensor", "--method", "awq-int4"]
ARRIVALS = ("--isl", "200", "--osl", "50", "--random-range-ratio", "0.8", "--num-prompts", "60")
QUESTIONS: dict[str, list[str]] = {
    "quantize": ["quantize", "llama-3.1-8b", *H100, "--price", "2.50", *METHODS],
    "speculate": ["speculate", "llama-3.1-8b", *H100, "--method", "eagle", "--batch-sizes", "1,64"],
    "textbook": ["speculate", "--textbook"],
    "speculators": ["speculate", "--list"],
    "kv": ["kv", "llama-3.1-8b", "deepseek-v3", *H100, "--window", "2044"],
    "engines": ["engines", "--claims"],
    "scale": ["scale", "llama-3.1-8b", *H100, "--tpot", "10"],
    "attention-io": ["attention-io", "llama-3.1-8b", *H100],
    "beam-search": ["beam-search", "llama-3.1-8b", *H100],
    "batching": [
        "batching",
        "llama-3.1-8b",
        *H100,
        "--max-model-len",
        "4096",
        *ARRIVALS,
        "--batch-size",
        "8",
    ],
}
MORE_QUESTIONS: dict[str, list[str]] = {
    "speculate, a tree, simulated": ["speculate", "llama-3.1-8b", *H100, "--simulate", "--batch-sizes", "2"],
    "scale, pipeline": ["scale", "llama-3.1-8b", *H100, "--axis", "pipeline", "--isl", "20000"],
    "scale, expert": ["scale", "qwen3-30b-a3b", *H100, "--axis", "expert", "--most-gpus", "2"],
    "scale, data": ["scale", "qwen3-30b-a3b", *H100, "--axis", "data", "--most-gpus", "2"],
    "kv, nothing fits": ["kv", "deepseek-v3", "--gpu", "l4"],
    "engines": ["engines"],
}


def run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and what was printed: the answer, or the complaint."""
    monkeypatch.setattr(sys, "argv", ["capacity", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    code = caught.value.code
    printed = capsys.readouterr()
    return (code if isinstance(code, int) else 0), printed.out if not code else printed.err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Three requests of Mooncake's kind; the last repeats the first."""
    path = tmp_path / "trace.jsonl"
    rows = [(0, 1100, [1, 2, 3]), (1000, 600, [4, 5]), (2000, 1100, [1, 2, 3])]
    lines = [
        json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids})
        for t, n, ids in rows
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.ci
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_verb_answers_in_every_format(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = QUESTIONS[name]
    assert run(question, monkeypatch, capsys)[0] == 0
    code, text = run([*question, "--format", "json"], monkeypatch, capsys)
    assert code == 0
    answer = json.loads(text)
    assert answer["schema"] == f"capacity/{name}/v1"
    check_answer(answer, name)
    code, text = run([*question, "--format", "csv"], monkeypatch, capsys)
    assert len(list(csv.DictReader(io.StringIO(text)))) == len(answer["rows"]) > 0


@pytest.mark.parametrize("name", MORE_QUESTIONS)
def test_further_answers_are_what_their_schema_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = MORE_QUESTIONS[name]
    assert run(question, monkeypatch, capsys)[0] == 0
    answer = json.loads(run([*question, "--format", "json"], monkeypatch, capsys)[1])
    check_answer(answer, answer["schema"].split("/")[1])


@pytest.mark.parametrize("name", ["quantize", "speculate", "scale", "attention-io", "batching"])
def test_each_spec_of_a_pools_question_is_made_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (
        ["--method", "fp8-tensor"] if name == "quantize" else ["--most-gpus", "1"] if name == "scale" else []
    )
    small += ["--no-spread"] if name == "batching" else []
    run([*QUESTIONS[name], *small], monkeypatch, capsys)  # modules make the defaults of their fields
    made = count_specs(monkeypatch)
    assert run([*QUESTIONS[name], *small], monkeypatch, capsys)[0] == 0
    assert made["Pool"] == 1
    assert made["Cost"] == (name in ("quantize", "scale"))
    assert made["Traffic"] == (name in ("batching", "scale"))  # scale: of its one layout


@pytest.mark.ci
def test_the_chart_of_batching_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chart.html"
    question = [*QUESTIONS["batching"], "--no-spread", "--chart", str(path)]
    assert run(question, monkeypatch, capsys)[0] == 0
    html = path.read_text(encoding="utf-8")
    assert "<svg" in html
    assert "<script" not in html
    question[-1] = str(tmp_path / "nowhere" / "chart.html")
    code, text = run(question, monkeypatch, capsys)
    assert code == 2
    assert "cannot write" in text


def test_a_cache_curve_of_three_requests_by_hand(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 look-ups, 3 hits; the second request's two blocks came between, so 5 blocks are needed for all three."""
    arguments = [
        "cache-curve",
        trace,
        "--capacity-tokens",
        "1K,2K,2560",
        "--replicas",
        "2",
        "--format",
        "json",
    ]
    code, text = run(arguments, monkeypatch, capsys)
    assert code == 0
    answer: dict[str, Any] = json.loads(text)
    assert answer["block_tokens"] == 512
    assert [row["block_hit_fraction"] for row in answer["rows"]] == [0, 2 / 8, 3 / 8, 3 / 8]
    assert answer["rows"][-1]["token_hit_fraction"] == pytest.approx(1100 / 2800)
    assert answer["knee_tokens"] == 5 * 512
    assert {row["routing"] for row in answer["routing"]} == {"round-robin", "least-tokens", "prefix"}
    check_answer(answer, "cache-curve")
    assert run(["cache-curve", trace], monkeypatch, capsys)[0] == 0
    code, text = run(["cache-curve", trace, "--model", "llama-3.1-8b", *H100], monkeypatch, capsys)
    assert code == 0
    assert "of prefill time" in " ".join(text.split())
    code, text = run(["cache-curve", trace, "--plan", "grok", "--format", "json"], monkeypatch, capsys)
    assert [plan["plan"] for plan in json.loads(text)["plans"]] == ["grok"]
    code, text = run(["cache-curve", trace, "--plan", "free"], monkeypatch, capsys)
    assert code == 2
    assert "prompt-cache plan" in text


def test_mooncakes_published_hit_rate_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if SHARED is None:
        pytest.skip("reference library not at hand (set CAPACITY_SHARED)")
    path = str(SHARED / "traces" / "mooncake_conversation_trace.jsonl.gz")
    code, text = run(["cache-curve", path, "--capacity-tokens", "1M"], monkeypatch, capsys)
    assert code == 0
    assert "5.5%" in text
    assert "37.4%" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["quantize", "llama-3.1-8b"], "no GPU"),
        (["quantize", "llama-9", *H100], "llama-9"),
        (["quantize", "llama-3.1-8b", *H100, "--method", "awq"], "awq"),
        (["quantize", "llama-3.1-8b", *H100, "--input-len", "0"], "must be at least"),
        (["quantize", "llama-3.1-8b", *H100, "--format", "xml"], "--format"),
        (["quantize", "qwen2.5-7b", *H100, "-tp", "8"], "28 attention heads"),
        (["speculate", *H100], "no model"),
        (["speculate", "llama-3.1-8b", *H100, "--method", "eagle7"], "eagle7"),
        (["speculate", "llama-3.1-8b", *H100, "--acceptance", "2"], "acceptance"),
        (["speculate", "llama-3.1-8b", *H100, "--method", "draft-model"], "draft model"),
        (["speculate", "llama-3.1-8b", *H100, "-k", "0"], "--draft-tokens"),
        (["speculate", "llama-3.1-8b", *H100, "--batch-sizes", "1,x"], "--batch-sizes"),
        (["kv", "llama-3.1-8b", "--contexts", "-4"], "--contexts"),
        (["kv", "llama-3.1-8b", "--kv-cache-dtype", "fp7"], "fp7"),
        (["cache-curve", "nowhere.jsonl"], "nowhere.jsonl"),
        (["cache-curve", "nowhere.jsonl", "--model", "llama-3.1-8b"], "--gpu"),
        (["engines", "--gpu", "h999"], "h999"),
        (["scale", "llama-3.1-8b", *H100, "--axis", "diagonal"], "diagonal"),
        (["scale", "llama-3.1-8b", *H100, "--axis", "data"], "no experts"),
        (["scale", "qwen3-30b-a3b", *H100, "-dp", "2"], "--axis data"),
        (["kv", "llama-3.1-8b", "--window", "0"], "--window"),
        (["quantize", "qwen3-30b-a3b", *H100, "-dp", "2"], "--data-parallel-size"),
        (["speculate", "qwen3-30b-a3b", *H100, "-dp", "2"], "--data-parallel-size"),
        (["attention-io", "qwen3-30b-a3b", *H100, "-dp", "2"], "--data-parallel-size"),
        (["batching", "qwen3-30b-a3b", *H100, *ARRIVALS, "-dp", "2"], "--data-parallel-size"),
        (["batching", "llama-3.1-8b", *H100, *ARRIVALS, "--speculator", "ngram"], "--speculator"),
        (["batching", "llama-3.1-8b", *H100, *ARRIVALS, "--kv-offloading-size", "8"], "--kv-offloading"),
        (["quantize", "llama-3.1-8b", *H100, "--engine", "ollama", "-q", "awq"], "ollama"),
        (["scale", "llama-3.1-8b", *H100, "--tpot", "-1"], "--tpot"),
        (["batching", "llama-3.1-8b", *H100], "no traffic"),
        (
            ["batching", "llama-3.1-8b", *H100, "--isl", "9", "--osl", "9", "--batch-size", "0"],
            "batch",
        ),
        (["attention-io", "deepseek-v3", "--gpu", "b200", "-tp", "8"], "mla"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_questions_are_refused_in_one_line(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = run(arguments, monkeypatch, capsys)
    assert code == 2
    assert complaint in text
    assert len(text.strip().splitlines()) == 1


def test_a_target_that_does_not_fit_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(["speculate", "llama-3.3-70b", *H100], monkeypatch, capsys)
    assert code == 1
    assert "DoesNotFit" in text


def test_a_trace_without_content_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,5\n", encoding="utf-8")
    code, text = run(["cache-curve", str(path)], monkeypatch, capsys)
    assert code == 2
    assert "hash_ids" in text


def test_the_verbs_stay_out_of_start_up() -> None:
    """`capacity --help` loads no technique , no numpy, no SimPy."""
    code = (
        "import sys, capacity.cli.main; "
        "loaded = {m for m in sys.modules if m.startswith('capacity.techniques.') or m in ('numpy', 'simpy')}; "
        "sys.exit(loaded != set())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
