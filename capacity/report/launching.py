"""What to type next: the commands that launch a deployment, its Kubernetes manifest, the benchmark that checks it.

Flags are those of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.x (`trtllm-serve`), 2026-11. Only what was asked for
is written; what an engine's command line cannot say is a note.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capacity.base.errors import UnknownName
from capacity.deployment import Pool
from capacity.model.quantization import vllm_checkpoint
from capacity.workload.slo import Slo

PORT = 8000
PROXY_PORT = 8080
NIXL_HOST = """          env:
            - name: VLLM_NIXL_SIDE_CHANNEL_HOST  # where the other side fetches KV
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
"""
IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:latest",
}
STARTUP_S = 3600  # a large checkpoint is still loading: the server must not be killed meanwhile
DRAFT = "DRAFT-CHECKPOINT"
VLLM_METHODS = {"eagle3-chain": "eagle3", "eagle2": "eagle", "draft-model": "draft_model"}
WITH_CHECKPOINT = ("eagle", "eagle2", "eagle3", "eagle3-chain", "medusa", "draft-model")
SGLANG_ALGORITHMS = {
    "eagle": "EAGLE",
    "eagle2": "EAGLE",
    "eagle3": "EAGLE3",
    "eagle3-chain": "EAGLE3",
    "mtp": "NEXTN",
    "draft-model": "STANDALONE",
    "ngram": "NGRAM",
}
TENSORRT_LLM_DECODING = {
    "eagle3": "Eagle3",
    "eagle3-chain": "Eagle3",
    "mtp": "MTP",
    "ngram": "NGram",
    "medusa": "Medusa",
    "draft-model": "DraftTarget",
}
POLICIES = {"round-robin": "round_robin", "prefix-aware": "cache_aware"}  # of SGLang's model gateway
ONLINE_FORMATS = (
    "fp8",
    "bf16",
    "fp16",
    "bitsandbytes",
    "nf4",
)  # made from the 16-bit checkpoint while loading


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command as its words, what it cannot say, and the files that it reads (name, text)."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The command, quoted for a shell, a flag a line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--") and lines[-1]:
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n    ".join(" ".join(line) for line in lines)


def launch_command(engine: str, model_id: str, pool: Pool) -> Launch:
    """The command of `engine` (vllm, sglang, tensorrt-llm) for one replica, in its role. Raises UnknownName."""
    makers = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}
    name = engine.partition("@")[0].strip().lower()
    if name not in makers:
        raise UnknownName("engine to launch", engine, makers)
    return makers[name](model_id, pool)


def _flags(values: Sequence[tuple[str, Any]]) -> list[str]:
    """`--flag value` for what is given; True stands alone, None and False are left out."""
    words: list[str] = []
    for flag, value in values:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


def _vllm(model_id: str, pool: Pool) -> Launch:
    switches = [
        ("--enable-chunked-prefill", pool.enable_chunked_prefill),
        ("--enable-prefix-caching", pool.enable_prefix_caching),
        ("--async-scheduling", pool.async_scheduling),
    ]
    flags = [
        ("--tensor-parallel-size", _above(pool.tensor_parallel_size, 1)),
        ("--pipeline-parallel-size", _above(pool.pipeline_parallel_size, 1)),
        ("--data-parallel-size", _above(pool.data_parallel_size, 1)),
        ("--enable-expert-parallel", pool.enable_expert_parallel),
        ("--quantization", _online(pool.quantization) or vllm_checkpoint(pool.quantization)),
        ("--dtype", None if pool.dtype == "auto" else pool.dtype),
        ("--kv-cache-dtype", None if pool.kv_cache_dtype == "auto" else pool.kv_cache_dtype),
        ("--max-model-len", pool.max_model_len),
        ("--gpu-memory-utilization", pool.gpu_memory_utilization),
        ("--kv-cache-memory-bytes", pool.kv_cache_memory_bytes),
        ("--max-num-seqs", pool.max_num_seqs),
        ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        ("--max-num-scheduled-tokens", pool.max_num_scheduled_tokens),
        ("--block-size", pool.block_size),
        ("--enforce-eager", pool.enforce_eager),
        ("--long-prefill-token-threshold", pool.long_prefill_token_threshold or None),
        ("--scheduling-policy", None if pool.scheduling_policy == "fcfs" else pool.scheduling_policy),
        ("--num-gpu-blocks-override", pool.num_gpu_blocks_override),
        ("--speculative-config", _json(_vllm_drafts(pool))),
        ("--kv-transfer-config", _json(_vllm_transfer(pool))),
        ("--kv-offloading-size", pool.kv_offloading_size),
        ("--kv-offloading-backend", None if pool.kv_offloading_size is None else pool.kv_offloading_backend),
        ("--preemption-mode", None if pool.preemption_mode == "recompute" else pool.preemption_mode),
        ("--swap-space", None if pool.preemption_mode == "recompute" else pool.swap_space),
    ]
    named = [
        flag if value else flag.replace("--", "--no-", 1) for flag, value in switches if value is not None
    ]
    words = ["vllm", "serve", model_id, *_flags(flags), *named, "--port", str(PORT)]
    return Launch(words=tuple(words), notes=(*_checkpoint_notes(pool), *_draft_notes(pool)))


def _given_length(pool: Pool) -> int | None:
    """The longest request, for engines that find no length by themselves."""
    return None if pool.max_model_len == "auto" else pool.max_model_len


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _vllm_drafts(pool: Pool) -> dict[str, Any] | None:
    """`--speculative-config`; a head or a draft model is a checkpoint of its own."""
    if pool.speculator is None:
        return None
    drafts: dict[str, Any] = {"method": VLLM_METHODS.get(pool.speculator, pool.speculator)}
    if pool.speculator in WITH_CHECKPOINT:
        drafts["model"] = DRAFT
    if pool.num_speculative_tokens is not None:
        drafts["num_speculative_tokens"] = pool.num_speculative_tokens
    return drafts


def _vllm_transfer(pool: Pool) -> dict[str, Any] | None:
    """`--kv-transfer-config` of a pool in a disaggregated deployment."""
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(pool.role)
    return None if role is None else {"kv_connector": "NixlConnector", "kv_role": role}


def _draft_notes(pool: Pool) -> tuple[str, ...]:
    if pool.speculator is None or pool.speculator not in WITH_CHECKPOINT:
        return ()
    return (
        f"{DRAFT}: put the {pool.speculator.partition('-')[0]} checkpoint that was trained for this model in its place",
    )


def _sglang(model_id: str, pool: Pool) -> Launch:
    cache = {"fp8": "fp8_e4m3"}.get(pool.kv_cache_dtype, pool.kv_cache_dtype)
    attention_ranks = pool.enable_expert_parallel and pool.data_parallel_size > 1
    tensor = pool.tensor_parallel_size * (
        pool.data_parallel_size if attention_ranks else 1
    )  # as SGLang counts
    flags = [
        ("--model-path", model_id),
        ("--tp-size", _above(tensor, 1)),
        ("--pp-size", _above(pool.pipeline_parallel_size, 1)),
        ("--dp-size", _above(pool.data_parallel_size, 1)),
        ("--enable-dp-attention", attention_ranks),
        ("--ep-size", tensor if pool.enable_expert_parallel else None),
        ("--quantization", _online(pool.quantization)),
        ("--kv-cache-dtype", None if cache == "auto" else cache),
        ("--dtype", None if pool.dtype == "auto" else pool.dtype),
        ("--context-length", _given_length(pool)),
        ("--mem-fraction-static", pool.gpu_memory_utilization),
        ("--max-running-requests", pool.max_num_seqs),
        (
            "--chunked-prefill-size",
            -1 if pool.enable_chunked_prefill is False else pool.max_num_batched_tokens,
        ),
        ("--disable-radix-cache", pool.enable_prefix_caching is False),
        ("--disable-cuda-graph", pool.enforce_eager),
        *_sglang_drafts(pool),
        ("--disaggregation-mode", None if pool.role == "both" else pool.role),
        ("--disaggregation-transfer-backend", None if pool.role == "both" else "nixl"),
        ("--port", PORT),
    ]
    notes = (*_checkpoint_notes(pool), *_draft_notes(pool))
    if pool.gpu_memory_utilization is not None:
        notes += ("--mem-fraction-static holds weights and KV only: not the same share as vLLM's",)
    return Launch(words=("python", "-m", "sglang.launch_server", *_flags(flags)), notes=notes)


def _sglang_drafts(pool: Pool) -> list[tuple[str, Any]]:
    """A chain has one candidate a place: top-k 1, and one more row than steps."""
    if pool.speculator not in SGLANG_ALGORITHMS:
        return []
    steps = pool.num_speculative_tokens
    chain = steps is not None and pool.speculator in ("eagle3-chain", "mtp")
    return [
        ("--speculative-algorithm", SGLANG_ALGORITHMS[pool.speculator]),
        ("--speculative-draft-model-path", DRAFT if pool.speculator in WITH_CHECKPOINT else None),
        ("--speculative-num-steps", steps),
        ("--speculative-eagle-topk", 1 if chain else None),
        ("--speculative-num-draft-tokens", steps + 1 if chain and steps else None),
    ]


def _tensorrt_llm(model_id: str, pool: Pool) -> Launch:
    tensor = pool.tensor_parallel_size * pool.data_parallel_size  # attention DP divides these
    flags = [
        ("--tp_size", _above(tensor, 1)),
        ("--pp_size", _above(pool.pipeline_parallel_size, 1)),
        ("--ep_size", tensor if pool.enable_expert_parallel else None),
        ("--max_batch_size", pool.max_num_seqs),
        ("--max_num_tokens", pool.max_num_batched_tokens),
        ("--max_seq_len", _given_length(pool)),
        ("--kv_cache_free_gpu_memory_fraction", pool.gpu_memory_utilization),
    ]
    options = _tensorrt_llm_options(pool)
    name = f"trtllm-{pool.role}.yaml" if pool.role != "both" else "trtllm.yaml"
    after: list[tuple[str, Any]] = [("--extra_llm_api_options", name if options else None), ("--port", PORT)]
    notes = _draft_notes(pool)
    if pool.quantization:
        notes += (
            f"{pool.quantization} weights: name a checkpoint in that format; trtllm-serve does not quantize",
        )
    if pool.gpu_memory_utilization is not None:
        notes += (
            "--kv_cache_free_gpu_memory_fraction is of the memory left after loading: not the same share",
        )
    if pool.speculator is not None and pool.speculator not in TENSORRT_LLM_DECODING:
        notes += (f"drafts by {pool.speculator} are not among trtllm-serve's",)
    words = ("trtllm-serve", "serve", model_id, *_flags(flags), *_flags(after))
    return Launch(words=words, notes=notes, files=((name, "\n".join(options) + "\n"),) if options else ())


def _tensorrt_llm_options(pool: Pool) -> list[str]:
    """What trtllm-serve reads from a file only (YAML)."""
    lines = []
    if pool.kv_cache_dtype != "auto":
        lines += ["kv_cache_config:", f"  dtype: {pool.kv_cache_dtype}"]
    if pool.data_parallel_size > 1:
        lines += ["enable_attention_dp: true"]
    if pool.speculator in TENSORRT_LLM_DECODING:
        lines += ["speculative_config:", f"  decoding_type: {TENSORRT_LLM_DECODING[pool.speculator]}"]
        if pool.num_speculative_tokens is not None:
            count = "num_nextn_predict_layers" if pool.speculator == "mtp" else "max_draft_len"
            lines += [f"  {count}: {pool.num_speculative_tokens}"]
        if pool.speculator in WITH_CHECKPOINT:
            lines += [f"  speculative_model_dir: {DRAFT}"]
    if pool.role != "both":
        lines += ["cache_transceiver_config:", "  backend: DEFAULT"]
    if pool.role == "prefill":
        lines += ["disable_overlap_scheduler: true"]
    return lines


def router_command(engine: str, router: str, replicas: Sequence[str]) -> Launch:
    """What stands before equal replicas at `replicas` (host:port): SGLang's gateway, whatever the engine."""
    urls = [f"http://{address}" for address in replicas]
    words = ("python", "-m", "sglang_router.launch_router", "--worker-urls", *urls)
    policy = POLICIES.get(router)
    notes: tuple[str, ...] = (
        () if policy else (f"this gateway has no policy {router}: take the nearest that yours has",)
    )
    if engine.partition("@")[0] != "sglang":
        notes += ("any OpenAI-compatible server can stand behind it",)
    return Launch(words=(*words, *_flags([("--policy", policy), ("--port", PROXY_PORT)])), notes=notes)


def proxy_command(engine: str, prefill: Sequence[str], decode: Sequence[str]) -> Launch:
    """What carries each request through a prefill and a decode server, at addresses host:port. Raises UnknownName."""
    name = engine.partition("@")[0].strip().lower()
    if name == "vllm":
        words = ["python", "toy_proxy_server.py", "--port", str(PROXY_PORT)]
        for flag, addresses in (("prefiller", prefill), ("decoder", decode)):
            split = [address.rsplit(":", 1) for address in addresses]
            words += [f"--{flag}-hosts", *(host for host, _ in split)]
            words += [f"--{flag}-ports", *(port for _, port in split)]
        note = "toy_proxy_server.py is in vLLM's repository: tests/v1/kv_connector/nixl_integration"
        return Launch(words=tuple(words), notes=(note,))
    if name == "sglang":
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        for flag, addresses in (("--prefill", prefill), ("--decode", decode)):
            words += [word for address in addresses for word in (flag, f"http://{address}")]
        return Launch(words=(*words, "--host", "0.0.0.0", "--port", str(PROXY_PORT)))
    if name == "tensorrt-llm":
        lines = ["hostname: 0.0.0.0", f"port: {PROXY_PORT}", "backend: pytorch"]
        for part, addresses in (("context_servers", prefill), ("generation_servers", decode)):
            lines += [f"{part}:", f"  num_instances: {len(addresses)}", "  urls:"]
            lines += [f"    - {json.dumps(address)}" for address in addresses]
        config = "disagg_config.yaml"
        words = ["trtllm-serve", "disaggregated", "-c", config]
        return Launch(words=tuple(words), files=((config, "\n".join(lines) + "\n"),))
    raise UnknownName("engine to launch", engine, ("vllm", "sglang", "tensorrt-llm"))


def _above(value: int, least: int) -> int | None:
    return value if value > least else None


def _online(quantization: str | None) -> str | None:
    """What the engine makes of the 16-bit checkpoint while loading; other formats are the checkpoint's own."""
    return quantization if quantization in ONLINE_FORMATS else None


def _checkpoint_notes(pool: Pool) -> tuple[str, ...]:
    if pool.quantization is None or pool.quantization in ONLINE_FORMATS:
        return ()
    return (f"{pool.quantization} weights: put a checkpoint in that format in place of the model's name",)


def bench_command(
    model_id: str,
    *,
    slos: Sequence[Slo],
    requests: int,
    request_rate_per_s: float,
    input_tokens: float,
    output_tokens: float,
    burstiness: float = 1.0,
    range_ratio: float = 0.0,
    prefix_tokens: int = 0,
    replay: str | None = None,
    port: int = PORT,
    result: str | None = None,
    metadata: Sequence[tuple[str, object]] = (),
) -> Launch:
    """`vllm bench serve` with the same arrivals: lengths and rate, or `replay`, the arguments of a timed trace
    (`write_timed_trace` gives them). `result`: the file that it writes."""
    notes: tuple[str, ...] = ()
    if replay is not None:
        data = shlex.split(replay)
        notes = ("set PYTHONHASHSEED for prompts that are the same each time",)
    else:
        rate = "inf" if math.isinf(request_rate_per_s) else f"{request_rate_per_s:g}"
        data = _flags(
            [
                ("--dataset-name", "random"),
                ("--random-input-len", round(input_tokens)),
                ("--random-output-len", max(round(output_tokens), 1)),
                ("--random-range-ratio", range_ratio or None),
                ("--random-prefix-len", prefix_tokens or None),
                ("--request-rate", rate),
                ("--burstiness", None if burstiness == 1 else f"{burstiness:g}"),
                ("--num-prompts", requests),
                ("--ignore-eos", True),
            ]
        )
    limits = [f"{slo.metric}:{slo.limit_s * 1e3:g}" for slo in slos if slo.metric != "itl"]
    words = ["vllm", "bench", "serve", "--model", model_id, "--base-url", f"http://localhost:{port}"]
    words += data
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    words += ["--goodput", *limits] if limits else []
    words += ["--save-result", "--save-detailed", *_flags([("--result-filename", result)])]
    words += ["--metadata", *(f"{key}={value}" for key, value in metadata)] if metadata else []
    return Launch(words=tuple(words), notes=notes)


def kubernetes_manifest(name: str, launch: Launch, pool: Pool, replicas: int) -> str:
    """A Deployment and a Service: GPUs per replica, shared memory for NCCL, probes that wait for the weights."""
    label = _dns_name(name)
    return f"{_engines('Deployment', label, launch, pool, replicas)}---\n{_service(label, PORT)}"


def kubernetes_disaggregated(
    name: str, launches: Sequence[Launch], pools: Sequence[Pool], proxy: Launch
) -> str:
    """Prefill and decode servers, each under a name of its own, and the proxy before them with its Service.

    `addresses` says how the proxy finds them.
    """
    label = _dns_name(name)
    parts = []
    for launch, pool in zip(launches, pools, strict=True):
        own = f"{label}-{pool.role}"
        parts += [
            _engines("StatefulSet", own, launch, pool, pool.replicas),
            _service(own, PORT, headless=True),
        ]
    engine = pools[0].engine.partition("@")[0]
    return "---\n".join([*parts, _proxy(label, engine, proxy), _service(label, PROXY_PORT)])


def addresses(name: str, pool: Pool) -> tuple[str, ...]:
    """host:port of each replica of a pool of `kubernetes_disaggregated`."""
    own = f"{_dns_name(name)}-{pool.role}"
    return tuple(f"{own}-{number}.{own}:{PORT}" for number in range(pool.replicas))


def _engines(kind: str, label: str, launch: Launch, pool: Pool, replicas: int) -> str:
    engine = pool.engine.partition("@")[0]
    span = ""
    if pool.num_gpus > 8:
        span = f"# {pool.num_gpus} GPUs of one engine span nodes: use a LeaderWorkerSet; the pod below is one node's\n"
    named = f"  serviceName: {label}\n" if kind == "StatefulSet" else ""
    probe = f"httpGet: {{path: /health, port: {PORT}}}"
    return f"""{_options(label, launch)}{span}apiVersion: apps/v1
kind: {kind}
metadata:
  name: {label}
spec:
{named}  replicas: {replicas}
  selector:
    matchLabels: {{app: {label}}}
  template:
    metadata:
      labels: {{app: {label}}}
    spec:
      nodeSelector: {{}}  # the label by which your nodes name {pool.gpu}
      containers:
        - name: engine
          image: {json.dumps(IMAGES.get(engine, engine))}
          command:
{_command(launch)}
{NIXL_HOST if engine == "vllm" and pool.role != "both" else ""}          ports:
            - containerPort: {PORT}
          resources:
            limits:
              nvidia.com/gpu: {min(pool.num_gpus, 8)}
          startupProbe:
            {probe}
            periodSeconds: 10
            failureThreshold: {STARTUP_S // 10}
          readinessProbe:
            {probe}
            periodSeconds: 5
          livenessProbe:
            {probe}
            periodSeconds: 15
            failureThreshold: 4
{_mounts(label, launch)}"""


def _command(launch: Launch) -> str:
    read = {name: f"/options/{name}" for name, _ in launch.files}
    return "\n".join(f"            - {json.dumps(read.get(word, word))}" for word in launch.words)


def _options(label: str, launch: Launch) -> str:
    """The files that a command reads, as a ConfigMap."""
    if not launch.files:
        return ""
    data = "".join(
        f"  {name}: |\n" + "".join(f"    {line}\n" for line in text.splitlines())
        for name, text in launch.files
    )
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {label}-options\ndata:\n{data}---\n"


def _mounts(label: str, launch: Launch) -> str:
    mounts = ["          volumeMounts:", "            - {name: shm, mountPath: /dev/shm}"]
    volumes = [
        "      volumes:",
        "        - name: shm",
        "          emptyDir: {medium: Memory, sizeLimit: 16Gi}",
    ]
    if launch.files:
        mounts += ["            - {name: options, mountPath: /options}"]
        volumes += ["        - name: options", f"          configMap: {{name: {label}-options}}"]
    return "\n".join([*mounts, *volumes]) + "\n"


def _proxy(label: str, engine: str, proxy: Launch) -> str:
    notes = "".join(f"# {note}\n" for note in proxy.notes)
    own = f"{label}-proxy"
    return f"""{_options(own, proxy)}{notes}apiVersion: apps/v1
kind: Deployment
metadata:
  name: {own}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: {label}}}
  template:
    metadata:
      labels: {{app: {label}}}
    spec:
      containers:
        - name: proxy
          image: {json.dumps(IMAGES.get(engine, engine))}
          command:
{_command(proxy)}
          ports:
            - containerPort: {PROXY_PORT}
          readinessProbe:
            tcpSocket: {{port: {PROXY_PORT}}}
            periodSeconds: 5
{_mounts(own, proxy)}"""


def _service(label: str, port: int, *, headless: bool = False) -> str:
    return f"""apiVersion: v1
kind: Service
metadata:
  name: {label}
spec:
{"  clusterIP: None" + chr(10) if headless else ""}  selector: {{app: {label}}}
  ports:
    - port: {port if headless else 80}
      targetPort: {port}
"""


def _dns_name(text: str) -> str:
    """`text` as Kubernetes names things: lower case, digits, hyphens, at most 63."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "llm"
