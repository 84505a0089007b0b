"""Record of an engine release: limits, memory rules and host times, each with its source."""

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from pydantic import Field

from capacity.base.platforms import Platform
from capacity.base.spec import Spec
from capacity.model.quantization import FormatFamily, Kernel

GIB = 2**30

Basis = Literal["datasheet", "measured", "fitted", "assumed"]
MemoryRule = Literal["fraction_of_total", "fraction_of_free", "sglang_static"]
Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Origin(Spec):
    """Source of an engine's constant."""

    source: Annotated[str, Field(min_length=1)]
    date: Annotated[str, Field(min_length=4)]
    basis: Basis


class LimitRule(Spec):
    """Default batch limits on GPUs that report at least `min_memory_gib`, except GPUs of `except_architectures`."""

    min_memory_gib: Annotated[float, Field(ge=0)]
    except_architectures: tuple[str, ...] = ()
    max_num_seqs: Count
    max_num_batched_tokens: Count  # API server default
    max_num_batched_tokens_offline: Count  # offline (library) default
    max_graph_batch: Annotated[int, Field(ge=0)] | None = None  # set if it depends on memory (SGLang)
    max_graph_batch_tp4: Annotated[int, Field(ge=0)] | None = (
        None  # the same at tensor parallelism of 4 and more
    )

    def largest_graph(self, tensor_parallel_size: int) -> int | None:
        """Return the largest batch with a CUDA graph at this TP size; None: the GPU's memory sets no limit."""
        wide = self.max_graph_batch_tp4 if tensor_parallel_size >= 4 else None
        return self.max_graph_batch if wide is None else wide


class ExpertPadding(Spec):
    """Multiples to which an engine pads stored expert matrices in `weight_format`.

    The engine pads the intermediate width per GPU and the hidden dimension of the packed values; with `pads_scales`,
    also the hidden dimension of their scales. The first entry applies that lists the GPU's architecture or no
    architectures.
    """

    weight_format: str
    hidden_multiple: Count
    intermediate_multiple: Count
    pads_scales: bool = False
    architectures: tuple[str, ...] = ()


def ranking_notes(engines: Iterable["EngineSpec"]) -> tuple[str, ...]:
    """Return a note if several engines are ranked and the host times of some are assumed."""
    found = {engine.name: engine for engine in engines}
    assumed = sorted(name for name, engine in found.items() if engine.assumes_host_times)
    if len(found) < 2 or not assumed:
        return ()
    return (
        f"The order of engines rests on assumed host times of {', '.join(assumed)}: calibrate each engine on your own "
        "benchmark (`capacity calibrate`) before you choose by speed.",
    )


class PlatformSupport(Spec):
    """Requirements on one platform: minimum NVIDIA compute capability (0 for other vendors) and weight formats.

    `formats`: families of weight formats; None: all in `weight_formats`. `format_capability`: minimum capability of
    families that need a higher one.
    """

    min_capability: Annotated[float, Field(ge=0)] = 0.0
    formats: tuple[FormatFamily, ...] | None = None
    format_capability: dict[FormatFamily, float] = Field(default_factory=dict)


class EngineSpec(Spec):
    """One release of one engine. `origins` maps each constant's name to its source; `notes` are shown to the user.

    Scheduling. `scheduler`: name of the policy. `mixes_prefill_with_decode`: one step may contain prefill and decode,
    chunked or not; otherwise prefill steps are separate. `stream_interval`: number of output tokens that are sent
    together. `batch_wait_steps`: number of decode steps that a prefill may wait for more prompts. `forks_samples`:
    several samples of one prompt share its prefill, and its KV until they differ. `missing_scheduling_rules`: rules of
    newer releases that this release lacks (`capacity.simulator.schedulers.rules`). `synchronous_stage_drafts`: drafting
    methods with which pipeline stages are scheduled synchronously, although the release has `asynchronous_stages`.
    `runner_v2_models`: model types, "model type:platform", or `dense` models, that run Model Runner V2 by default in a
    release that runs other models on V1: in `any` format, or only at `16-bit`; `never`: they run V1 although the others
    run V2. `serial_stages`: on V2, a stage waits for the tokens of the last stage, so that stages never overlap.
    `caches_hybrid_prefixes`: the prefix cache is on by default also for models with recurrent states, except the model
    types `uncached_prefixes`. `overlaps_cached_states`: the host time overlaps with the GPU also for such models with a
    prefix cache. `default_drafts` maps a drafting method or kind of drafter to its default depth and number of draft
    tokens to verify; if this number exceeds the depth, the drafts form a tree.

    Same in all releases. `baseline`: a textbook baseline for comparison that cannot be run. `kernel_family`: name of
    the fitted constants that represent this engine's kernels. `limits_requests_to_kv`: a server whose KV cache is
    smaller than the longest request starts, and limits requests to it. `data_parallel_divides_limits`: for a mixture of
    experts, the default limits apply to all data-parallel ranks together. `reserves_output`: a request starts only if
    the KV cache has room for all the output that its client allows (max_tokens). `host_memory`: what can be offloaded
    to host memory: weights, which each step reads over PCIe, or layers, which the CPU computes; None: nothing.
    `lacks`: `Pool` fields that the engine has no setting for, each with the flag to use instead, if any.

    Host time of a step is host_base_s + host_per_layer_s x layers + host_per_sequence_s x sequences. Without overlap,
    it is added to the GPU time. With overlap, the step takes (gpu^n + host^n)^(1/n) with n = `host_overlap_norm`,
    which approaches the larger of the two. `host_serial_s` is always added: the time between two steps of an engine
    with asynchronous scheduling (copies to and from the GPU, sampler kernels outside the graph).
    `host_serial_per_sequence_s`: the same for each sequence. `penalty_host_s` and `penalty_host_per_sequence_s`: host
    time that is added to these two if requests have token penalties. `sampler`: kernels of the top-k and top-p filter.
    `host_machine_spread`: standard deviation, between machines, of the logarithm of the factor on host times (CPU,
    clock, load, other software). `kernel_launch_s`: CPU time to launch one kernel of a step without a CUDA graph
    (`capacity.step.launches`). `quantize_launches`: number of kernel launches that quantize the input of one matrix
    multiplication; below 1: the call of the multiplication also quantizes. `fuses_qk_norm_with_rope`: the rope kernel
    includes the norms of queries and keys. `launches_wait`: launches of routed experts, sparse indexers and linear
    attention wait for the GPU, so their CPU time is not hidden. `results_after_launch`: with two steps in flight, one
    thread launches the second step and then reads the results of the first. `request_latency_s` and
    `response_latency_s`: time from client to engine and back (HTTP, detokenizer), without the CPU times of the front
    end, which are in series over all requests: `request_s` for each request, `input_token_s` for each prompt token and
    `output_token_s` for each streamed token.

    All-reduce. `all_reduce_one_shot_rows`: number of tokens in a step up to which the kernel that is fused with the
    next norm uses the one-shot algorithm, for any hidden size; None: the faster algorithm for each size.
    `all_reduce_families` maps a GPU architecture to the family whose all-reduce kernels the engine calls in place of
    its own.

    `runs_on`: supported platforms, with their requirements and weight formats.

    Formats. `weight_kernels`: kernels that the engine runs in place of others
    (`capacity/hardware/weight_kernels.toml`). `weight_kernels_on`: additional replacements, by GPU architecture.
    `expert_kernels_on` maps a GPU architecture and a default kernel to the constants to use for experts (a key in
    `moe` of `KernelFamily`). `whole_expert_kernels_on`: the same where expert parallelism gives each GPU whole experts;
    it takes precedence. `deepgemm_experts_below` maps a GPU architecture, or model type and architecture
    ("minimax_m2:blackwell"), to a number of GPUs: experts in FP8 blocks that fewer GPUs share run with DeepGEMM on a
    buffer of whole tiles. `marlin_experts_need_whole_groups`: 4-bit experts whose width on a GPU is not a multiple of
    the group of their scales run with Triton. `early_block_experts`: uncertainty factor for steps with experts in FP8
    blocks, if the kernels of this release were not measured; 1: the tables of measured times include them.
    `early_platforms`: uncertainty factor for all steps on a platform, if measured servers ran later releases.
    `fuses_biased_routing`: one kernel selects the experts of models whose router has a bias (DeepSeek-V3).
    `separate_products`: matrix multiplications of latent attention that this release computes as two, for models of
    these types, on these platforms, or in any case ("any"). `parallel_indexer_rows`: on NVIDIA GPUs, the keys of the
    sparse indexer take no time of their own in steps of at most this many tokens, parallel to its queries.
    `chooses_moe_backend`: the engine has a flag that selects the expert kernels. `moe_backends` maps the kernel of a
    weight format to the values of this flag that the engine accepts, each with the NVIDIA compute capabilities on which
    they run (from, below); empty: not known, so all are accepted. `splits_fp32_router_on`:
    architectures on which a router with 32-bit weights is computed as three 16-bit matrix multiplications.
    `weight_formats`: families of weight formats that the engine loads. `kv_cache_formats`: KV cache formats in addition
    to 16 bit, which all engines have.
    `sparse_kv_cache_dtype`: KV cache format that `auto` selects for latents with a sparse indexer, by architecture or
    "model type:architecture"; otherwise 16 bit. `plain_sparse_fp8_heads`: by architecture, the most query heads per
    GPU for which an fp8 cache of these latents has one byte per value; with more heads, the format is `fp8_ds_mla`.
    `fp8_latent_backend`: by architecture, the attention backend whose times are used for other latents in FP8, and
    which the launch command must name. `sparse_short_prompts_dense`: prompts no longer than the indexer's top-k use
    dense attention over expanded heads; otherwise they gather the selected latents, as longer prompts do.
    `sparse_kernels_fill_top_k`: architectures whose kernels multiply every slot of the top-k for every query, and a
    whole tile of heads, even for short contexts. `sinks_prefill_slowdown`: by architecture, the prefill attention time
    of the kernel for models with sinks, relative to the fitted kernel.

    Memory. `window_aware_kv`: layers with a window keep only the window; otherwise their KV grows with the context.
    `window_pools`: model types, or "model type:architecture", whose layers with a window have a pool of their own, and
    the tokens of that pool relative to the pool of the other layers; 0: none.
    `state_memory_ratio`: memory of recurrent states relative to KV memory (None: both use one pool of blocks). A
    request uses `states_per_request` states with prefix caching, else one. `memory_rule` is one of three.
    `fraction_of_total`: the engine may use gpu_memory_utilization x total memory; KV gets the part that remains after
    weights, activations and non-torch memory. `fraction_of_free`: KV gets gpu_memory_utilization x the memory that is
    free after loading. `sglang_static`: weights and KV get a fraction of the memory, computed from the default limits.
    `nontorch_bytes_tp1` / `_tpn`: CUDA context beyond the first allocation, NCCL and workspaces, per GPU, without and
    with tensor parallelism; `_tpn_without_nvls`: without NVSwitch reductions (PCIe, Ampere), None: same as `_tpn`.
    `sampler_bytes_per_logit`: peak of sampling, per element of max_num_seqs x vocabulary. `activation_*`: peak of the
    widest layer, see `capacity.pool.activations`. `rotary_value_bytes`: bytes per value of a model's rotary tables,
    which are stored in addition to its weights. `kept_expert_rows`: weight families whose fused expert kernels keep the
    buffers of a full step permanently, so they are in memory during sampling. `profiles_images`: at start, a vision
    model runs with its largest image, and the engine reserves that memory. `graph_bytes_*`: memory of CUDA graphs, for
    a model of `graph_reference_layers` (None: for any model). `graphs_count_drafts`: the largest graph counts draft
    tokens. `graphs_fit_decodes`: the sizes include decode batches (multiples of 1 + draft tokens, and of max_num_seqs).
    `graph_padding`: a batch without a graph of its size is padded to the next size by default; otherwise it runs
    eagerly. `unpadded_graph_sizes`: sizes without padding, up to where they double (empty: every size).
    `graph_doubling_from`: above this size, the next sizes are powers of two, with padding or without.
    `graphs_for_prompts`: steps with prompts replay graphs too.
    `large_graph_reserve`: with DP attention and graphs of batch sizes above 300, SGLang's default static fraction
    reserves 1.5 times as much memory for graphs. `prefill_graph_reserve`: this fraction also reserves memory for the
    graphs of prefill steps. `draft_reserve_bytes`: memory that it also reserves for drafts, by kind of drafter as
    in `default_drafts`. `graphs_in_budget`: the engine subtracts the graph estimate from the
    KV budget; otherwise graphs need additional memory.
    """

    name: str
    version: str
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origins: dict[str, Origin]

    baseline: bool = False
    kernel_family: str = "vllm"
    data_parallel_divides_limits: bool = False
    limits_requests_to_kv: bool = False
    reserves_output: bool = False
    host_memory: Literal["weights", "layers"] | None = None
    lacks: dict[str, str] = Field(default_factory=dict)

    scheduler: str
    block_size: Count
    mla_block_size: Count
    paged: bool
    window_aware_kv: bool
    window_pools: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    state_memory_ratio: Annotated[float, Field(gt=0)] | None = None
    states_per_request: Count = 1
    chunked_prefill: bool
    prefix_caching: bool
    caches_hybrid_prefixes: bool = True
    overlaps_cached_states: bool = True
    uncached_prefixes: tuple[str, ...] = ()
    async_scheduling: bool
    mixes_prefill_with_decode: bool
    reserve_full_isl: bool
    missing_scheduling_rules: tuple[str, ...] = ()
    synchronous_stage_drafts: tuple[str, ...] = ()
    runner_v2_models: dict[str, Literal["any", "16-bit", "never"]] = Field(default_factory=dict)
    serial_stages: bool = False
    stream_interval: Count
    batch_wait_steps: Annotated[int, Field(ge=0)]
    forks_samples: bool = False
    default_drafts: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    limits: Annotated[tuple[LimitRule, ...], Field(min_length=1)]

    runs_on: Annotated[dict[Platform, PlatformSupport], Field(min_length=1)]
    weight_formats: Annotated[tuple[FormatFamily, ...], Field(min_length=1)]
    kv_cache_formats: tuple[str, ...]
    sparse_kv_cache_dtype: dict[str, str] = Field(default_factory=dict)
    plain_sparse_fp8_heads: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    fp8_latent_backend: dict[str, str] = Field(default_factory=dict)
    sparse_short_prompts_dense: bool = True
    sparse_kernels_fill_top_k: tuple[str, ...] = ()
    sinks_prefill_slowdown: dict[str, Annotated[float, Field(ge=1)]] = Field(default_factory=dict)
    weight_kernels: dict[Kernel, Kernel] = Field(default_factory=dict)
    splits_fp32_router_on: tuple[str, ...] = ()
    weight_kernels_on: dict[str, dict[Kernel, Kernel]] = Field(default_factory=dict)
    expert_kernels_on: dict[str, dict[Kernel, str]] = Field(default_factory=dict)
    whole_expert_kernels_on: dict[str, dict[Kernel, str]] = Field(default_factory=dict)
    deepgemm_experts_below: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    marlin_experts_need_whole_groups: bool = False
    early_block_experts: Annotated[float, Field(ge=1)] = 1.0
    early_platforms: dict[Platform, Annotated[float, Field(gt=1)]] = Field(default_factory=dict)
    chooses_moe_backend: bool = False
    moe_backends: dict[Kernel, dict[str, tuple[float, float]]] = Field(default_factory=dict)

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    memory_rule: MemoryRule
    nontorch_bytes_tp1: Annotated[int, Field(ge=0)]
    nontorch_bytes_tpn: Annotated[int, Field(ge=0)]
    nontorch_bytes_tpn_without_nvls: Annotated[int, Field(ge=0)] | None = None
    sampler_bytes_per_logit: Annotated[float, Field(ge=0)]
    activation_hidden_copies: Annotated[float, Field(ge=0)]
    activation_layer_hidden_copies: Annotated[float, Field(ge=0)]
    activation_layer_ffn_copies: Annotated[float, Field(ge=0)]
    graphs_in_budget: bool
    graph_base_bytes: Annotated[int, Field(ge=0)]
    graph_bytes_per_size: Annotated[int, Field(ge=0)]
    graph_reference_layers: Annotated[int, Field(ge=1)] | None = None
    profiles_images: bool = False
    large_graph_reserve: bool = False
    prefill_graph_reserve: bool = False
    draft_reserve_bytes: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    rotary_value_bytes: Annotated[int, Field(ge=0)] = 0
    kept_expert_rows: tuple[FormatFamily, ...] = ()
    expert_padding: tuple[ExpertPadding, ...] = ()

    cuda_graphs: bool
    graph_batch_factor: Annotated[float, Field(gt=0)]
    graph_max_batch: Annotated[int, Field(ge=0)]
    graph_max_batch_blackwell: Annotated[int, Field(ge=0)]
    graph_max_batch_of_models: dict[str, int] = Field(default_factory=dict)
    graph_smallest: tuple[Count, ...] = (1, 2, 4)
    graph_fine_step: Count
    graph_coarse_from: Count
    graph_coarse_step: Count
    graph_doubling_from: Count | None = None
    graph_padding: bool = True
    unpadded_graph_sizes: tuple[Count, ...] = ()
    graphs_for_prompts: bool = True
    graphs_count_drafts: bool = True
    graphs_fit_decodes: Literal["never", "drafting", "always"] = "never"

    all_reduce_one_shot_rows: Count | None = None
    all_reduce_families: dict[str, str] = Field(default_factory=dict)

    sampler: Literal["sort", "triton", "flashinfer"]
    host_base_s: Seconds
    host_per_layer_s: Seconds
    host_per_sequence_s: Seconds
    host_serial_s: Seconds = 0.0
    host_serial_per_sequence_s: Seconds = 0.0
    penalty_host_s: Seconds = 0.0
    penalty_host_per_sequence_s: Seconds = 0.0
    host_machine_spread: Annotated[float, Field(ge=0)]
    host_overlapped: bool
    host_overlap_norm: Annotated[float, Field(ge=1)]
    kernel_launch_s: Seconds
    launches_wait: bool = False
    quantize_launches: Annotated[float, Field(ge=0)] = 1.0
    fuses_qk_norm_with_rope: bool = False
    fuses_biased_routing: bool = True
    separate_products: dict[Literal["qkv_a", "indexer k"], tuple[str, ...]] = Field(default_factory=dict)
    parallel_indexer_rows: Annotated[int, Field(ge=0)] = 0
    results_after_launch: bool = False
    request_latency_s: Seconds
    response_latency_s: Seconds
    request_s: Seconds = 0.0
    input_token_s: Seconds = 0.0
    output_token_s: Seconds

    @property
    def label(self) -> str:
        """Return `name@version`, which `find_engine` accepts."""
        return f"{self.name}@{self.version}"

    def server_latency_s(self, prompt_tokens: float) -> float:
        """Return the seconds that the API server adds to the TTFT of a request, if it processes no other request."""
        cpu_s = self.request_s + prompt_tokens * self.input_token_s
        return self.request_latency_s + cpu_s + self.response_latency_s

    @property
    def assumes_host_times(self) -> bool:
        """Return whether the host time of a step or of a sequence is assumed, not measured or fitted."""
        times = ("host_base_s", "host_per_sequence_s")
        return all(name in self.origins and self.origins[name].basis == "assumed" for name in times)

    def loads_formats(self, families: Collection[FormatFamily]) -> bool:
        """Return whether the engine loads weights in all these families of formats (awq, fp8, ...)."""
        return set(families) <= set(self.weight_formats)

    def runs_on_platform(self, platform: Platform, capability: float) -> bool:
        """Return whether the engine runs on the platform; `capability`: NVIDIA compute capability, 0 for others."""
        running = self.runs_on.get(platform)
        return running is not None and capability >= running.min_capability

    def loads_on_platform(self, family: FormatFamily, platform: Platform, capability: float) -> bool:
        """Return whether the engine runs on this platform and loads weights of this family there."""
        if not self.runs_on_platform(platform, capability) or family not in self.weight_formats:
            return False
        running = self.runs_on[platform]
        if running.formats is not None and family not in running.formats:
            return False
        return capability >= running.format_capability.get(family, 0.0)

    def supports_kv_format(self, kv_cache_format: str) -> bool:
        packed = ("fp8_ds_mla",) if "fp8" in self.kv_cache_formats else ()
        return kv_cache_format in ("fp32", "bf16", "fp16", *self.kv_cache_formats, *packed)

    def replacement_kernel(self, kernel: Kernel, architecture: str) -> Kernel:
        """Return the kernel that the engine runs in place of a format's default kernel."""
        own = self.weight_kernels_on.get(architecture, {}).get(kernel)
        return own or self.weight_kernels.get(kernel, kernel)

    def expert_kernel(self, kernel: Kernel, architecture: str) -> str:
        """Return the key in `KernelFamily.moe` of the constants for experts with the default kernel `kernel`."""
        return self.expert_kernels_on.get(architecture, {}).get(kernel, kernel)

    def default_limits(self, memory_engine_bytes: float, architecture: str) -> LimitRule:
        """Return the default limits on a GPU: the first rule that applies, in order of decreasing memory."""
        for rule in self.limits:
            large = memory_engine_bytes >= rule.min_memory_gib * GIB
            if large and architecture not in rule.except_architectures:
                return rule
        return self.limits[-1]

    def graph_batch_sizes(
        self,
        max_num_seqs: int,
        architecture: str,
        *,
        model_type: str = "",
        draft_tokens: int = 0,
        most: int | None = None,
        padding: bool | None = None,
    ) -> tuple[int, ...]:
        """Return the batch sizes of captured CUDA graphs, with padding to the next size or without (None: the default).

        The sizes are `graph_smallest`, then fine steps, then coarse ones. The largest is the smaller of
        graph_batch_factor x max_num_seqs x (1 + draft tokens) and the architecture's limit. `most` (None: the engine's
        maximum for `model_type`, if any) replaces this largest size. Larger steps run eagerly. Engines whose limit is
        max_num_seqs (SGLang, TensorRT-LLM) also capture max_num_seqs. Source: vLLM 0.8.5 to 0.33 config/vllm.py;
        SGLang 0.5 cuda_graph_runner.py; TensorRT-LLM 1.0 to 1.2 llmapi/llm_args.py (CudaGraphConfig) and
        _torch/pyexecutor/model_engine.py (_filter_cuda_graph_batch_sizes).
        """
        if not self.cuda_graphs:
            return ()
        datacentre_blackwell = architecture in ("blackwell", "blackwell-ultra")
        cap = self.graph_max_batch_blackwell if datacentre_blackwell else self.graph_max_batch
        rows = 1 + draft_tokens if self.graphs_count_drafts else 1
        if self.graph_batch_factor <= 1:  # the limit counts sequences, not rows
            cap *= rows
        largest = min(int(self.graph_batch_factor * max_num_seqs * rows), cap)
        most = self.graph_max_batch_of_models.get(model_type) if most is None else most
        if most is not None:
            largest = most
        if not (self.graph_padding if padding is None else padding):
            return self._unpadded_sizes(largest, rows, exact=most is not None)
        sizes = self._stepped_sizes(largest)
        fits = self.graphs_fit_decodes == "always" or (self.graphs_fit_decodes == "drafting" and rows > 1)
        if fits and most is None:
            sequences = min(max_num_seqs, cap)
            batches = (*(self._stepped_sizes(sequences) if rows > 1 else ()), sequences)
            decodes = (batch * rows for batch in batches if batch * rows <= largest)
            return tuple(sorted({*sizes, *decodes}))
        if self.graph_batch_factor == 1 and largest and sizes[-1] != largest:
            return (*sizes, largest)
        return sizes

    def _unpadded_sizes(self, largest: int, rows: int, *, exact: bool) -> tuple[int, ...]:
        """Return the sizes without padding, in rows, of batches of `rows` rows per sequence; `exact`: `largest` too."""
        batches = largest // rows
        sizes = {size for size in self.unpadded_graph_sizes or range(1, batches + 1) if size <= batches}
        return tuple(
            size * rows
            for size in sorted({*sizes, *self._doubled_sizes(batches), *([batches] if exact else ())})
        )

    def _doubled_sizes(self, largest: int) -> tuple[int, ...]:
        """Return the powers of two above `graph_doubling_from`."""
        if self.graph_doubling_from is None:
            return ()
        return tuple(2**n for n in range(self.graph_doubling_from.bit_length(), largest.bit_length()))

    def _stepped_sizes(self, largest: int) -> tuple[int, ...]:
        stepped = min(largest, self.graph_doubling_from or largest)
        fine = range(self.graph_fine_step, min(self.graph_coarse_from, stepped + 1), self.graph_fine_step)
        coarse = range(self.graph_coarse_from, stepped + 1, self.graph_coarse_step)
        smallest = (size for size in self.graph_smallest if size <= largest)
        return tuple(sorted({*smallest, *fine, *coarse, *self._doubled_sizes(largest)}))
