"""Every verb with a model takes it from a deployment file or a pasted launch line, and says what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flag_walk import ask, options
from replayed_servers import result_file
from typer.main import get_command
from typer.testing import CliRunner

from capacity.base.errors import InvalidInput
from capacity.cli.main import app
from capacity.deployment import Pool
from capacity.pool.resolve import resolve

FILE = """schema = "capacity/deployment/v1"
model = "llama-3.1-8b"

[[pools]]
gpu = "h100"
tensor_parallel_size = 2
quantization = "fp8"
enable_prefix_caching = true
replicas = 2

[traffic]
input_len = 400
output_len = 40
request_rate = 4.0
num_prompts = 80
random_range_ratio = 0.0
"""
LINE = "vllm serve llama-3.1-8b -tp 2 --quantization fp8 --enable-prefix-caching"
WITHOUT_MODEL = {  # verbs that ask nothing of one deployment, and why
    "schedule": "a written scenario says what the scheduler gets",
    "models": "a list",
    "gpus": "a list",
    "use-cases": "a list",
    "schema": "of the answers' formats",
    "from-launch": "makes a deployment file of a launch line",
    "from-vllm": "the same",
    "dashboard": "starts a server",
}
SHARED = "llama-3.1-8b --gpu h100 -tp 2 -q fp8"
LENGTHS = "--input-len 400 --output-len 40"
TYPED = {  # what the file says, typed, by verb; and what else is asked
    "quantize": (f"{SHARED} {LENGTHS}", "--method bf16 --method fp8-tensor"),
    "speculate": (SHARED, "--batches 1,8"),
    "scale": (f"{SHARED} {LENGTHS}", ""),
    "attention-io": ("llama-3.1-8b --gpu h100 -tp 2", ""),
    "beam-search": (f"{SHARED} {LENGTHS}", "--beam-widths 1,4"),
    "kv": ("llama-3.1-8b --gpu h100 --tensor-parallel-size 2 -q fp8", ""),
    "batching": (
        f"{SHARED} --enable-prefix-caching {LENGTHS} --request-rate 4 --num-prompts 80 --random-range-ratio 0",
        "",
    ),
    "frontier": (
        "llama-3.1-8b --gpus h100 --tensor-parallel-sizes 2 --quantizations fp8 --enable-prefix-caching "
        f"{LENGTHS} --num-prompts 80 --random-range-ratio 0",
        "--loads 1,8",
    ),
    "plan": (
        f"llama-3.1-8b {LENGTHS} --request-rate 4 --num-prompts 80 --random-range-ratio 0",
        "--gpus h100 --slo ttft:p95:500ms --price-tier on-demand",
    ),
    "cascade": (
        f"{SHARED} {LENGTHS} --request-rate 4 --num-prompts 80 --random-range-ratio 0",
        "--small llama-3.2-1b --escalation-rate 0.4 --price 2",
    ),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("verb", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_every_verb_of_a_model_takes_a_deployment_and_a_launch_line(verb: str) -> None:
    taken = {name for name, _ in options(verb)} & {"deployment", "from-launch"}
    assert taken == (set() if verb in WITHOUT_MODEL else {"deployment", "from-launch"})


@pytest.mark.parametrize("verb", TYPED)
def test_deployment_file_answers_as_the_same_flags(verb: str, file: Path) -> None:
    typed, more = TYPED[verb]
    by_flags, by_file = ask(f"{verb} {typed} {more}"), ask(f"{verb} --deployment {file} {more}")
    assert by_flags.answer is not None, by_flags.refusal
    assert by_file.answer is not None, by_file.refusal
    for answer in (by_flags.answer, by_file.answer):
        for clock in ("elapsed_s", "first_answer_s"):
            answer.pop(clock, None)
    assert by_file.answer == by_flags.answer


@pytest.mark.parametrize("verb", ["quantize", "scale", "beam-search", "kv"])
def test_launch_line_answers_as_the_same_flags(verb: str) -> None:
    typed, more = TYPED[verb]
    gpu = "--gpu h100 --from-launch"
    pasted = CliRunner().invoke(app, [verb, *gpu.split(), LINE, *more.split(), "--format", "json"])
    lengths = LENGTHS if verb != "kv" else ""
    assert json.loads(pasted.stdout) == ask(f"{verb} {typed.replace(lengths, '')} {more}").answer


def test_flags_go_over_the_deployment_and_what_is_left_out_is_said(file: Path) -> None:
    asked = ["quantize", "--deployment", str(file), "-tp", "4", "--method", "bf16", "--format", "json"]
    result = CliRunner().invoke(app, asked)
    assert result.stderr == (
        "not used by quantize: --enable-prefix-caching, --replicas, --request-rate, --num-prompts, "
        "--random-range-ratio\n"
    )
    typed = ask(f"quantize llama-3.1-8b --gpu h100 -tp 4 -q fp8 {LENGTHS} --method bf16")
    assert json.loads(result.stdout) == typed.answer


def test_plan_names_the_settings_that_it_searches(file: Path) -> None:
    asked = [
        "plan",
        "--deployment",
        str(file),
        "--gpus",
        "h100",
        "--slo",
        "ttft:p95:500ms",
        "--price-tier",
        "on-demand",
    ]
    stderr = CliRunner().invoke(app, asked).stderr
    left_out = "--gpu, --tensor-parallel-size, --quantization, --enable-prefix-caching, --replicas"
    assert f"not used by plan: {left_out}\n" in stderr


def test_compare_takes_the_server_from_the_deployment_and_the_load_from_the_results(
    tmp_path: Path, file: Path
) -> None:
    pool = Pool(gpu="h100", tensor_parallel_size=2, quantization="fp8")
    results = result_file(tmp_path / "r.json", resolve("llama-3.1-8b", pool), 8, model_id="chat")
    for verb, more in (("compare", ""), ("calibrate", f"--out {tmp_path}")):
        said = ask(f"{verb} {results} --deployment {file} {more}")
        assert (
            said.answer == ask(f"{verb} {results} --model llama-3.1-8b --gpu h100 -tp 2 -q fp8 {more}").answer
        )
    assert said.answer["figures"]


@pytest.mark.parametrize("verb", ["quantize", "plan", "compare r.json", "kv"])
def test_deployment_of_several_pools_is_refused(verb: str, file: Path) -> None:
    file.write_text(FILE + '\n[[pools]]\ngpu = "a100"\n'.replace("\n[[", "\n\n[["))
    with pytest.raises(InvalidInput, match="has 2 pools, and this verb takes one"):
        CliRunner().invoke(
            app, [*verb.split(), "--deployment", str(file)], standalone_mode=False, catch_exceptions=False
        )


@pytest.mark.parametrize("verb", ["quantize", "plan", "kv", "scale", "frontier"])
def test_verb_without_a_model_says_how_to_give_one(verb: str) -> None:
    assert (
        "no model: name one" in ask(f"{verb} --gpus h100" if verb in ("plan", "frontier") else verb).refusal
    )
