"""Every verb with a model takes it from a deployment file or a pasted launch line, and says what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from capacity_validate import harness
from flag_walk import ask, options
from recorded_files import hashed, json_lines
from replayed_servers import result_file
from typer.main import get_command
from typer.testing import CliRunner

from capacity.base.errors import InvalidInput
from capacity.cli.main import app
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.report.figures import handbook

POOL = "-tp 2 -q fp8 --kv-cache-dtype auto --max-num-seqs 64 --max-num-batched-tokens 2048"
LOAD = "--input-len 400 --output-len 40 --request-rate 4 --num-prompts 120 --random-range-ratio 0"
FILE = """schema = "capacity/deployment/v1"
model = "llama-3.1-8b"

[[pools]]
gpu = "h100"
tensor_parallel_size = 2
quantization = "fp8"
kv_cache_dtype = "auto"
max_num_seqs = 64
max_num_batched_tokens = 2048
replicas = 2

[traffic]
input_len = 400
output_len = 40
request_rate = 4.0
num_prompts = 120
random_range_ratio = 0.0
"""
LINE = f"vllm serve llama-3.1-8b {POOL.replace('-q', '--quantization')}"
WITHOUT_MODEL = {  # verbs that ask nothing of one deployment, and why
    "schedule": "a written scenario says what the scheduler gets",
    "models": "a list",
    "gpus": "a list",
    "use-cases": "a list",
    "config": "defaults of flags",
    "schema": "of the answers' formats",
    "side-by-side": "takes deployment files",
    "from-launch": "makes a deployment file of a launch line",
    "from-vllm": "the same",
    "dashboard": "starts a server",
    "serve": "starts a server",
    "mcp": "starts a server",
}
OWN_TEST = (
    "charts",
    "diff",
    "sweep",
    "validate",
    "compare",
    "calibrate",
    "watch",
)  # no flags that say the same
ENGINE = f"--gpu h100 {POOL}"
LENGTHS = "--input-len 400 --output-len 40"
SERVED = f"{LOAD} --replicas 2"
SEARCHED = "--slo ttft:p95:500ms --price-tier on-demand --max-gpus 4"
TYPED = {  # by verb: what the file says of the pool and of the load, typed, and what else is asked
    "fit": (ENGINE, "", ""),
    "estimate": (ENGINE, LOAD, ""),
    "explain": (ENGINE, LOAD, ""),
    "simulate": (ENGINE, SERVED, "--price 2"),
    "frontier": (
        "--gpus h100 --tensor-parallel-sizes 2 --quantizations fp8 --max-num-seqs 64 --max-num-batched-tokens 2048",
        f"{LENGTHS} --num-prompts 120 --random-range-ratio 0",
        "--loads 1,8",
    ),
    "quantize": (ENGINE, LENGTHS, "--method bf16 --method fp8-tensor"),
    "speculate": (ENGINE, "", "--batches 1,8"),
    "scale": (ENGINE, LENGTHS, ""),
    "attention-io": ("--gpu h100 -tp 2", "", ""),
    "beam-search": (ENGINE, LENGTHS, "--beam-widths 1,4"),
    "batching": (ENGINE, LOAD, ""),
    "kv": ("--gpu h100 --tensor-parallel-size 2 -q fp8", "", ""),
    "cache-curve": ("--gpu h100 --tensor-parallel-size 2", "--replicas 2", ""),
    "engines": (ENGINE, LOAD, "--engines vllm,sglang"),
    "plan": ("", LOAD, f"--gpus h100 --quantizations default {SEARCHED}"),
    "fleet": ("", LOAD, f"--gpus h100 --split-at 300 {SEARCHED}"),
    "cost": (ENGINE, SERVED, "--price 2"),
    "curve": (ENGINE, f"{LENGTHS} --num-prompts 120 --random-range-ratio 0 --replicas 2", "--rates 2,6"),
    "tornado": (ENGINE, SERVED, "--price 2"),
    "advise": (ENGINE, SERVED, "--price 2"),
    "stack": (ENGINE, SERVED, "--price 2"),
    "cascade": (ENGINE, LOAD, "--small llama-3.2-1b --escalation-rate 0.4 --price 2"),
}
MODEL_FLAG = {"engines": "--compare llama-3.1-8b", "cache-curve": "--model llama-3.1-8b"}
SLOW = ("advise", "fleet", "plan", "stack", "tornado", "curve")
ASKED = [pytest.param(verb, marks=pytest.mark.slow) if verb in SLOW else verb for verb in TYPED]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(json_lines(hashed()))
    return path


@pytest.mark.parametrize("verb", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_every_verb_of_a_model_takes_a_deployment_and_a_launch_line(verb: str) -> None:
    taken = {name for name, _ in options(verb)} & {"deployment", "from-launch"}
    assert taken == (set() if verb in WITHOUT_MODEL else {"deployment", "from-launch"})


def test_no_verb_of_a_model_is_left_out() -> None:
    assert {*TYPED, *OWN_TEST, *WITHOUT_MODEL} == set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.ci
@pytest.mark.parametrize("verb", ASKED)
def test_deployment_and_launch_line_answer_as_the_same_flags(verb: str, file: Path, trace: Path) -> None:
    pool, load, more = TYPED[verb]
    model = MODEL_FLAG.get(verb, "llama-3.1-8b")
    more += f" {trace}" if verb == "cache-curve" else ""
    line = file.with_suffix(".sh")
    line.write_text(LINE)
    if "--replicas" not in load:  # one engine is asked about
        file.write_text(FILE.replace("replicas = 2\n", ""))
    gpu = " ".join(pool.split()[:2])
    asked = (
        f"{model} {pool} {load}",
        f"--deployment {file}",
        f"{gpu} --from-launch {line} {load}",
    )
    by_flags, *others = (ask(f"{verb} {words} {more}") for words in asked)
    assert by_flags.answer is not None, by_flags.refusal
    for other in others:
        assert other.answer is not None, other.refusal
        assert timeless(other.answer) == timeless(by_flags.answer)


def timeless(answer: Any) -> Any:
    """The answer without the time that it took."""
    return {name: value for name, value in answer.items() if name not in ("elapsed_s", "first_answer_s")}


def test_diff_takes_its_first_deployment_and_flags_change_the_second(file: Path) -> None:
    other = file.with_name("other.toml")
    other.write_text(FILE.replace('"fp8"', '"bf16"'))
    by_files = ask(f"diff {file} {other}").answer
    assert by_files["settings"] == [["quantization", "fp8", "bf16"]]
    line = file.with_suffix(".sh")
    line.write_text(LINE)
    assert ask(f"diff --deployment {file} {other}").answer == by_files
    assert ask(f"diff --deployment {file} -q bf16").answer == by_files
    assert ask(f"diff {file} -q bf16").answer == by_files
    file.write_text(FILE.replace("replicas = 2\n", ""))
    pasted = ask(f"diff --from-launch {line} --gpu h100 {LOAD} -q bf16").answer
    assert pasted == ask(f"diff --deployment {file} -q bf16").answer
    changed = ask(f"diff --from-launch {line} --gpu h100 {LOAD} --change hbm=x2").answer
    assert changed["settings"] == [["gpu", "h100", "h100+hbm=x2"]]


@pytest.mark.parametrize(
    "words", ["", "{file}", "{file} {file} -q bf16", "--deployment {file}", "{file} {file} {file}"]
)
def test_diff_of_other_than_two_deployments_is_refused(words: str, file: Path) -> None:
    assert "diff needs two deployments, not " in ask(f"diff {words.format(file=file)}").refusal


def test_sweep_fixes_what_the_deployment_says_and_its_own_file_goes_over_it(file: Path) -> None:
    spec, own = file.with_name("sweep.toml"), file.with_name("own.toml")
    head = 'schema = "capacity/sweep/v1"\nquestion = "estimate"\n'
    vary = "[vary]\ntensor_parallel_size = [1, 2]\n"
    fixed = 'kv_cache_dtype = "auto"\nmax_num_seqs = 64\nmax_num_batched_tokens = 2048\n'
    load = (
        "input_len = 400\noutput_len = 40\nrequest_rate = 4.0\nnum_prompts = 120\nrandom_range_ratio = 0.0\n"
    )
    spec.write_text(f'{head}[fixed]\nquantization = "bf16"\n{vary}')
    own.write_text(
        f'{head}[fixed]\nmodel = "llama-3.1-8b"\ngpu = "h100"\nquantization = "bf16"\n{fixed}{load}{vary}'
    )

    def rows(words: str) -> list[dict[str, Any]]:
        answer = ask(f"sweep {words} --workers 1 --store {file.with_name(f'{len(words)}.sqlite')}").answer
        assert answer["done"] == answer["points"] == 2
        return [dict(sorted(row.items())) for row in answer["rows"]]

    typed = rows(str(own))
    file.write_text(FILE.replace("replicas = 2\n", ""))
    assert rows(f"{spec} --deployment {file}") == typed
    line = file.with_suffix(".sh")
    line.write_text(LINE)
    spec.write_text(f'{head}[fixed]\ngpu = "h100"\nquantization = "bf16"\n{load}{vary}')
    by_line = rows(f"{spec} --from-launch {line}")
    assert [{**row, "kv_cache_dtype": None} for row in by_line] == [
        {**row, "kv_cache_dtype": None} for row in typed
    ]


def test_charts_draw_the_deployment_of_the_same_flags(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one they are asked to draw; tests/report/figures draws them."""
    line = file.with_suffix(".sh")
    line.write_text(LINE)
    drawn: list[Any] = []
    monkeypatch.setattr(handbook, "write_charts", lambda pool, output: drawn.append(pool) or [output])
    for words in (f"llama-3.1-8b {ENGINE}", f"--deployment {file}", f"--gpu h100 --from-launch {line}"):
        result = CliRunner().invoke(app, ["charts", *words.split(), "--output", "drawn"])
        assert (result.exit_code, result.output.split()[-1]) == (0, "drawn"), result.output
    assert [(each.pool.tensor_parallel_size, each.pool.max_num_seqs) for each in drawn] == 3 * [(2, 64)]
    engines = [each.pool.model_copy(update={"replicas": 1}) for each in drawn]
    assert engines[0] == engines[1] == engines[2]


def test_flags_go_over_the_deployment_and_what_is_left_out_is_said(file: Path) -> None:
    asked = ["quantize", "--deployment", str(file), "-tp", "4", "--method", "bf16", "--format", "json"]
    result = CliRunner().invoke(app, asked)
    assert result.stderr == (
        "not used by quantize: --replicas, --request-rate, --num-prompts, --random-range-ratio\n"
    )
    typed = ask(f"quantize llama-3.1-8b {ENGINE} {LENGTHS} -tp 4 --method bf16")
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
    engine = "--gpu, --tensor-parallel-size, --quantization, --kv-cache-dtype"
    left_out = f"{engine}, --max-num-seqs, --max-num-batched-tokens, --replicas"
    assert f"not used by plan: {left_out}\n" in stderr


def test_compare_takes_the_server_from_the_deployment_and_the_load_from_the_results(
    tmp_path: Path, file: Path
) -> None:
    pool = Pool(gpu="h100", tensor_parallel_size=2, quantization="fp8", max_num_seqs=64)
    results = result_file(tmp_path / "r.json", resolve("llama-3.1-8b", pool), 8, model_id="chat")
    for verb, more in (("compare", ""), ("calibrate", f"--out {tmp_path} --overwrite")):
        said = ask(f"{verb} {results} --deployment {file} {more}")
        assert said.answer == ask(f"{verb} {results} --model llama-3.1-8b {ENGINE} {more}").answer
    assert said.answer["figures"]


@pytest.mark.parametrize("verb", ["quantize", "plan", "compare r.json", "kv"])
def test_deployment_of_several_pools_is_refused(verb: str, file: Path) -> None:
    file.write_text(FILE + '\n[[pools]]\ngpu = "a100"\n'.replace("\n[[", "\n\n[["))
    with pytest.raises(InvalidInput, match="has 2 pools, but this command takes one"):
        CliRunner().invoke(
            app, [*verb.split(), "--deployment", str(file)], standalone_mode=False, catch_exceptions=False
        )


@pytest.mark.parametrize("verb", ["quantize", "plan", "kv", "scale", "frontier"])
def test_verb_without_a_model_says_how_to_give_one(verb: str) -> None:
    assert (
        "no model: name one" in ask(f"{verb} --gpus h100" if verb in ("plan", "frontier") else verb).refusal
    )


def test_validate_launches_a_real_engine_with_the_deployments_settings(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model and GPU as by flags; what is measured is a matter of the machine, and replaced here."""
    asked: list[dict[str, Any]] = []

    def validate(device: str, campaign: str, **options: Any) -> Any:
        del options["progress"]
        asked.append({"device": device, "campaign": campaign, **options})
        raise InvalidInput("measured")

    monkeypatch.setattr(harness, "validate", validate)
    line = file.with_suffix(".sh")
    line.write_text(LINE)
    checkpoint = "meta-llama/Llama-3.1-8B-Instruct"
    for words in (
        f"--engine vllm --deployment {file}",
        f"--engine vllm --gpu h100 --from-launch {line}",
        f"--engine vllm --gpu h100 --model {checkpoint}",
        f"--deployment {file}",
        "--gpu h100",
    ):
        assert ask(f"validate {words}").refusal == "measured"
    by_file, by_line, by_flags, measured, typed = asked
    assert by_file == by_line
    assert by_file.pop("engine_settings") == {
        "tensor_parallel_size": 2,
        "quantization": "fp8",
        "kv_cache_dtype": "auto",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
    }
    assert by_file == by_flags
    assert measured == typed
