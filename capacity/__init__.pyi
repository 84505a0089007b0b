"""Made by docs/stub.py from the registry of verbs."""

from capacity.answers.engine_comparison import EngineComparison
from capacity.answers.fit_comparison import FitComparison
from capacity.answers.frontier import Frontier
from capacity.answers.listings import gpus as gpus
from capacity.answers.listings import models as models
from capacity.answers.listings import use_cases as use_cases
from capacity.answers.load_point import Progress as ProgressOfLoadPoint
from capacity.answers.load_sweep import LoadSweep
from capacity.answers.model_engine import ModelEngine
from capacity.answers.records import Attribution as Attribution
from capacity.answers.records import Estimate as Estimate
from capacity.answers.records import Fit as Fit
from capacity.answers.records import Simulation as Simulation
from capacity.answers.support import gpu_support as gpu_support
from capacity.base.errors import CapacityError as CapacityError
from capacity.base.errors import DoesNotFit as DoesNotFit
from capacity.base.errors import InvalidInput as InvalidInput
from capacity.base.money import use_currency as use_currency
from capacity.deployment import DeploymentFile
from capacity.deployment import Pool
from capacity.deployment.launch_command import from_launch as from_launch
from capacity.deployment.launch_command import from_vllm as from_vllm
from capacity.deployment.routing import Router
from capacity.hardware.cost_estimate import CostEstimate as CostEstimate
from capacity.hardware.what_if import add_gpu as add_gpu
from capacity.model import ModelSpec
from capacity.model.presets import add_model as add_model
from capacity.planning.bills.billing import Bill as Bill
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.planning.fleets.fleet_records import FleetPlan as FleetPlan
from capacity.planning.halls.hall_options import HallPlan as HallPlan
from capacity.planning.load.curve import Curve as Curve
from capacity.planning.load.curve import Progress as ProgressOfCurve
from capacity.planning.records import Plan as Plan
from capacity.planning.search.snapshot import Progress as ProgressOfSnapshot
from capacity.planning.sizing.gpu_comparison import GpuComparison
from capacity.planning.sweeps.sweep import sweep as sweep
from capacity.planning.sweeps.sweep_results import sweep_results as sweep_results
from capacity.planning.variations.advice import AdviceList
from capacity.planning.variations.deployment_comparison import DeploymentComparison as DeploymentComparison
from capacity.planning.variations.deployment_comparison import compare_deployments as compare_deployments
from capacity.planning.variations.diff import Diff as Diff
from capacity.planning.variations.diff import diff as diff
from capacity.planning.variations.outcome import Progress
from capacity.planning.variations.stack import Stack
from capacity.planning.variations.tornado import Tornado
from capacity.simulator import StepObserver
from capacity.simulator.admission import Admission
from capacity.simulator.schedulers import Policy
from capacity.techniques.attention_io import AttentionTrafficTable
from capacity.techniques.batching import Batching
from capacity.techniques.beam_search import BeamSearch
from capacity.techniques.cache_curve import cache_curve as cache_curve
from capacity.techniques.engine_table import engine_table as engine_table
from capacity.techniques.kv import kv as kv
from capacity.techniques.one_pool import Contexts
from capacity.techniques.one_pool import InputLen
from capacity.techniques.one_pool import OutputLen
from capacity.techniques.quantize import Quantizing
from capacity.techniques.scaling import Scaling
from capacity.techniques.speculate import Speculating
from capacity.workload import Workload
from capacity_validate.calibrating import calibrate as calibrate
from capacity_validate.comparing import compare as compare
from capacity_validate.suggesting import suggest_runs as suggest_runs
from capacity_validate.watching import watch as watch
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pandas import DataFrame
from pathlib import Path
from typing import Any
from typing import TypedDict
from typing import Unpack

__all__ = [
    "Attribution",
    "Bill",
    "CapacityError",
    "CostEstimate",
    "Curve",
    "DeploymentComparison",
    "Diff",
    "DoesNotFit",
    "Estimate",
    "Fit",
    "FleetPlan",
    "HallPlan",
    "InvalidInput",
    "Plan",
    "Simulation",
    "add_gpu",
    "add_model",
    "advise",
    "attention_traffic",
    "beam_search",
    "cache_curve",
    "calibrate",
    "cascade",
    "compare",
    "compare_batching",
    "compare_deployments",
    "compare_engines",
    "compare_fits",
    "compare_gpus",
    "cost",
    "curve",
    "diff",
    "engine_setup",
    "engine_table",
    "estimate",
    "explain",
    "fit",
    "fleet",
    "from_launch",
    "from_vllm",
    "frontier",
    "gpu_support",
    "gpus",
    "grid",
    "kv",
    "load_sweep",
    "models",
    "plan",
    "plan_hall",
    "quantize",
    "scale",
    "simulate",
    "speculate",
    "stack",
    "suggest_runs",
    "sweep",
    "sweep_results",
    "tornado",
    "use_cases",
    "use_currency",
    "watch",
]

class _Billing(TypedDict, total=False):
    replicas: int | str
    requests_per_user_hour: float | str | None
    co2_g_per_kwh: float | str | None
    api: str | None
    api_price_file: str | None
    api_input_price: float | str | None
    api_output_price: float | str | None
    api_cached_fraction: float | str
    api_cached_multiple: float | str
    api_cache_write_multiple: float | str
    interruptions_per_hour: float | str | None
    restart_s: float | str
    documents: int | str | None
    deadline_hours: float | str | None
    batch_api: str | None
    idle_hours_per_day: float | str | None
    growth: float | str | None
    months: int | str

class _Cascade(TypedDict, total=False):
    small: str | None
    escalation_rate: float | str | None
    escalate_by: Any
    judge_s: float | str
    judge_usd: float | str
    small_gpu: str | None
    small_tensor_parallel_size: int | str | None
    small_quantization: str | None
    small_output_len: int | str | None
    api: str | None
    api_input_price: float | str | None
    api_output_price: float | str | None
    api_ttft_s: float | str | None
    api_tpot_s: float | str | None
    small_api: str | None
    small_api_input_price: float | str | None
    small_api_output_price: float | str | None
    small_api_ttft_s: float | str | None
    small_api_tpot_s: float | str | None
    api_price_file: str | None
    cache_hit_rate: float | str | None
    cache_lookup_s: float | str
    embedding_model: str | None
    embedding_gpu: str | None
    embedding_price: float | str
    cache_store_usd_per_month: float | str
    target_utilization: float | str

class _Cost(TypedDict, total=False):
    price_mix: str | None
    price_provider: str | None
    price_instance: str | None
    price_file: str | None
    price: str | None
    owned_cost: str | None

class _Pool(TypedDict, total=False):
    gpu: str
    power_cap: Any
    tensor_parallel_size: int | str
    pipeline_parallel_size: int | str
    data_parallel_size: int | str
    enable_expert_parallel: bool
    quantization: str | None
    kv_cache_dtype: str
    kv_eviction: str | None
    kv_budget: int | str | None
    engine: str
    dtype: Any
    max_model_len: int | str | None
    gpu_memory_utilization: float | str | None
    kv_cache_memory_bytes: int | str | None
    max_num_seqs: int | str | None
    max_num_batched_tokens: int | str | None
    max_num_scheduled_tokens: int | str | None
    indexer_kv_dtype: Any
    block_size: int | str | None
    enable_chunked_prefill: bool | None
    enable_prefix_caching: bool | None
    async_scheduling: bool | None
    enforce_eager: bool
    language_model_only: bool
    max_cudagraph_capture_size: int | str | None
    cudagraph_padding: bool | None
    long_prefill_token_threshold: int | str
    scheduling_policy: Any
    watermark: float | str
    scheduler_reserve_full_isl: bool | None
    prefill_schedule_interval: int | str
    scheduler_recv_interval: int | str
    kv_offloading_size: float | str | None
    kv_offloading_backend: Any
    kv_offloading_bytes_per_s: float | str | None
    kv_offloading_disk_size: float | str | None
    kv_offloading_disk_bytes_per_s: float | str | None
    kv_offloading_disk_latency_s: float | str
    cpu_offload_gb: float | str
    n_gpu_layers: int | str | None
    host_cpu: str
    enable_lora: bool
    max_loras: int | str | None
    max_cpu_loras: int | str | None
    max_lora_rank: int | str
    lora_read_bytes_per_s: float | str | None
    preemption_mode: Any
    swap_space: float | str
    kv_layout: Any
    attn_implementation: Any
    moe_backend: Any
    use_cache: bool
    speculator: str | None
    draft: str | None
    draft_tensor_parallel_size: int | str | None
    draft_layers: int | str | None
    num_speculative_tokens: int | str | None
    acceptance: str | None
    acceptance_spread: float | str
    speculative_config: Any
    decode_context_parallel_size: int | str
    structured_output: Any
    top_p: float | str
    top_k: int | str
    repetition_penalty: float | str
    override_generation_config: Any
    front_end_input_token_s: float | str | None
    front_end_request_s: float | str | None
    front_end_output_token_s: float | str | None
    api_server_count: int | str
    step_noise: float | str
    step_noise_seed: int | str
    num_gpu_blocks_override: int | str | None
    replicas: int | str
    role: Any
    route_up_to_tokens: int | str | None
    route_up_to_requests: int | str | None
    route_escalation_rate: float | str | None
    kv_transfer_config: Any

class _RisingLoad(TypedDict, total=False):
    goodput_target: float | str
    confidence: float | str
    rates: Any
    requests_per_user_hour: int | str | float | str | None
    peak_rate: int | str | float | str | None
    peak_to_mean: int | str | float | str
    hourly_rates: Any

class _Search(TypedDict, total=False):
    power_cap: Any
    pipeline_parallel_sizes: int | str
    data_parallel_sizes: int | str
    expert_parallel: bool | None
    kv_cache_dtypes: str
    max_num_seqs: Any
    max_num_batched_tokens: Any
    chunked_prefill: bool | None
    prefix_caching: bool | None
    speculators: str | None
    draft: str | None
    num_speculative_tokens: int | str
    acceptance: str | None
    serving: Any
    routers: str
    max_model_len: int | str | None
    max_gpus: int | str
    budget: float | str | None
    max_quality_loss: float | str | None
    objective: Any
    goodput_target: float | str
    confidence: float | str
    latency_tolerance: float | str
    alternatives: bool
    time_limit_s: float | str | None
    kv_eviction: str | None
    kv_budget: int | str | None
    dtype: Any
    gpu_memory_utilization: float | str | None
    kv_cache_memory_bytes: int | str | None
    max_num_scheduled_tokens: int | str | None
    indexer_kv_dtype: Any
    block_size: int | str | None
    async_scheduling: bool | None
    enforce_eager: bool
    language_model_only: bool
    max_cudagraph_capture_size: int | str | None
    cudagraph_padding: bool | None
    long_prefill_token_threshold: int | str
    scheduling_policy: Any
    watermark: float | str
    scheduler_reserve_full_isl: bool | None
    prefill_schedule_interval: int | str
    scheduler_recv_interval: int | str
    kv_offloading_size: float | str | None
    kv_offloading_backend: Any
    kv_offloading_bytes_per_s: float | str | None
    kv_offloading_disk_size: float | str | None
    kv_offloading_disk_bytes_per_s: float | str | None
    kv_offloading_disk_latency_s: float | str
    cpu_offload_gb: float | str
    n_gpu_layers: int | str | None
    host_cpu: str
    enable_lora: bool
    max_loras: int | str | None
    max_cpu_loras: int | str | None
    max_lora_rank: int | str
    lora_read_bytes_per_s: float | str | None
    preemption_mode: Any
    swap_space: float | str
    kv_layout: Any
    attn_implementation: Any
    moe_backend: Any
    use_cache: bool
    draft_tensor_parallel_size: int | str | None
    draft_layers: int | str | None
    acceptance_spread: float | str
    decode_context_parallel_size: int | str
    structured_output: Any
    top_p: float | str
    top_k: int | str
    repetition_penalty: float | str
    front_end_input_token_s: float | str | None
    front_end_request_s: float | str | None
    front_end_output_token_s: float | str | None
    api_server_count: int | str
    step_noise: float | str
    step_noise_seed: int | str
    num_gpu_blocks_override: int | str | None

class _Service(TypedDict, total=False):
    router_ttft_s: float | str | None
    escalate_by: Any
    judge_s: float | str
    cache_hit_rate: float | str
    cache_lookup_s: float | str
    max_queued_requests: int | str | None
    max_outstanding_requests: int | str | None
    request_timeout_s: float | str | None
    prefill_replicas: int | str | None
    decode_router: str
    kv_transfer_link: Any
    kv_transfer_bytes_per_s: float | str | None
    kv_transfer_layerwise: bool
    mean_time_between_failures_s: float | str | None
    recovery_s: float | str | None
    requests_of_lost_replicas: Any
    autoscale_max_replicas: int | str | None
    autoscale_target_requests: float | str | None
    decode_autoscale_max_replicas: int | str | None
    decode_autoscale_target_requests: float | str | None
    replica_startup_s: float | str | None
    autoscale_interval_s: float | str
    scale_down_delay_s: float | str

class _Split(TypedDict, total=False):
    split_by: Any
    split_at: int | str
    max_pools: int | str
    slo_of: Any
    short_gpus: str
    long_gpus: str
    spare_replicas: int | str
    availability: float | str | None
    mean_time_between_failures_s: float | str | None
    recovery_s: float | str | None
    peak_to_mean: float | str | None

class _Traffic(TypedDict, total=False):
    use_case: str | None
    max_tokens: int | str | None
    max_tokens_cv: float | str
    num_adapters: int | str | None
    adapter_skew: float | str
    priority_shares: str | None
    cache_salts: int | str | None
    images_per_prompt: int | str
    image_tokens: int | str | None
    image_size: str | None
    audio_seconds: float | str | None
    audio_tokens: int | str | None
    request_rate: float | str | None
    requests_per_day: float | str | None
    users: int | str | None
    user_loop: Any
    response_s: float | str
    num_prompts: int | str | None
    burstiness: float | str
    random_range_ratio: float | str
    length_distribution: Any
    input_len_cv: float | str
    output_len_cv: float | str
    length_correlation: float | str
    random_prefix_len: int | str
    num_prefixes: int | str
    prefix_zipf: float | str
    arrivals: Any
    on_s: float | str | None
    off_s: float | str | None
    off_request_rate: float | str
    end_request_rate: float | str | None
    ramp_s: float | str | None
    day_peak_to_mean: float | str
    day_length_s: float | str
    clients: int | str
    client_zipf: float | str
    client_length_cv: float | str
    turns: int | str
    think_time_s: float | str
    client_latency_s: float | str
    trace: str | None
    trace_from_s: float | str
    trace_until_s: float | str | None
    trace_spread_ticks: bool
    trace_sessions: Any
    trace_sessions_per_s: float | str | None
    trace_time_scale: float | str
    trace_rate_factor: float | str
    max_request_tokens: int | str | None
    long_requests: Any
    scheduling: Any
    num_samples: int | str
    seed: int | str

class _AdviseOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def advise(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo_window: str = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_AdviseOptions],
) -> AdviceList: ...

class _AttentionTrafficOptions(_Pool, total=False): ...

def attention_traffic(
    model: str | ModelSpec | DeploymentFile,
    *,
    contexts: Contexts = ...,
    **options: Unpack[_AttentionTrafficOptions],
) -> AttentionTrafficTable: ...

class _BeamSearchOptions(_Pool, total=False): ...

def beam_search(
    model: str | ModelSpec | DeploymentFile,
    *,
    beam_widths: Sequence[int] = ...,
    input_len: InputLen = ...,
    output_len: OutputLen = ...,
    batch_size: int = ...,
    **options: Unpack[_BeamSearchOptions],
) -> BeamSearch: ...

class _CascadeOptions(_Pool, _Traffic, _Cost, _Cascade, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def cascade(
    model: str | Path | ModelSpec,
    *,
    simulate: bool = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_CascadeOptions],
) -> CascadeAnswer: ...

class _CompareBatchingOptions(_Pool, _Traffic, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None

def compare_batching(
    model: str | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = ...,
    max_batch: int | None = ...,
    batching_window_s: float = ...,
    spread: bool = ...,
    engine_loop: str = ...,
    **options: Unpack[_CompareBatchingOptions],
) -> Batching: ...

class _CompareEnginesOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def compare_engines(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    engines: Sequence[str] = ...,
    profiles: str | Path | None = ...,
    **options: Unpack[_CompareEnginesOptions],
) -> EngineComparison: ...

class _CompareFitsOptions(_Pool, total=False): ...

def compare_fits(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    gpus: Sequence[str] | None = ...,
    price_tier: str = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_CompareFitsOptions],
) -> FitComparison: ...

class _CompareGpusOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def compare_gpus(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    gpus: Sequence[str] | None = ...,
    slo: Sequence[str] | str = ...,
    order: str | None = ...,
    profiles: str | Path | None = ...,
    **options: Unpack[_CompareGpusOptions],
) -> GpuComparison: ...

class _CostOptions(_Pool, _Traffic, _Cost, _Billing, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def cost(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = ...,
    slo_window: str = ...,
    grid_region: str | None = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_CostOptions],
) -> Bill: ...

class _CurveOptions(_Pool, _Traffic, _Cost, _RisingLoad, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any
    slo_window: str
    replications: int | str

def curve(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = ...,
    cluster: str | None = ...,
    progress: ProgressOfCurve | None = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_CurveOptions],
) -> Curve: ...

class _EngineSetupOptions(_Pool, total=False): ...

def engine_setup(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_EngineSetupOptions],
) -> ModelEngine: ...

class _EstimateOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def estimate(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = ...,
    grid_region: str | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_EstimateOptions],
) -> Estimate: ...

class _ExplainOptions(_Pool, _Traffic, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None

def explain(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = ...,
    download: bool = ...,
    evidence: bool = ...,
    **options: Unpack[_ExplainOptions],
) -> Attribution: ...

class _FitOptions(_Pool, total=False): ...

def fit(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = ...,
    download: bool = ...,
    **options: Unpack[_FitOptions],
) -> Fit: ...

class _FleetOptions(_Search, _Traffic, _Cost, _Split, total=False):
    gpus: str
    tensor_parallel_sizes: int | str
    quantizations: str | None
    engines: str
    grid_region: str | None
    slo_window: str
    replications: int | str
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def fleet(
    model: str | Path | ModelSpec,
    *,
    slo: Sequence[str] | str = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    workers: int = ...,
    progress: ProgressOfSnapshot | None = ...,
    **options: Unpack[_FleetOptions],
) -> FleetPlan: ...

class _FrontierOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def frontier(
    model: str | Path | ModelSpec,
    *,
    gpus: Sequence[str],
    quantizations: Sequence[str | None] = ...,
    engines: Sequence[str] = ...,
    tensor_parallel_sizes: Sequence[int | None] = ...,
    loads: Sequence[int] = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: ProgressOfLoadPoint | None = ...,
    **options: Unpack[_FrontierOptions],
) -> Frontier: ...

class _GridOptions(_Pool, _Traffic, _Service, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    router: str
    price_tier: Any

def grid(
    verb: str,
    vary: Mapping[str, Any],
    *,
    model: str | Path | None = ...,
    goodput: Sequence[str] = ...,
    workers: int = ...,
    **options: Unpack[_GridOptions],
) -> DataFrame: ...

class _LoadSweepOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def load_sweep(
    model: str | Path | ModelSpec,
    *,
    over: str = ...,
    loads: Sequence[float] | None = ...,
    profiles: str | Path | None = ...,
    **options: Unpack[_LoadSweepOptions],
) -> LoadSweep: ...

class _PlanOptions(_Search, _Traffic, _Cost, total=False):
    gpus: str
    tensor_parallel_sizes: int | str
    quantizations: str | None
    engines: str
    grid_region: str | None
    slo_window: str
    replications: int | str
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def plan(
    model: str | Path | ModelSpec,
    *,
    slo: Sequence[str] | str = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    workers: int = ...,
    cluster: str | None = ...,
    progress: ProgressOfSnapshot | None = ...,
    **options: Unpack[_PlanOptions],
) -> Plan: ...

class _PlanHallOptions(_Search, _Traffic, _Cost, total=False):
    gpus: str
    tensor_parallel_sizes: int | str
    quantizations: str | None
    engines: str
    grid_region: str | None
    slo_window: str
    replications: int | str
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def plan_hall(
    models: str | Path | Sequence[Mapping[str, Any]],
    *,
    power_budget: float | str,
    slo: Sequence[str] | str = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: Callable[[int, int], None] | None = ...,
    **options: Unpack[_PlanHallOptions],
) -> HallPlan: ...

class _QuantizeOptions(_Pool, _Cost, total=False):
    price_tier: Any

def quantize(
    model: str | ModelSpec | DeploymentFile,
    *,
    input_len: InputLen = ...,
    output_len: OutputLen = ...,
    large_batch: int = ...,
    methods: Sequence[str] | None = ...,
    **options: Unpack[_QuantizeOptions],
) -> Quantizing: ...

class _ScaleOptions(_Pool, _Cost, total=False):
    price_tier: Any

def scale(
    model: str | ModelSpec | DeploymentFile,
    *,
    input_len: InputLen = ...,
    output_len: OutputLen = ...,
    concurrency: int = ...,
    axis: str = ...,
    most_gpus: int = ...,
    tpot_s: float | None = ...,
    **options: Unpack[_ScaleOptions],
) -> Scaling: ...

class _SimulateOptions(_Pool, _Traffic, _Service, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def simulate(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    goodput: Sequence[str] | None = ...,
    slo: Sequence[str] | None = ...,
    slo_window: str = ...,
    save_trace: str | Path | None = ...,
    save_trace_for: str = ...,
    other_pools: Sequence[Pool] = ...,
    workload: Workload | None = ...,
    router: str | type[Router] | None = ...,
    policy: str | type[Policy] | None = ...,
    admission: Admission | Sequence[Admission] = ...,
    replications: int = ...,
    sample_interval_s: float | None = ...,
    observer: StepObserver | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: Callable[[int, int], None] | None = ...,
    engine_loop: str = ...,
    scheduler: str | None = ...,
    **options: Unpack[_SimulateOptions],
) -> Simulation: ...

class _SpeculateOptions(_Pool, total=False): ...

def speculate(
    model: str | ModelSpec | DeploymentFile,
    *,
    method: str | None = ...,
    draft_tokens: int | None = ...,
    context_tokens: int = ...,
    batches: Sequence[int] = ...,
    simulate: bool = ...,
    engine_loop: str = ...,
    **options: Unpack[_SpeculateOptions],
) -> Speculating: ...

class _StackOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def stack(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    order: Sequence[str] | None = ...,
    slo_window: str = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_StackOptions],
) -> Stack: ...

class _TornadoOptions(_Pool, _Traffic, _Cost, total=False):
    input_len: int | str | None
    output_len: int | str | None
    batch_size: int | str | None
    concurrency: int | str | None
    price_tier: Any

def tornado(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo_window: str = ...,
    workload: Workload | None = ...,
    profiles: str | Path | None = ...,
    download: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_TornadoOptions],
) -> Tornado: ...
