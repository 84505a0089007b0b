"""Launch settings from a start-up log: what the user did not give is filled in, contradictions are refused."""

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import write
from capacity_validate import calibrate, compare
from capacity_validate.calibrating_runs import RunCalibration
from capacity_validate.server_log import read_server_log
from replayed_servers import result_file

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.pool.resolve import resolve

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
ENGINE_LINE = (
    "(EngineCore_DP0 pid=272) INFO 09-15 10:00:09 [core.py:76] Initializing a V1 LLM engine (v{version}) with config: "
    "model='{model}', speculative_config=None, tokenizer='{model}', skip_tokenizer_init=False, dtype=torch.bfloat16, "
    "max_seq_len=8192, load_format=auto, tensor_parallel_size={ranks}, pipeline_parallel_size=1, data_parallel_size=1, "
    "quantization={weights}, enforce_eager=False, kv_cache_dtype={kv}, device_config=cuda, "
    "decoding_config=DecodingConfig(backend='auto', quantization=other), seed=0, served_model_name={model}, "
    "enable_prefix_caching=True, chunked_prefill_enabled=True, compilation_config={{'level': 3}}\n"
)


def log_file(path: Path, *more: str, model: str = MODEL, **changes: object) -> Path:
    words = {"version": "0.10.2", "ranks": 1, "weights": "fp8", "kv": "fp8", "model": model, **changes}
    return write(
        path / "server.log", ENGINE_LINE.format(**words) + "".join(f"INFO {line}\n" for line in more)
    )


def benchmark(path: Path, **changes: Any) -> Path:
    """A closed loop against an FP8 server with an FP8 KV cache under vLLM 0.10.2."""
    fields = {"gpu": "h100", "quantization": "fp8", "kv_cache_dtype": "fp8", "engine": "vllm@0.10.2"}
    server = resolve("llama-3.1-8b", build(Pool, {**fields, "max_model_len": 8192}))
    return result_file(path / "bench.json", server, 8, **{"model_id": MODEL, **changes})


def test_start_up_log_of_vllm_gives_release_model_and_settings(tmp_path: Path) -> None:
    log = read_server_log(log_file(tmp_path, "Model loading took 8.49 GiB"))
    assert log.launch.models == (MODEL,)
    assert log.settings == {
        "engine": "vllm@0.10.2",
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": "1",
        "data_parallel_size": "1",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
    }
    assert ("kv cache dtype", "fp8") in log.rows()


@pytest.mark.parametrize(
    "line",
    [
        "[api_server.py:1896] vLLM API server version 0.25.0",
        "[api_utils.py:339]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.0",
        "[core.py:123] Initializing a V1 LLM engine (v0.25.0) with config: model='/snap/'",
    ],
)
def test_start_up_log_of_every_release_gives_its_version(tmp_path: Path, line: str) -> None:
    log = read_server_log(write(tmp_path / "s.log", f"(APIServer pid=1) INFO 07-12 02:33:24 {line}\n"))
    assert log.settings["engine"] == "vllm@0.25"


def test_non_default_arguments_are_read_as_launch_flags(tmp_path: Path) -> None:
    arguments = (
        "non-default args: {'model_tag': '/models/Qwen3-32B', 'api_key': ['secret'], 'model': '/models/Qwen3-32B', "
        "'max_model_len': 16384, 'served_model_name': ['qwen'], 'gpu_memory_utilization': 0.85, 'max_num_seqs': 64, "
        "'enable_expert_parallel': True, 'async_scheduling': False, "
        "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}%s}"
    )
    for rest in ("", ", 'compilation_config': <Mode.FULL: 2>"):  # the second is no Python literal
        log = read_server_log(write(tmp_path / "s.log", "INFO 09-23 [utils.py:326] " + arguments % rest))
        assert log.launch.models == ("/models/Qwen3-32B", "qwen") if not rest else ("/models/Qwen3-32B",)
        assert log.settings["gpu_memory_utilization"] == "0.85"
        assert log.settings["max_num_seqs"] == 64
        assert log.settings["enable_expert_parallel"] is True
        assert log.settings["async_scheduling"] is False
        assert ("speculative_config" in log.settings) == (not rest)
        assert not any("secret" in text for row in log.rows() for text in row)


def test_server_arguments_of_sglang_are_read(tmp_path: Path) -> None:
    line = (
        "[2026-02-22 12:08:05] INFO engine.py:156: server_args=ServerArgs(model_path='Qwen/Qwen3-32B', "
        "context_length=None, dtype='auto', quantization='fp8', kv_cache_dtype='fp8_e4m3', mem_fraction_static=0.835, "
        "tp_size=4, disable_radix_cache=False, speculative_algorithm=None, disaggregation_mode='null')\n"
    )
    log = read_server_log(write(tmp_path / "s.log", line))
    assert log.launch.models == ("Qwen/Qwen3-32B",)
    wanted = {"engine": "sglang", "tensor_parallel_size": 4, "quantization": "fp8", "kv_cache_dtype": "fp8"}
    assert wanted.items() <= log.settings.items()
    assert "role" not in log.settings
    assert "enable_prefix_caching" not in log.settings


def test_compare_replays_the_server_that_the_log_describes(tmp_path: Path) -> None:
    answer = compare([benchmark(tmp_path)], gpu="h100", server_log=log_file(tmp_path))
    assert answer.engine == "vllm@0.10.2"
    (run,) = answer.runs
    assert run.error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)
    assert run.error("mean_ttft_ms") == pytest.approx(0.0, abs=1e-6)
    without = compare([benchmark(tmp_path)], gpu="h100").runs[0]
    assert (without.error("mean_tpot_ms") or 0.0) > 0.1


def test_calibrate_replays_the_server_that_the_log_describes(tmp_path: Path) -> None:
    files = [benchmark(tmp_path), log_file(tmp_path)]
    learnt = calibrate(files, gpu="h100", name="t", out=tmp_path / "out")
    assert isinstance(learnt, RunCalibration)
    assert learnt.engine == "vllm@0.10.2"
    assert all(figure.before / figure.measured == pytest.approx(1.0, abs=1e-6) for figure in learnt.figures)


@pytest.mark.parametrize(
    ("said", "both"),
    [
        ({"quantization": "bf16"}, "--quantization is bf16, but .* states fp8"),
        ({"quantization": "awq"}, "--quantization is awq, but .* states fp8"),
        ({"kv_cache_dtype": "auto"}, "--kv-cache-dtype is auto, but .* states fp8"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size is 2, but .* states 1"),
        ({"engine": "vllm@0.33"}, "--engine is vllm@0.33, but .* states vllm@0.10.2"),
        ({"engine": "sglang"}, "--engine is sglang, but .* states vllm@0.10.2"),
        ({"dtype": "half"}, "--dtype is float16, but .* states bfloat16"),
        ({"max_model_len": 4096}, "--max-model-len is 4096, but .* states 8192"),
    ],
)
def test_flag_that_contradicts_the_log_is_refused_with_both_values(
    tmp_path: Path, said: dict[str, Any], both: str
) -> None:
    files = [benchmark(tmp_path), log_file(tmp_path)]
    with pytest.raises(InvalidInput, match=both):
        calibrate(files, gpu="h100", name="t", out=tmp_path / "out", **said)
    with pytest.raises(InvalidInput, match=both):
        compare(files[:1], gpu="h100", server_log=files[1], **said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "said",
    [
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"engine": "vllm"},
        {"engine": "vllm@0.10.2"},
        {"dtype": "auto"},
        {"max_model_len": 8192},
        {"model": "llama-3.1-8b"},
        {"model": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"},
    ],
)
def test_flag_that_agrees_with_the_log_is_taken(tmp_path: Path, said: dict[str, Any]) -> None:
    said = {name: value for name, value in said.items() if value != "auto"}
    answer = compare([benchmark(tmp_path)], gpu="h100", server_log=log_file(tmp_path), **said)
    assert answer.runs[0].error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)


def test_unquantized_log_contradicts_a_weight_format(tmp_path: Path) -> None:
    log = log_file(tmp_path, weights="None", kv="auto")
    with pytest.raises(InvalidInput, match=r"--quantization is fp8, but .* states None"):
        compare([benchmark(tmp_path)], gpu="h100", server_log=log, quantization="fp8")


def test_log_with_a_method_asks_for_the_format(tmp_path: Path) -> None:
    log = log_file(tmp_path, weights="compressed-tensors")
    with pytest.raises(InvalidInput, match=r"states quantization compressed-tensors, .* give --quantization"):
        compare([benchmark(tmp_path)], gpu="h100", server_log=log)
    answer = compare([benchmark(tmp_path)], gpu="h100", server_log=log, quantization="fp8")
    assert answer.runs[0].error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)


def test_weights_in_the_log_of_another_format_are_named(tmp_path: Path) -> None:
    """A log without the lines that say the format still says how much memory the weights take."""
    log = write(
        tmp_path / "m.log", "INFO Model loading took 8.49 GiB\nINFO GPU KV cache size: 800,000 tokens\n"
    )
    wrong = r"states 8.49 GiB of weights per GPU, but llama-3.1-8b in bf16 .* give --quantization"
    with pytest.raises(InvalidInput, match=wrong):
        compare([benchmark(tmp_path)], gpu="h100", server_log=log)
    with pytest.raises(InvalidInput, match=wrong):
        compare([benchmark(tmp_path), log], gpu="h100")
    with pytest.raises(InvalidInput, match=wrong):
        calibrate([benchmark(tmp_path), log], gpu="h100", name="t", out=tmp_path / "out")
    right = {"quantization": "fp8", "kv_cache_dtype": "fp8", "engine": "vllm@0.10.2", "max_model_len": 8192}
    calibrate([benchmark(tmp_path), log], gpu="h100", name="t", out=tmp_path / "out", **right)


OTHER = "meta-llama/Llama-3.1-70B-Instruct"


def test_benchmark_of_another_model_is_refused(tmp_path: Path) -> None:
    file = benchmark(tmp_path, model_id=OTHER)
    both = f"bench.json names model {OTHER}, but --model names llama-3.1-8b"
    for run in (compare, calibrate):
        with pytest.raises(InvalidInput, match=both):
            run([file], model="llama-3.1-8b", gpu="h100")
    with pytest.raises(InvalidInput, match=f"bench.json names model {OTHER}, but .*server.log names {MODEL}"):
        calibrate([file, log_file(tmp_path)], gpu="h100")


def test_model_of_the_benchmark_is_adopted(tmp_path: Path) -> None:
    file = benchmark(tmp_path, model_id=OTHER)
    assert compare([file], gpu="h100", tensor_parallel_size=4).model == "llama-3.1-70b"


def test_quantized_upload_in_the_benchmark_gives_the_format(tmp_path: Path) -> None:
    upload = {"model_id": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"}
    options = {"kv_cache_dtype": "fp8", "engine": "vllm@0.10.2", "gpu": "h100", "max_model_len": 8192}
    for model in (None, "llama-3.1-8b"):
        answer = compare([benchmark(tmp_path, **upload)], model=model, **options)
        assert answer.runs[0].error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)


def test_name_that_only_the_server_knows_takes_the_users_model(tmp_path: Path) -> None:
    file = benchmark(tmp_path, model_id="chat")
    assert compare([file], model="llama-3.1-8b", gpu="h100").model == "llama-3.1-8b"
