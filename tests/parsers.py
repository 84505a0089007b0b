"""Every parser of outside text in one table: what reads it, sound examples, and what may come of anything else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmark_files import vllm_result
from capacity_validate.campaigns import load_campaign
from capacity_validate.cases import read_measurements
from capacity_validate.evidence import read_evidence
from capacity_validate.kernel_files import read_kernel_file
from capacity_validate.scrape_history import read_scrapes
from capacity_validate.server_log import read_server_log
from hf_configs import LATENT, LLAMA, MOE
from scenario_lines import scenario
from server_files import CONFIG, FILES
from sweep_files import SPEC
from trace_texts import AZURE, BURSTGPT, PLAIN, agentic, mooncake

import capacity
from capacity.answers.parsed_question import parse_question
from capacity.base.errors import CapacityError
from capacity.base.external_files import read_text
from capacity.deployment import read_deployment
from capacity.deployment.launch_command import read_servers
from capacity.hardware.pricing import read_prices
from capacity.hardware.profile import parse_profile
from capacity.planning.bills.hosted_prices import read_api_prices
from capacity.planning.halls.hall import plan_hall
from capacity.planning.sweeps.sweep_results import sweep_results
from capacity.planning.sweeps.sweep_spec import read_sweep
from capacity.service.verb_requests import answer_json
from capacity.simulator.scenarios import read_scenarios, schedule_scenario
from capacity.workload import read_trace
from capacity.workload.slo import parse_slos

SMALL = "llama-3.2-1b"
SHORT = {"gpu": "h100", "input_len": 64, "output_len": 4, "batch_size": 2}
LOAD = {"gpu": "h100", "input_len": 64, "output_len": 4, "request_rate": 3, "num_prompts": 2}
LONGEST_LINE = 900  # of an error, in characters
LONGEST_S = 5.0  # of CPU
ROOT = Path(__file__).parent.parent
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}
    },
    "ignore": ["re:.*gate", "lm_head"],
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
ROPE = {"rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 2048}}
DEPLOYMENT = """schema = "capacity/deployment/v1"
model = "llama-3.2-1b"
[[pools]]
gpu = "h100"
max_num_seqs = 9
[traffic]
input_len = 40
output_len = 4
request_rate = 2.5
"""
PRICES = (
    "gpu,provider,product,tier,usd_per_gpu_hour,gpus_per_instance,date,source\n"
    "h100-sxm-80gb,A,p5.48xlarge,on-demand,2.5,8,2026-01-01,https://example.com\n"
)
LOG = (
    "INFO [gpu_worker.py:349] Available KV cache memory: 51.53 GiB\n"
    "INFO [kv_cache_utils.py:1229] GPU KV cache size: 422,112 tokens\n# cuda blocks: 7191, # CPU blocks: 512\n"
)
SCRAPE = (
    'process_start_time_seconds 1.79e9\nvllm:request_success_total{model_name="m"} 4\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",cache_dtype="fp8"} 1.0\n'
    'vllm:request_prompt_tokens_bucket{le="100.0",model_name="m"} 4\n'
    'vllm:request_prompt_tokens_sum{model_name="m"} 240\nvllm:request_prompt_tokens_count{model_name="m"} 4\n'
    'vllm:time_to_first_token_seconds_sum{model_name="m"} 1.0\n'
    'vllm:time_to_first_token_seconds_count{model_name="m"} 4\n'
)
MLPERF = (
    "MLPerf Results Summary\nScenario : Server\nCompleted samples per second    : 264.90\n"
    "Mean First Token latency (ns)   : 200849949\n"
)
LLMPERF = {"model": "m", "num_concurrent_requests": 5, "results_end_to_end_latency_s_mean": 1.2}
TRACE = (
    '{"deviceProperties": [{"name": "NVIDIA H100"}], "traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "args": '
    '{"External id": 1, "Input type": ["c10::Half"], "Input Dims": [[8, 64], [64, 32]]}}, {"cat": "kernel", "name": '
    '"nvjet", "ts": 1.5, "dur": 9.5, "args": {"External id": 1, "device": 0}}]}'
)
NCCL_TESTS = (
    "# nThread 1 nGpus 2 all_reduce_perf\n#       size         count      type   redop    root     time\n"
    "     1048576        262144     float     sum      -1   339.61    3.09    3.09       0   335.85    3.12    3.12\n"
)
PERF_TABLE = (
    "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
    "VLLM,0.11,X,gemm,k,bfloat16,8,64,64,0.1\n"
)
KERNEL_TABLE = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Name\n50.1,99385786,32,3105805.8,flash_attention\n"
)
NVBENCH = (
    '{"devices": [{"name": "X"}], "benchmarks": [{"name": "b", "states": [{"axis_values": [{"name": "T", "value": '
    '"F16"}, {"name": "M", "value": "8"}, {"name": "N", "value": "8"}, {"name": "K", "value": "8"}], "summaries": '
    '[{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": "1e-05"}]}]}]}]}'
)


@dataclass(frozen=True, slots=True)
class Parser:
    """`read` takes the path of a file, or the text itself where `text`."""

    read: Callable[[str], object]
    sound: tuple[str, ...]
    text: bool = False


def _model(path: str) -> object:
    capacity.fit(path, gpu="h100", tensor_parallel_size=2)
    return capacity.estimate(path, **SHORT)  # type: ignore[arg-type]


def _schedules(path: str) -> object:
    return [schedule_scenario(each) for each in read_scenarios(path)]


def _launched(text: str) -> object:
    return [server.pool("h100") for server in read_servers(text)]


def _traced(path: str) -> object:
    return read_trace(path, limit=5000)


def _config(**changes: object) -> str:
    return json.dumps(LLAMA | changes)


def _measured(path: str) -> object:
    return read_kernel_file(Path(path))


def _asked(text: str) -> object:
    return answer_json("estimate", text.encode("utf-8", "surrogateescape"))


def _hall(path: str) -> object:
    return plan_hall(path, power_budget="1MW", gpus="h100", num_prompts=2, slo="ttft:p95:2s")


CASES = (
    '{"schema": "capacity/measurements/v1", "environment": {}, "profile": "h100"}\n'
    '{"operator": "gemm", "kernel": "bf16", "sizes": {"m": 8, "n": 64, "k": 64}, "status": "ok", "timing": '
    '{"seconds": 1e-5, "low_s": 9e-6, "high_s": 1e-5, "repetitions": 9, "outliers": 0, "drift": 0.0, '
    '"samples": [1e-5, 1.1e-5], "how": "events"}, "flops": 65536, "bytes": 9000}\n'
)
STATE = (
    '{"schema": "capacity/watch-state/v1", "scrapes": [{"path": "m", "engine": "vllm", "models": ["m"], '
    '"scraped_s": 1.5, "start_s": 1.0, "counters": {"request_success": 3}, "gauges": {}, "labels": {}, '
    '"histograms": {}}]}'
)
LOGS = (  # of requests, of conversations, of counters, of a benchmark
    '{"timestamp": 1763000000.5, "usage": {"prompt_tokens": 7, "completion_tokens": 3}, "session_id": "a"}\n',
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "1763000000000000000", "attributes": '
    '[{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}}, '
    '{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "2"}}]}]}]}]}\n',
    '[{"conversations": [{"from": "human", "value": "How long?"}, {"from": "gpt", "value": "So long."}]}]',
    '{"status": "success", "data": {"resultType": "matrix", "result": ['
    '{"metric": {"__name__": "vllm:request_prompt_tokens_bucket", "le": "+Inf"}, "values": [[1, "0"], [61, "9"]]}, '
    '{"metric": {"__name__": "vllm:request_generation_tokens_bucket", "le": "+Inf"}, "values": [[1, "0"], [61, "9"]]}'
    "]}}",
    '{"benchmarks": [{"requests": {"successful": [{"start_time": 1.5, "prompt_tokens": 9, "output_tokens": 2}]}}]}',
)
PARSERS: Mapping[str, Parser] = {
    "config.json": Parser(
        _model,
        (
            _config(),
            _config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
            _config(model_type="deepseek_v3", first_k_dense_replace=1, **LATENT),
            _config(model_type="qwen3_moe", **MOE),
            _config(model_type="gemma3_text", sliding_window=512, sliding_window_pattern=6, head_dim=16),
            _config(model_type="gpt_oss", layer_types=["sliding_attention", "full_attention"] * 2, **MOE),
            _config(**ROPE),
            *(_config(quantization_config=each) for each in (FP8, COMPRESSED, AWQ)),
        ),
    ),
    "hardware profile": Parser(
        lambda path: parse_profile(read_text(path, "a hardware profile")),
        ((ROOT / "hardware_profiles/h100-sxm-80gb.toml").read_text(encoding="utf-8"),),
    ),
    "deployment": Parser(read_deployment, (DEPLOYMENT,)),
    "sweep": Parser(read_sweep, (SPEC,)),
    "GPU prices": Parser(read_prices, (PRICES,)),
    "API prices": Parser(
        read_api_prices,
        (
            "\n".join(
                (ROOT / "capacity/planning/bills/hosted_prices.csv").read_text("utf-8").splitlines()[:3]
            ),
        ),
    ),
    "trace": Parser(
        _traced,
        (
            PLAIN + "0,600,5\n0.5,80,9\n",
            PLAIN.strip() + ",after_request,think_s\n0,10,2,-1,0\n1,10,2,0,4.5\n",
            AZURE + "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n",
            BURSTGPT
            + "5,,9,ChatGPT,472,18,490,Conversation log\n45,,9,ChatGPT,1087,230,1317,Conversation log\n",
            mooncake() + mooncake(timestamp=3000, hash_ids=[1, 3]),
            *LOGS,
            agentic([[0, 100, 20, -1, 0, 1.5, 0.5, None, "tool"], [3, 200, 10, 0, 1, 1, 1, None, "end"]]),
        ),
    ),
    "scenario": Parser(_schedules, (json.dumps(scenario()), json.dumps({"spec": scenario(), "name": "a"}))),
    "vLLM command": Parser(
        lambda text: capacity.from_launch(text, gpu="h100"),
        (
            "python -m sglang.launch_server --model-path m --tp 8 --dp 4 --enable-dp-attention",
            "MODEL_ID=m text-generation-launcher --num-shard 2 --quantize eetq --speculate 3",
            "llama-server -m m-Q4_K_M.gguf -c 32768 -np 4 -ctk q8_0 -ctv q8_0 --split-mode row -ts 1,1",
            "OLLAMA_NUM_PARALLEL=2 ollama run llama3.1:8b-q8_0",
            "trtllm-serve m --tp_size 2 --max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.9",
            "vllm serve meta-llama/Llama-3.2-1B -tp 2 --max-model-len 4096 --enforce-eager",
            "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --kv-cache-dtype=fp8",
            'vllm serve m --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'',
        ),
        text=True,
    ),
    "launch file": Parser(
        _launched,
        (
            *(text for text, *_ in FILES.values()),
            "#!/bin/sh\nexport A=b\nvllm serve org/m \\\n  --max-num-seqs 8 # a comment\n",
            "services:\n  llm:\n    image: vllm/vllm-openai\n    command: --model org/m\n    deploy: {replicas: 2}\n",
        ),
    ),
    "question": Parser(
        parse_question,
        (
            "70B chat on 8 H100, 1000 users, fast",
            "8xH100 70b fp8, isl 2048 osl 256, 20/s, p95 ttft 500ms tpot 40 ms",
            'vllm serve org/m -tp 4 --max-num-seqs 256 --speculative-config \'{"method": "ngram"}\' --foo 3',
            "qwen3-32b int4 4 x l40s double traffic spot $2.50/h 64k context",
            _config(),
        ),
        text=True,
    ),
    "options file": Parser(lambda path: _launched(f"vllm serve org/m --config {path}"), (CONFIG,)),
    "Modelfile": Parser(
        lambda path: _launched(f"ollama create m -f {path}"),
        ("# model org/m\nFROM ./m-Q4_K_M.gguf\nPARAMETER num_ctx 8192\nPARAMETER num_batch 512\n",),
    ),
    "speculative config": Parser(
        lambda text: capacity.simulate(SMALL, speculative_config=text, **LOAD),  # type: ignore[arg-type]
        ('{"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}', '{"method": "ngram"}'),
        text=True,
    ),
    "KV transfer config": Parser(
        lambda text: capacity.fit(SMALL, gpu="h100", kv_transfer_config=text),
        ('{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',),
        text=True,
    ),
    "service levels": Parser(
        parse_slos,
        ("ttft:p95:500ms", "tpot:50ms"),
        text=True,
    ),
    "benchmark result": Parser(
        lambda path: read_evidence([path]), (json.dumps(vllm_result()), SCRAPE, MLPERF, json.dumps([LLMPERF]))
    ),
    "server log": Parser(read_server_log, (LOG,)),
    "measurements": Parser(
        _measured,
        (
            CASES,
            TRACE,
            NCCL_TESTS,
            PERF_TABLE,
            KERNEL_TABLE,
            NVBENCH,
        ),
    ),
    "measured cases": Parser(read_measurements, (CASES,)),
    "watch": Parser(read_scrapes, (STATE, LOGS[3], SCRAPE + "vllm:num_requests_running 2 1790000000000\n")),
    "sweep results": Parser(
        sweep_results,
        (
            '{"rows": [{"option.gpu": "h100", "status": "ok", "tpot_s.value": 0.01}]}',
            "option.gpu,status,reason\nh100,ok,\n",
        ),
    ),
    "service request": Parser(
        _asked,
        (
            '{"model": "llama-3.2-1b", "gpu": "h100", "input_len": 64, "output_len": 4, "batch_size": 2}',
            '{"model": "llama-3.2-1b", "gpu": "h100", "input_len": 9, "output_len": 2, '
            '"request_rate": 3, "slo": ["e2el:1s"]}',
        ),
        text=True,
    ),
    "hall": Parser(
        _hall, ('[[models]]\nmodel = "llama-3.2-1b"\nrequest_rate = 2.0\ninput_len = 64\noutput_len = 4\n',)
    ),
    "campaign": Parser(
        load_campaign, ((ROOT / "validate/campaigns/quick.toml").read_text(encoding="utf-8"),)
    ),
}


def fault(parser: str, content: bytes, file: Path) -> str | None:
    """What is wrong with how `content` is received: None for an answer, or for a refusal of one clean line."""
    entry = PARSERS[parser]
    begin = time.process_time()
    try:
        if entry.text:
            entry.read(content.decode("utf-8", errors="surrogateescape"))
        else:
            file.write_bytes(content)
            entry.read(str(file))
    except CapacityError as error:
        text = str(error)
        if len(text) > LONGEST_LINE:
            return f"an error of {len(text)} characters: {text[:90]!r}"
        if not text.isprintable():
            return f"not printable: {text[:300]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!r} at {_place(error)}"
    spent = time.process_time() - begin
    return f"{spent:.0f} s of CPU" if spent > LONGEST_S else None


def _place(error: Exception) -> str:
    """The innermost line of this package."""
    import traceback

    ours = [f for f in traceback.extract_tb(error.__traceback__) if "capacity" in Path(f.filename).parts[-4:-1]
            or ("capacity" in f.filename and "site-packages" not in f.filename)]  # fmt: skip
    frame = (ours or traceback.extract_tb(error.__traceback__))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
