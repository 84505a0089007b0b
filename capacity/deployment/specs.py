"""What a user writes: pools of GPUs, the traffic they carry, and what they cost.

Each field is declared once, here, with its help text and aliases; the command line, the Python keywords and the
deployment file (`DeploymentFile`) are all made from these declarations. Names are vLLM's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, Field, ValidationError, ValidationInfo, field_validator, model_validator

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.spec import Spec
from capacity.base.toml_text import toml_value
from capacity.deployment.routers import ROUTERS
from capacity.deployment.vllm_config import kv_role, speculation

MAX_FILE_BYTES = 256 * 1024
FILE_SCHEMA: Literal["capacity/deployment/v1"] = "capacity/deployment/v1"

_VARIANT = re.compile(
    r"function-|constrained-|literal\[|int$|str$|dict\["
)  # pydantic's names of alternatives
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}

_JSON_OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "speculative_config": speculation,
    "kv_transfer_config": kv_role,
}

FiniteOrInf = Annotated[float, AllowInfNan(True)]


def _flag(default: Any, help_text: str, *aliases: str, **limits: Any) -> Any:
    """A field that is also a command-line flag; `aliases` are further spellings of it."""
    return Field(default, description=help_text, json_schema_extra={"flags": list(aliases)}, **limits)


class Pool(Spec):
    """Equal engines on equal GPUs: hardware, parallelism, formats and the engine's limits. None: engine's default."""

    gpu: str = _flag(..., "GPU profile, such as h100 or h200-sxm-141gb.", "--system")
    tensor_parallel_size: int = _flag(1, "GPUs that share every layer.", "-tp", "--tp", ge=1, le=4096)
    pipeline_parallel_size: int = _flag(1, "Groups of layers in sequence.", "-pp", "--pp", ge=1, le=4096)
    data_parallel_size: int = _flag(
        1,
        "Ranks with a scheduler and a KV cache each; of a mixture of experts they share the experts, in lock-step.",
        "-dp",
        "--dp",
        ge=1,
        le=4096,
    )
    enable_expert_parallel: bool = _flag(
        False, "Distribute whole experts over the tensor- and data-parallel GPUs.", "-ep"
    )
    quantization: str | None = _flag(
        None, "Weight format (fp8, awq, nvfp4, ...); default: as in the checkpoint.", "-q"
    )
    kv_cache_dtype: str = _flag(
        "auto", "KV-cache format (auto, fp8, ...); auto: as the checkpoint says, else 16-bit."
    )
    engine: str = _flag(
        "vllm", "Engine, with an optional version: vllm, vllm@0.11, sglang, tensorrt-llm, ..."
    )
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = _flag(
        "auto", "Activations, KV and unquantized weights: half, bfloat16, ...; auto: as in the checkpoint."
    )
    max_model_len: Annotated[int, Field(ge=1, le=1 << 40)] | Literal["auto"] | None = _flag(
        None, "Longest request in tokens, prompt and output; auto: what fits; default: the model's."
    )
    gpu_memory_utilization: float | None = _flag(
        None,
        "Share of GPU memory that the engine may use.",
        "--device-memory-utilization",
        "--gpu-mem-util",
        gt=0,
        le=1,
    )
    kv_cache_memory_bytes: int | None = _flag(
        None, "Bytes of KV cache per GPU, whatever --gpu-memory-utilization says.", ge=1, le=1 << 50
    )
    max_num_seqs: int | None = _flag(None, "Most requests in one step.", ge=1, le=1 << 24)
    max_num_batched_tokens: int | None = _flag(None, "Token budget of one step.", ge=1, le=1 << 30)
    max_num_scheduled_tokens: int | None = _flag(
        None, "Most tokens scheduled in a step, below the budget that memory is kept for.", ge=1, le=1 << 30
    )
    block_size: int | None = _flag(None, "Tokens in a KV block.", ge=1, le=1 << 20)
    enable_chunked_prefill: bool | None = _flag(None, "Split long prompts over steps.")
    enable_prefix_caching: bool | None = _flag(None, "Reuse the KV of shared prefixes.")
    async_scheduling: bool | None = _flag(None, "Schedule the next step while this one runs.")
    enforce_eager: bool = _flag(False, "No CUDA graphs.")
    long_prefill_token_threshold: int = _flag(
        0, "Most prompt tokens of one request in a step; 0: no limit.", ge=0
    )
    scheduling_policy: Literal["fcfs", "priority"] = _flag("fcfs", "Order of waiting requests.")
    watermark: float = _flag(0.0, "Share of KV blocks kept free when admitting.", ge=0, lt=1)
    scheduler_reserve_full_isl: bool | None = _flag(None, "Admit a request only if its whole prompt fits.")
    prefill_schedule_interval: int = _flag(
        1, "Steps from one prefill step to the next, at least.", ge=1, le=1 << 20
    )
    kv_offloading_size: float | None = _flag(
        None,
        "GiB of host memory for KV that leaves the GPU, over all GPUs of an engine (of a data-parallel rank).",
        ge=0,
        le=1 << 30,
    )
    kv_offloading_backend: Literal["native", "lmcache"] = _flag(
        "native", "How it comes back: native (requests wait beside the queue) or lmcache (steps wait)."
    )
    kv_offloading_bytes_per_s: FiniteOrInf | None = _flag(
        None, "Rate between a GPU and host memory, each way; default: the GPU's PCIe link.", gt=0
    )
    kv_offloading_disk_size: float | None = _flag(
        None, "GiB of a second tier (disk, network) below host memory; default: none.", ge=0, le=1 << 40
    )
    kv_offloading_disk_bytes_per_s: FiniteOrInf | None = _flag(
        None, "Rate between the second tier and a GPU's share of host memory, each way.", gt=0
    )
    kv_offloading_disk_latency_s: float = _flag(0.0, "Latency of the second tier.", ge=0, le=3600)
    preemption_mode: Literal["recompute", "swap"] = _flag(
        "recompute", "What becomes of a preempted request's KV (vLLM's V0 engine alone can swap)."
    )
    swap_space: float = _flag(4.0, "GiB of host memory per GPU to swap to.", ge=0, le=1 << 30)
    kv_layout: Literal["paged", "contiguous"] = _flag(
        "paged", "KV in blocks as needed, or max_model_len reserved for every request (as before paging)."
    )
    speculator: str | None = _flag(
        None, "Way to draft (eagle3, ngram, mtp, ...; see `speculate`); default: none."
    )
    num_speculative_tokens: int | None = _flag(
        None, "Drafts of a request in a step, a tree's in depth; default: the speculator's.", ge=1, le=64
    )
    acceptance: str | None = _flag(
        None, "Acceptance of drafts: 0.7, by position 0.9,0.7,0.5, or length:2.3; default: published."
    )
    speculative_config: str | dict[str, Any] | None = _flag(
        None, "The same as vLLM's JSON: method, model, num_speculative_tokens."
    )
    decode_context_parallel_size: int = _flag(
        1, "GPUs that share the context of a decode; only 1 is modelled.", "-dcp", "--dcp", ge=1
    )
    num_gpu_blocks_override: int | None = _flag(
        None, "KV blocks, as the engine's log prints them, in place of the computed number.", ge=1
    )

    replicas: int = _flag(1, "Equal engines of this pool, behind the router.", ge=1, le=4096)
    role: Literal["both", "prefill", "decode"] = _flag(
        "both", "What its engines do: both, or in a disaggregated deployment prefill or decode."
    )
    kv_transfer_config: str | dict[str, Any] | None = _flag(
        None, "The same as vLLM's JSON: kv_role kv_producer (prefill) or kv_consumer (decode)."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, fields: Any) -> Any:
        """What vLLM's JSON options say, in this pool's own fields. One that cannot be read is left to its field."""
        if not isinstance(fields, dict):
            return fields
        found = dict(fields)
        for name, read in _JSON_OPTIONS.items():
            given = found.get(name)
            if not isinstance(given, str | dict):
                continue
            try:
                said = read(given)
            except ValueError:
                continue
            del found[name]
            for field, value in said.items():
                if field in found and found[field] != value:
                    raise InvalidInput(
                        f"{name} says {field} {value}, and {field} is {found[field]}: give one of them"
                    )
            found |= said
        return found

    @field_validator("decode_context_parallel_size")
    @classmethod
    def _one_context(cls, value: int) -> int:
        if value > 1:
            raise ValueError("decodes that share a context are not modelled: leave it out")
        return value

    @field_validator("speculative_config", "kv_transfer_config")
    @classmethod
    def _unread(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name is not None:
            _JSON_OPTIONS[info.field_name](value)  # raises: else it would have been taken out
        return value

    @field_validator(
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "kv_cache_memory_bytes",
        mode="before",
    )
    @classmethod
    def _written_short(cls, value: object, info: ValidationInfo) -> object:
        """vLLM's short form: 25.6k is 25600, 1k is 1000, 1K is 1024. What is not one is left to the integer parser."""
        if info.field_name == "max_model_len" and value in (-1, "-1"):
            return "auto"  # as vLLM reads it
        short = (
            re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([kKmMgG])", value.strip())
            if isinstance(value, str)
            else None
        )
        return value if short is None else round(float(short[1]) * _SUFFIXES[short[2]])

    @property
    def num_gpus(self) -> int:
        """GPUs of one engine of this pool, all its data-parallel ranks included."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class Traffic(Spec):
    """The requests: their lengths, and how they arrive (a batch, a closed loop, a rate, or a trace)."""

    input_len: int | None = _flag(
        None, "Prompt tokens of a request.", "--isl", "--random-input-len", ge=1, le=1 << 40
    )
    output_len: int | None = _flag(
        None, "Output tokens of a request.", "--osl", "--random-output-len", ge=1, le=1 << 40
    )
    batch_size: int | None = _flag(None, "Requests prefilled and decoded together.", ge=1, le=1 << 24)
    concurrency: int | None = _flag(
        None, "Requests in flight in a closed loop.", "--max-concurrency", ge=1, le=1 << 24
    )
    request_rate: FiniteOrInf | None = _flag(None, "Requests per second; inf: all at once.", "--rate", gt=0)
    num_prompts: int | None = _flag(None, "Requests in all.", "--num-requests", ge=0, le=50_000_000)
    burstiness: FiniteOrInf = _flag(
        1.0, "Shape of the gamma-distributed gaps; 1: Poisson; inf: constant.", gt=0
    )
    random_range_ratio: float = _flag(0.0, "Lengths are uniform within ± this share.", ge=0, lt=1)
    length_distribution: Literal["uniform", "lognormal", "gamma"] = _flag(
        "uniform", "Lengths around their mean: uniform, lognormal, gamma."
    )
    input_len_cv: float = _flag(1.0, "Coefficient of variation of prompts, lognormal or gamma.", ge=0, le=100)
    output_len_cv: float = _flag(1.0, "The same of outputs.", ge=0, le=100)
    length_correlation: float = _flag(0.0, "Rank correlation of prompt and output lengths.", ge=-1, le=1)
    random_prefix_len: int = _flag(
        0, "Tokens of a system prompt that requests begin with, on top of --input-len.", ge=0, le=1 << 40
    )
    num_prefixes: int = _flag(1, "Different system prompts.", ge=1, le=1 << 24)
    prefix_zipf: float = _flag(0.0, "Zipf exponent of their popularity; 0: all equal.", ge=0, le=100)
    arrivals: Literal["steady", "on-off", "ramp", "diurnal"] = _flag(
        "steady", "How the rate goes: steady, on-off, ramp, diurnal (--request-rate is on, first, mean)."
    )
    on_s: float | None = _flag(None, "on-off: seconds at --request-rate.", gt=0)
    off_s: float | None = _flag(None, "on-off: seconds at --off-request-rate.", gt=0)
    off_request_rate: float = _flag(0.0, "on-off: requests per second while off.", ge=0)
    end_request_rate: float | None = _flag(None, "ramp: requests per second at its end, and after.", gt=0)
    ramp_s: float | None = _flag(None, "ramp: seconds from the first rate to the last.", gt=0)
    day_peak_to_mean: float = _flag(1.5, "diurnal: highest rate over the mean.", ge=1, le=2)
    day_length_s: float = _flag(86_400.0, "diurnal: seconds of a day, which begins at night.", gt=0)
    clients: int = _flag(
        1,
        "Clients with rates and lengths of their own; --burstiness is each one's, --random-prefix-len too.",
        ge=1,
        le=1 << 24,
    )
    client_zipf: float = _flag(1.5, "Zipf exponent of the clients' rates; 0: all equal.", ge=0, le=100)
    client_length_cv: float = _flag(
        0.5, "Coefficient of variation of the clients' mean lengths.", ge=0, le=100
    )
    turns: int = _flag(
        1, "Questions of a session; each prompt repeats what was said, --input-len is new.", ge=1, le=10_000
    )
    think_time_s: float = _flag(0.0, "Mean seconds between an answer and the next question.", ge=0)
    trace: str | None = _flag(
        None, "A trace file (Azure, Mooncake, Qwen, BurstGPT, agentic or plain CSV); -: stdin."
    )
    trace_from_s: float = _flag(0.0, "Leave out what arrives earlier in the trace.", ge=0)
    trace_until_s: float | None = _flag(None, "Leave out what arrives from then on.", gt=0)
    trace_spread_ticks: bool = _flag(
        False, "Spread what a trace's coarse clock put at one instant over the time to its next tick."
    )
    trace_sessions: Literal["open", "closed"] = _flag(
        "open", "Turns of a trace's sessions: open (by the clock), closed (a gap after the turn before ends)."
    )
    trace_time_scale: float = _flag(1.0, "Multiply every time of the trace, thinking included.", gt=0)
    trace_rate_factor: float = _flag(1.0, "The trace's shape at so many times its rate.", gt=0)
    max_request_tokens: int | None = _flag(
        None, "Drop or clip requests of more tokens, prompt and output.", ge=2, le=1 << 40
    )
    long_requests: Literal["drop", "clip"] = _flag("drop", "What to do with them: drop, or clip.")
    scheduling: Literal["continuous", "static"] = _flag(
        "continuous", "Batching: continuous, or static (padded)."
    )
    num_samples: int = _flag(
        1, "Answers to every prompt, which share its KV (n of the API).", "--n", ge=1, le=1024
    )
    seed: int = _flag(0, "Seed of everything random.", ge=0, le=2**63 - 1)


class Service(Spec):
    """What stands before the engines: the router, and the patience of everyone involved."""

    router: str = _flag(
        "round-robin",
        f"Which replica a request goes to: {', '.join(ROUTERS)}.",
    )
    max_queued_requests: int | None = _flag(
        None, "An engine turns a request away where that many wait.", ge=1, le=1 << 40
    )
    max_outstanding_requests: int | None = _flag(
        None, "The router keeps requests back while every engine has that many.", ge=1, le=1 << 40
    )
    request_timeout_s: float | None = _flag(
        None, "A client gives up that many seconds after it has sent.", "--request-timeout", gt=0
    )
    prefill_replicas: int | None = _flag(
        None, "Of --replicas, so many only prefill and the others only decode.", ge=1, le=4096
    )
    decode_router: str = _flag(
        "least-outstanding", "The same as --router, among the replicas that only decode."
    )
    kv_transfer_link: Literal["infiniband", "nvlink", "pcie"] = _flag(
        "infiniband", "Link of KV between prefill and decode, of each GPU: infiniband, nvlink, pcie."
    )
    kv_transfer_bytes_per_s: FiniteOrInf | None = _flag(
        None, "Rate of KV between prefill and decode; default: that of --kv-transfer-link.", gt=0
    )
    mean_time_between_failures_s: float | None = _flag(
        None, "A replica is lost after so many seconds, on average (spot interruption).", "--mtbf", gt=0
    )
    recovery_s: float | None = _flag(
        None, "Seconds until a new replica is in place of a lost one.", "--recovery", ge=0
    )
    requests_of_lost_replicas: Literal["restart", "fail"] = _flag(
        "restart", "What becomes of a lost replica's requests: restart on another, or fail."
    )
    autoscale_max_replicas: int | None = _flag(
        None, "Scale from --replicas up to so many.", "--max-replicas", ge=1, le=4096
    )
    autoscale_target_requests: float | None = _flag(
        None, "Requests outstanding per replica that the autoscaler aims at.", "--target-requests", gt=0
    )
    decode_autoscale_max_replicas: int | None = _flag(
        None, "Scale the replicas that only decode up to so many.", ge=1, le=4096
    )
    decode_autoscale_target_requests: float | None = _flag(
        None, "Requests per replica that only decodes; default: --autoscale-target-requests.", gt=0
    )
    replica_startup_s: float | None = _flag(
        None, "Seconds until a replica that is started takes requests.", "--startup", ge=0
    )
    autoscale_interval_s: float = _flag(15.0, "Seconds between the autoscaler's decisions.", gt=0)
    scale_down_delay_s: float = _flag(
        300.0, "Seconds in which fewer replicas must suffice before one goes.", ge=0
    )


class Cost(Spec):
    """What a GPU-hour costs. No default: without a tier or a price there is no cost."""

    price_tier: Literal["on-demand", "reserved", "spot", "owned"] | None = _flag(
        None, "Price tier of the dated table: on-demand, reserved, spot, owned."
    )
    price_provider: str | None = _flag(None, "Provider in the price table; default: the median of the tier.")
    price_instance: str | None = _flag(
        None, "Rentable instance (product) in the price table, such as p5.48xlarge."
    )
    price_file: str | None = _flag(
        None,
        "Price table of your own (CSV in the form of capacity/hardware/prices.csv), in place of the bundled one.",
    )
    price: str | None = _flag(None, "$ per GPU-hour: 2.50, or h100=2.50.")


class Billing(Spec):
    """What else a bill may ask: replicas, users, an API's prices, spot, a batch job. None: not asked."""

    replicas: int = _flag(1, "Engines of this kind.", ge=1, le=1_000_000)
    requests_per_user_hour: float | None = _flag(None, "Requests of one user in an hour.", gt=0)
    co2_g_per_kwh: float | None = _flag(None, "Carbon intensity of the electricity.", ge=0)
    api: str | None = _flag(
        None, "Compare with providers of the dated API price list: DeepInfra,SambaNova, or all."
    )
    api_price_file: str | None = _flag(
        None,
        "API price list of your own (CSV in the form of capacity/planning/hosted_prices.csv), "
        "in place of the bundled one.",
    )
    api_input_price: float | None = _flag(None, "An API's $ per 1M input tokens.", ge=0)
    api_output_price: float | None = _flag(None, "An API's $ per 1M output tokens.", ge=0)
    api_cached_fraction: float = _flag(
        0.0, "Share of input tokens that the API's prompt cache serves.", ge=0, le=1
    )
    api_cached_multiple: float = _flag(
        0.1, "Price of a cached input token over that of a plain one, of --api-input-price.", ge=0, le=1
    )
    api_cache_write_multiple: float = _flag(
        1.0, "The same of an input token that is written to the cache; where any are cached.", ge=0
    )
    interruptions_per_hour: float | None = _flag(
        None, "Spot: how often an instance is taken away.", ge=0, le=3600
    )
    restart_s: float = _flag(600.0, "Spot: until a replacement serves again, loading included.", ge=0)
    documents: int | None = _flag(None, "A batch job: requests in all.", ge=1)
    deadline_hours: float | None = _flag(None, "A batch job: hours until it must be done.", gt=0)


class DeploymentFile(Spec):
    """A deployment with its traffic and price, as a file to keep, share and diff (TOML)."""

    schema_: Literal["capacity/deployment/v1"] = Field(FILE_SCHEMA, alias="schema")
    model: str
    pools: tuple[Pool, ...] = Field(min_length=1)
    traffic: Traffic = Traffic()
    service: Service = Service()
    cost: Cost = Cost()


def read_deployment(path: str | Path) -> DeploymentFile:
    """Read a deployment file.

    Raises MalformedFile with the field and its value when it is not one.
    """
    return check_deployment(read_deployment_fields(path), path)


def check_deployment(fields: dict[str, Any], path: str | Path) -> DeploymentFile:
    """The record that a deployment file's fields make; MalformedFile where they do not."""
    try:
        return DeploymentFile(**fields)
    except ValidationError as error:
        raise MalformedFile(path, explain(error, DeploymentFile)) from None


def read_deployment_fields(path: str | Path) -> dict[str, Any]:
    """The fields of a deployment file as they stand there, checked for being TOML alone: flags may still override."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise MalformedFile(path, f"larger than {MAX_FILE_BYTES} bytes; is this a deployment file?")
        fields = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise MalformedFile(path, f"cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFile(path, f"not TOML: {str(error).splitlines()[0]}") from None
    return fields


def write_deployment(deployment: DeploymentFile, path: str | Path) -> None:
    """Write a deployment file; reading it back gives an equal record. Fields left to their defaults are left out."""
    try:
        Path(path).write_text(to_toml(deployment), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


def to_toml(deployment: DeploymentFile) -> str:
    """The text of a deployment file."""
    lines = [f"schema = {toml_value(FILE_SCHEMA)}", f"model = {toml_value(deployment.model)}"]
    for pool in deployment.pools:
        lines += ["", "[[pools]]", *_assignments(pool)]
    for name in ("traffic", "service", "cost"):
        if assignments := _assignments(getattr(deployment, name)):
            lines += ["", f"[{name}]", *assignments]
    return "\n".join(lines) + "\n"


def _assignments(spec: Spec) -> list[str]:
    return [f"{name} = {toml_value(value)}" for name, value in spec.model_dump(exclude_defaults=True).items()]


def build(spec: type[Spec], fields: dict[str, Any], *, flags: bool = False) -> Any:
    """`spec(**fields)`, or one line that names the field, its value and its limit.

    `flags`: name fields as the command line does (`--max-num-seqs`).
    """
    try:
        return spec(**fields)
    except ValidationError as error:
        raise InvalidInput(explain(error, spec, flags=flags)) from None


def explain(error: ValidationError, spec: type[Spec], *, flags: bool = False) -> str:
    """The first problem of a failed validation in one line: field, value, what is wrong."""
    import difflib

    first = error.errors()[0]
    where = [part for part in first["loc"] if not (isinstance(part, str) and _VARIANT.match(part))]
    name = ".".join(str(part) for part in where) or spec.__name__
    shown = f"--{name.replace('_', '-')}" if flags else name
    if first["type"] == "extra_forbidden":
        known = _field_names(spec, where[:-1])
        close = difflib.get_close_matches(str(where[-1]), known, n=1)
        return f"unknown field {shown!r}" + (
            f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
        )
    if first["type"] == "missing":
        return f"{shown} is missing"
    given = first["input"]
    value = given if flags and isinstance(given, str) and given.strip() else repr(given)
    value = value if len(value) <= 60 else value[:57] + "..."
    message = first["msg"].replace("Input should be", "must be").replace("Value error, ", "")
    return f"{shown} is {value}: {message[0].lower()}{message[1:]}"


def _field_names(spec: type[Spec], where: list[int | str]) -> list[str]:
    nested: dict[str, type[Spec]] = {"pools": Pool, "traffic": Traffic, "service": Service, "cost": Cost}
    for part in where:
        if isinstance(part, str) and part in nested and spec is DeploymentFile:
            spec = nested[part]
    return [field.alias or name for name, field in spec.model_fields.items()]
