"""What a verb is asked: flags over a pasted command over a deployment file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from server_files import KSERVE_RUNTIME

from capacity.base.errors import InvalidInput
from capacity.cli.question import Question, request_of

FILE = """model = "llama-3.1-8b"
[[pools]]
gpu = "h100"
max_num_seqs = 8
speculative_config = '{"method": "eagle3", "num_speculative_tokens": 2}'
[traffic]
input_len = 100
"""


def test_flags_stand_over_a_pasted_command_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(FILE)
    pasted = "vllm serve qwen3-8b --max-num-seqs 16 -tp 2"
    request = request_of(
        Question(
            flags={"tensor_parallel_size": "4", "output_len": "5"}, deployment=str(file), from_launch=pasted
        )
    )
    pool = request.pools[0]
    assert (request.model, pool.gpu, pool.max_num_seqs, pool.tensor_parallel_size) == (
        "qwen3-8b",
        "h100",
        16,
        4,
    )
    assert (request.traffic.input_len, request.traffic.output_len) == (100, 5)


def test_a_flag_wins_over_what_a_files_json_says(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(FILE)
    pool = request_of(Question(flags={"speculator": "ngram"}, deployment=str(file))).pools[0]
    assert (pool.speculator, pool.num_speculative_tokens) == ("ngram", 2)


def test_errors_name_flags_or_fields() -> None:
    zero = {"gpu": "h100", "max_num_seqs": "0"}
    for as_flags, name in ((True, "--max-num-seqs is 0"), (False, "max_num_seqs is '0'")):
        with pytest.raises(InvalidInput, match=f"^{name}"):
            request_of(Question(model="llama-3.1-8b", flags=zero), as_flags=as_flags)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match="no GPU"):
        request_of(Question(model="llama-3.1-8b", flags={}))
    with pytest.raises(InvalidInput, match="no model"):
        request_of(Question(flags={"gpu": "h100"}))


def test_an_empty_name_of_a_deployment_file_is_not_passed_over(run: Any) -> None:
    code, out, err = run("fit", "llama-3.1-8b", "--gpu", "h100", "--deployment", "")
    assert (code, out, err.count("\n")) == (2, "", 1)


LLAMA_8B = ("llama-3.1-8b", "--gpu", "h100")


LENGTHS = ("--input-len", "512", "--output-len", "64")


def test_a_deployment_file_says_what_flags_say_and_flags_win(run: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "mine.toml")
    flags = (*LLAMA_8B, "-tp", "2", *LENGTHS, "--concurrency", "8", "--price", "2")
    written = run("estimate", *flags, "--write-deployment", file, "--format", "json").json
    assert run("estimate", "--deployment", file, "--format", "json").json == written
    changed = run("estimate", "--deployment", file, "-tp", "1", "--format", "json").json
    assert changed["gpu"]["count"] == 1
    assert changed["input_len"] == 512
    assert run("fit", "--deployment", file).code == 0
    assert run("simulate", "--deployment", file, "--num-prompts", "3").code == 0


def test_a_pasted_command_is_taken_and_flags_win(run: Any) -> None:
    pasted = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 8192 --port 8000"
    ran = run("fit", "--from-vllm", pasted, "--gpu", "h100", "--format", "json")
    assert ran.json["gpu"]["count"] == 2
    assert ran.json["max_model_len"] == 8192
    assert ran.err == "ignored because it does not change any answer: --port\n"
    ran = run(
        "estimate",
        "--from-vllm",
        pasted,
        "--gpu",
        "h100",
        "-tp",
        "1",
        *LENGTHS,
        "--concurrency",
        "4",
        "--format",
        "json",
    )
    assert ran.json["gpu"]["count"] == 1


def test_a_launch_line_without_a_gpu_says_how_to_give_one(run: Any) -> None:
    code, out, err = run("from-launch", "vllm serve Qwen/Qwen3-8B")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "add --gpu NAME (`capacity gpus` lists them)" in err


def test_the_model_is_asked_for_before_the_gpu(run: Any) -> None:
    assert "no model: name one" in run("estimate").err
    assert "no GPU: add --gpu NAME" in run("estimate", "llama-3.1-8b").err


def test_api_server_count_is_taken_and_noted_where_it_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "vllm serve llama-3.1-8b --api-server-count 4"
    for verb in ("fit", "estimate", "simulate", "cost"):
        for question in (
            Question(flags={"gpu": "h100"}, verb=verb, from_launch=line),
            Question(flags={"gpu": "h100", "api_server_count": "4"}, verb=verb, model="llama-3.1-8b"),
        ):
            assert request_of(question).pools[0].api_server_count == 4
            assert capsys.readouterr().err == "not used: --api-server-count\n"


def test_fit_uses_the_gpu_that_a_launch_file_names(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(KSERVE_RUNTIME.replace("org/m", "meta-llama/Llama-3.1-8B-Instruct"), encoding="utf-8")
    ran = run("fit", "--from-launch", str(file), "--format", "json")
    assert (ran.json["gpu"]["name"], ran.json["gpu"]["count"]) == ("l40s-48gb", 2)
