"""An engine's release as a record: limits, memory rules and host times, each with its source."""

from collections.abc import Collection
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
    """Where an engine's constant comes from."""

    source: Annotated[str, Field(min_length=1)]
    date: Annotated[str, Field(min_length=4)]
    basis: Basis


class LimitRule(Spec):
    """Default limits for GPUs of at least `min_memory_gib` (as the engine sees it), save some architectures."""

    min_memory_gib: Annotated[float, Field(ge=0)]
    except_architectures: tuple[str, ...] = ()
    max_num_seqs: Count
    max_num_batched_tokens: Count  # of the API server
    max_num_batched_tokens_offline: Count  # of the engine as a library
    max_graph_batch: Annotated[int, Field(ge=0)] | None = None  # where it depends on memory (SGLang)


class ExpertPadding(Spec):
    """Expert matrices of `weight_format` are stored padded: the intermediate width of each GPU, and the hidden
    dimension of the packed values, of their scales too where `pads_scales`. Of several the first holds that is of the
    GPU's architecture, or of none."""

    weight_format: str
    hidden_multiple: Count
    intermediate_multiple: Count
    pads_scales: bool = False
    architectures: tuple[str, ...] = ()


class Running(Spec):
    """An engine on one platform: NVIDIA's least compute capability (of others 0), and what weights it loads there.

    `formats` None: all families of `weight_formats`. `format_capability`: families that need a higher capability.
    """

    min_capability: Annotated[float, Field(ge=0)] = 0.0
    formats: tuple[FormatFamily, ...] | None = None
    format_capability: dict[FormatFamily, float] = Field(default_factory=dict)


class EngineSpec(Spec):
    """One release of one engine. `origins` maps each constant's name to its source; `notes` are for the user.

    Scheduling. `scheduler` names the policy. `mixes_prefill_with_decode`: one step may hold both (chunked or
    not); otherwise prefill steps stand alone. `stream_interval`: output tokens are sent in groups of so many.
    `batch_wait_steps`: a prefill may wait so many decode steps for company. `forks_samples`: several answers to a
    prompt share one prefill of it, and its KV until they differ. `default_drafts`: by way or kind of drafting, how deep
    it drafts where nobody says, and how many it verifies; more than its depth are a tree.

    Of every release. `baseline`: nothing to run, a textbook's way to compare with. `kernel_family`: whose fitted
    constants stand for its kernels. `data_parallel_divides_limits`: of a mixture of experts, the default limits are
    those of all data-parallel ranks together. `reserves_output`: a request starts only where all the output that its
    client allows (max_tokens) has room. `host_memory`: what of a model may stand there: weights, which each step reads
    over PCIe, or layers, which the CPU computes; None: nothing. `lacks`: fields of a pool that it has no setting for,
    each with the flag to use instead, or nothing.

    Host time of a step is host_base_s + host_per_layer_s x layers + host_per_sequence_s x sequences. Not
    overlapped, it is added to the GPU time; overlapped, the step takes (gpu^n + host^n)^(1/n) with n =
    `host_overlap_norm`, which tends to the larger of the two. `host_serial_s` is added in either case: what lies
    between two steps of an engine that schedules asynchronously (copies to and from the GPU, the sampler's kernels
    outside of the graph). `host_machine_spread`: one machine's host times are these by a factor, whose logarithm has
    this standard deviation over machines (CPU, clock, load, and what else the machine's software does).
    `kernel_launch_s`: of the CPU, for one kernel of a step that replays no CUDA graph (`capacity.step.launches`);
    `quantize_launches`: of such launches, what it takes to quantize a product's input, which some do in the product's
    own call; `fuses_qk_norm_with_rope`: norms of queries and keys are of rope's kernel; `launches_wait`: those of
    routed experts, sparse indexers and linear attention do not run ahead of the GPU, so that nothing hides them.
    `results_after_launch`: of two steps in flight, the thread that launches the second reads the first one's results
    afterwards.
    `request_latency_s` and `response_latency_s`: client to engine and back (HTTP, tokenizer, detokenizer).
    `output_token_s`: the output process needs this for each streamed token, over all requests, in series.

    All-reduce. `all_reduce_one_shot_rows`: its kernel, fused with the norm that follows, takes the one-shot way up to
    so many rows, however large they are; None: the quicker way of each size. `all_reduce_families`: by architecture,
    whose all-reduce kernels it calls in place of its own family's.

    `runs_on`: the platforms that it runs on, and what it needs and loads there.

    Formats. `weight_kernels`: the kernels that it runs in place of others (`capacity/hardware/weight_kernels.toml`);
    `weight_kernels_on`: beside them, by architecture; `expert_kernels_on`: of experts alone, whose constants are
    those of that name (`moe` of `KernelFamily`). `early_block_experts`: by how much steps of experts in FP8 blocks
    may be off, whose kernels of its time nobody measured here; 1: they are those of the tables.
    `chooses_moe_backend`: whether a flag of its own names them.
    `splits_fp32_router_on`: where it multiplies a router of 32-bit weights as three of 16 bit, by architecture.
    `weight_formats`: families of weights that it loads; `kv_cache_formats`: of the KV cache, besides 16
    bit, which all have. `sparse_kv_cache_dtype`: what `auto` means for latents that a sparse indexer picks, by
    architecture, or by "model type:architecture"; any other: 16 bit. `plain_sparse_fp8_heads`: the most query heads of
    a GPU with which an fp8 cache of these latents is a byte a value, by architecture; otherwise it is `fp8_ds_mla`.
    `fp8_latent_backend`: by architecture, the attention backend that its times of other latents in FP8 are of, and that
    its launch must name.
    `sparse_short_prompts_dense`: prompts no longer than the indexer's top-k run over
    expanded heads; otherwise they gather, as longer ones do. `sparse_kernels_fill_top_k`: architectures on which its
    kernels multiply every slot of the top-k for every query, and a whole tile of heads, however short the context.
    `sinks_prefill_slowdown`: by architecture, how many times longer the attention of a prefill takes in the kernel that
    it has for models with sinks than in the one that was fitted there.

    Memory. `window_aware_kv`: layers with a window keep only that; otherwise their KV grows with the context.
    `state_memory_ratio`: recurrent states have memory of their own, so many times what KV has (None: both draw on one
    pool of blocks); a request takes `states_per_request` of them where prefixes are cached, else one.
    `fraction_of_total`: the engine may use gpu_memory_utilization x total, and the rest of the budget
    after weights, activations and non-torch is KV. `fraction_of_free`: KV takes that fraction of what is free
    after loading. `sglang_static`: weights and KV take a fraction that is computed from the limits.
    `nontorch_bytes_tp1` / `_tpn`: CUDA context beyond the first allocation, NCCL and workspaces, per GPU;
    `_tpn_without_nvls` where no NVSwitch reduces for the GPUs (PCIe, Ampere), None: as `_tpn`.
    `sampler_bytes_per_logit`: peak of sampling, for each of max_num_seqs x vocabulary. `activation_*`: peak of
    the widest layer, see `capacity.pool.activations`. `rotary_value_bytes`: of each value of a model's tables for
    rotary positions, which stand beside its weights. `kept_expert_rows`: families of weights whose fused experts keep
    their rows of a full step for good, so that sampling finds them there. `profiles_images`: it starts a model that
    sees with its largest image, and keeps room for it. `graph_bytes_*`: CUDA graphs, of a model of
    `graph_reference_layers` (None: of any); `large_graph_reserve`: SGLang's default static fraction leaves half as much
    again to graphs of more than 300 rows under DP attention.
    `graphs_in_budget`: whether the engine takes their estimate out of the KV budget (otherwise they come on top of it).
    """

    name: str
    version: str
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origins: dict[str, Origin]

    baseline: bool = False
    kernel_family: str = "vllm"
    data_parallel_divides_limits: bool = False
    reserves_output: bool = False
    host_memory: Literal["weights", "layers"] | None = None
    lacks: dict[str, str] = Field(default_factory=dict)

    scheduler: str
    block_size: Count
    mla_block_size: Count
    paged: bool
    window_aware_kv: bool
    state_memory_ratio: Annotated[float, Field(gt=0)] | None = None
    states_per_request: Count = 1
    chunked_prefill: bool
    prefix_caching: bool
    async_scheduling: bool
    mixes_prefill_with_decode: bool
    reserve_full_isl: bool
    stream_interval: Count
    batch_wait_steps: Annotated[int, Field(ge=0)]
    forks_samples: bool = False
    default_drafts: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    limits: Annotated[tuple[LimitRule, ...], Field(min_length=1)]

    runs_on: Annotated[dict[Platform, Running], Field(min_length=1)]
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
    early_block_experts: Annotated[float, Field(ge=1)] = 1.0
    chooses_moe_backend: bool = False

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
    rotary_value_bytes: Annotated[int, Field(ge=0)] = 0
    kept_expert_rows: tuple[FormatFamily, ...] = ()
    expert_padding: tuple[ExpertPadding, ...] = ()

    cuda_graphs: bool
    graph_batch_factor: Annotated[float, Field(gt=0)]
    graph_max_batch: Annotated[int, Field(ge=0)]
    graph_max_batch_blackwell: Annotated[int, Field(ge=0)]
    graph_max_batch_of_models: dict[str, int] = Field(default_factory=dict)
    graph_fine_step: Count
    graph_coarse_from: Count
    graph_coarse_step: Count

    all_reduce_one_shot_rows: Count | None = None
    all_reduce_families: dict[str, str] = Field(default_factory=dict)

    host_base_s: Seconds
    host_per_layer_s: Seconds
    host_per_sequence_s: Seconds
    host_serial_s: Seconds = 0.0
    host_machine_spread: Annotated[float, Field(ge=0)]
    host_overlapped: bool
    host_overlap_norm: Annotated[float, Field(ge=1)]
    kernel_launch_s: Seconds
    launches_wait: bool = False
    quantize_launches: Annotated[float, Field(ge=0)] = 1.0
    fuses_qk_norm_with_rope: bool = False
    results_after_launch: bool = False
    request_latency_s: Seconds
    response_latency_s: Seconds
    output_token_s: Seconds

    @property
    def label(self) -> str:
        """`name@version`, as `find_engine` takes it."""
        return f"{self.name}@{self.version}"

    def loads(self, families: Collection[FormatFamily]) -> bool:
        """Whether it loads weights of all these families."""
        return set(families) <= set(self.weight_formats)

    def runs(self, platform: Platform, capability: float) -> bool:
        """Whether it runs on such accelerators; `capability` is NVIDIA's, of others 0."""
        running = self.runs_on.get(platform)
        return running is not None and capability >= running.min_capability

    def loads_there(self, family: FormatFamily, platform: Platform, capability: float) -> bool:
        """Whether it runs there and loads such weights."""
        if not self.runs(platform, capability) or family not in self.weight_formats:
            return False
        running = self.runs_on[platform]
        if running.formats is not None and family not in running.formats:
            return False
        return capability >= running.format_capability.get(family, 0.0)

    def caches_in(self, kv_cache_format: str) -> bool:
        """Whether it keeps KV in this format."""
        packed = ("fp8_ds_mla",) if "fp8" in self.kv_cache_formats else ()
        return kv_cache_format in ("fp32", "bf16", "fp16", *self.kv_cache_formats, *packed)

    def kernel_in_place_of(self, kernel: Kernel, architecture: str) -> Kernel:
        """What it runs where a format's own kernel is this one."""
        own = self.weight_kernels_on.get(architecture, {}).get(kernel)
        return own or self.weight_kernels.get(kernel, kernel)

    def expert_kernel(self, kernel: Kernel, architecture: str) -> str:
        """Whose constants experts take where a format's own kernel is this one."""
        return self.expert_kernels_on.get(architecture, {}).get(kernel, kernel)

    def default_limits(self, memory_engine_bytes: float, architecture: str) -> LimitRule:
        """The default limits on a GPU: the first rule, from large memory to small, that it meets."""
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
    ) -> tuple[int, ...]:
        """Batch sizes that CUDA graphs are captured for; a decode batch is padded to the next one.

        1, 2, 4, then fine steps, then coarse ones, up to graph_batch_factor x max_num_seqs x (1 + drafts) or the
        architecture's cap, or up to `most`, which the engine itself sets for some models. Above the largest the step
        runs eagerly. Engines whose cap is max_num_seqs itself (SGLang, TensorRT-LLM) capture that size too.
        Source: vLLM 0.33 config/vllm.py; SGLang 0.5 cuda_graph_runner.py.
        """
        if not self.cuda_graphs:
            return ()
        datacentre_blackwell = architecture in ("blackwell", "blackwell-ultra")
        cap = self.graph_max_batch_blackwell if datacentre_blackwell else self.graph_max_batch
        if self.graph_batch_factor <= 1:  # it is of sequences with all their rows, else of rows
            cap *= 1 + draft_tokens
        largest = min(int(self.graph_batch_factor * max_num_seqs * (1 + draft_tokens)), cap)
        most = self.graph_max_batch_of_models.get(model_type) if most is None else most
        largest = largest if most is None else most
        fine = range(self.graph_fine_step, min(self.graph_coarse_from, largest + 1), self.graph_fine_step)
        coarse = range(self.graph_coarse_from, largest + 1, self.graph_coarse_step)
        sizes = (*(size for size in (1, 2, 4) if size <= largest), *fine, *coarse)
        if self.graph_batch_factor == 1 and largest and sizes[-1] != largest:
            return (*sizes, largest)
        return sizes
