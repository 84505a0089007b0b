"""Which runs to make: those that see what the question depends on, as commands that are understood."""

import itertools
import json
import shlex
from typing import Any

import pytest
from capacity_validate import suggest_runs

import capacity
from capacity.base.errors import DoesNotFit, InvalidInput

ASKED: dict[str, Any] = {"gpu": "h200", "tensor_parallel_size": 4, "input_len": 1000, "output_len": 100}


ALL_SAID: dict[str, Any] = {
    "engine": "vllm@0.33",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "kv_cache_dtype": "bf16",
}


@pytest.mark.ci
@pytest.mark.parametrize("said", [{}, ALL_SAID])
def test_what_is_known_today_is_about_as_wide_as_simulates_interval(said: dict[str, Any]) -> None:
    load = {**ASKED, **said, "concurrency": 16, "client_latency_s": 0.005, "random_range_ratio": 0.0}
    today = suggest_runs("llama-3.1-70b", **load).half_widths
    simulated = capacity.simulate("llama-3.1-70b", **load).predicted_ms
    for name in ("mean_ttft_ms", "mean_tpot_ms"):
        interval = simulated[name]
        assert interval.low is not None
        assert interval.high is not None
        width = (interval.high - interval.low) / 2 / interval.value  # which holds further regimes of the load
        assert 0.6 * width < today[name] < 1.1 * width, name


@pytest.mark.ci
def test_each_run_narrows_what_was_asked() -> None:
    """By a quarter and more: of experts, and of dense models, whose machine is not known before."""
    found = suggest_runs("gpt-oss-120b", gpu="h200", input_len=500, output_len=100, concurrency=16)
    assert 1 <= len(found.runs) <= 3
    before = found.half_widths
    for run in found.runs:
        assert all(run.half_widths[name] <= before[name] + 1e-9 for name in before)
        before = run.half_widths
    assert sum(before.values()) < 0.75 * sum(found.half_widths.values())
    assert not any("about as accurate" in note for note in found.notes)
    load = {**ASKED, "gpu": "h100", "input_len": 500}
    familiar = suggest_runs("llama-3.1-70b", concurrency=16, **load, **ALL_SAID)
    for one, next_one in itertools.pairwise(familiar.runs):
        assert all(next_one.half_widths[name] <= one.half_widths[name] + 1e-9 for name in before)
    assert sum(familiar.runs[-1].half_widths.values()) < 0.75 * sum(familiar.half_widths.values())


@pytest.mark.ci
def test_the_commands_are_those_of_the_engine() -> None:
    found = suggest_runs("llama-3.1-70b", concurrency=16, **ASKED)
    assert found.serve.startswith("vllm serve meta-llama/Llama-3.1-70B-Instruct")
    words = shlex.split(found.runs[0].bench)
    assert words[:3] == ["vllm", "bench", "serve"]
    assert words[words.index("--max-concurrency") + 1] == str(found.runs[0].concurrency)
    assert words[words.index("--result-filename") + 1] == "run-1.json"
    assert "--save-detailed" in words
    calibrate = shlex.split(found.calibrate)
    assert calibrate[:2] == ["capacity", "calibrate"]
    assert calibrate[2 : 2 + len(found.runs)] == [run.result for run in found.runs]
    sglang = suggest_runs("llama-3.1-70b", concurrency=16, engine="sglang", **ASKED)
    assert "sglang.bench_serving" in sglang.runs[0].bench
    assert sglang.serve.startswith("python -m sglang.launch_server")


def test_a_prefill_question_is_answered_by_prefills_and_a_decode_question_by_decodes() -> None:
    short = {**ASKED, "input_len": 100, "output_len": 1000}
    decode = suggest_runs("llama-3.1-70b", concurrency=1, **short)
    assert decode.runs
    share = decode.runs[0].output_len / (decode.runs[0].input_len + decode.runs[0].output_len)
    assert share > 0.5


def test_what_cannot_be_asked_is_one_line() -> None:
    with pytest.raises(InvalidInput, match="no GPU"):
        suggest_runs("llama-3.1-8b", input_len=10, output_len=10, concurrency=1)
    with pytest.raises(InvalidInput, match="needs --input-len"):
        suggest_runs("llama-3.1-8b", gpu="h200", concurrency=1)
    with pytest.raises(InvalidInput, match="name an engine with an HTTP API"):
        suggest_runs("llama-3.1-8b", engine="naive", **ASKED)
    with pytest.raises(DoesNotFit):
        suggest_runs("llama-3.1-405b", gpu="h100", input_len=10, output_len=10, concurrency=1)


def test_the_answer_is_a_document_and_a_script() -> None:
    found = suggest_runs("llama-3.1-8b", gpu="h100", input_len=500, output_len=100, request_rate=4)
    assert json.loads(json.dumps(found.to_dict()))["schema"] == "capacity/suggested-runs/v1"
    script = "\n".join(found.lines())
    assert "# today" in script
    assert found.calibrate in script
