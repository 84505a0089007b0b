"""Feed-forward layers: dense, or a mixture of experts with the exchange of tokens between GPUs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from capacity.hardware.coefficients import ElementwiseCoefficients, Fit, GemmCoefficients, MoeCoefficients
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward
from capacity.model.layers import LatentAttention, LayerGroup
from capacity.model.parameter_part import PartKind
from capacity.model.quantization import Execution, Kernel, WeightFormat
from capacity.step.collectives import Transfer
from capacity.step.expert_load import BALANCED_ROUTING_GAMMA_SHAPE, ROUTING_GAMMA_SHAPE, Experts
from capacity.step.layers.builder import Builder, StoredFormat, activation_bits
from capacity.step.operators import ACTIVATION_BYTES, Gemm, Operator, Traffic

EXCHANGE = "expert exchange"
TABLES_ON_BLACKWELL, TABLES_ELSEWHERE = "flashinfer_trtllm", "triton"
UNTUNED_EXPERTS = {  # by backend and kernel, on Blackwell
    ("triton", "bf16"): "bf16_triton",
    ("triton", "fp8_block"): "fp8_triton",
    ("triton", "fp8"): "fp8_triton",
}
EXPERT_PARTS = ("mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")
KERNELS_OF_SHARED_GATE = 2.0  # sigmoid, scaling
UNEVEN_LOAD_FRACTION = 0.9
"""Fraction of the balanced-routing rates that expert kernels keep if some experts get many more tokens than others,
because of half-empty tiles and a small last wave. Source: aiconfigurator-core 0.12.0, rows of H100, H200 and B200 under
`power_law_1.2`, all experts on every rank, 512 tokens and more. In these rows, times with the constants for balanced
routing are 9 % too short at the median. A fraction of 0.9 has the least error (11.7 %; 0.85 has 13.2 %). Measurements
of whole servers fit best with a higher value between 0.85 and 1, one server's log with a lower value. 2026-11-22."""
DATACENTRE_BLACKWELL = ("blackwell", "blackwell-ultra")
NATIVE_MXFP4 = ("hopper", *DATACENTRE_BLACKWELL)
MARLIN = "marlin"
MARLIN_KERNELS = ("w4a16", "w8a16")
MARLIN_INSTEAD: Mapping[Kernel, Kernel] = {
    "mxfp4": "w4a16",
    "nvfp4": "w4a16",
    "fp8": "w8a16",
    "fp8_block": "w8a16",
}
TRITON_INT4, TRITON_INT4_ON_BLACKWELL = "w4a16_triton", "w4a16_triton_blackwell"
PADDED_BLOCKS, PADDED_BACKEND = "fp8_block_deepgemm", "deep_gemm"
FP32_ROUTER = GemmCoefficients(
    compute_fraction=0.65,
    bandwidth_fraction=0.8,
    sharpness=3.0,
    fixed_s=4e-6,
    per_k_s=1.3e-9,
    fit=Fit(
        basis="fitted",
        source="cuBLAS on GB300, MiniMax-M3's router of 6144 x 128: 15, 22, 54, 174 and 439 us for 64, 256, 1,024, "
        "4,096 and 16,384 tokens (vllm pull request 55899)",
        date="2026-11-23",
    ),
)
ROUTING_PASSES = 10.0  # over the scores in 32 bit: sigmoid, bias, top-k of groups, mask, top-k, weights
UNFUSED_ROUTING = ElementwiseCoefficients(
    bandwidth_fraction=0.083,
    fixed_s=2.8e-5,
    fit=Fit(
        basis="fitted",
        source="DeepSeek-V3's routing: time of code compiled by PyTorch minus that of one kernel; on H200 36 and 8 us "
        "in decode (sglang pull request 5371), 182 to 1,077 us for 5,000 to 40,000 tokens, or 25.6 ns per token "
        "(pull request 6946, assumed to be H200); SGLang and vLLM had the same code",
        date="2026-11-28",
    ),
)
EARLY_KERNELS = "experts in FP8 blocks with {}: times are based on later releases, whose kernels are faster"
SHARED_OPERATORS = ("experts", EXCHANGE)  # operators that data-parallel ranks share


def dense(part: DenseFeedForward, group: LayerGroup, build: Builder) -> list[Operator]:
    """Build a dense feed-forward: the gate and up GEMM, the activation, and the down GEMM."""
    return _products("", ("mlp", "dense_ffn"), part.intermediate_size, group, build, gated=part.gated)


def mixture(part: MoEFeedForward, group: LayerGroup, build: Builder) -> list[Operator]:
    """Build the router, routed experts, shared experts, and the exchange among data-parallel ranks."""
    setting, hidden = build.setting, build.model.hidden_size
    ranks = setting.tensor_parallel_size * (setting.data_parallel_size if setting.runs_joint_steps else 1)
    parts = EXPERT_PARTS if part.gated else EXPERT_PARTS[1:]
    operators: list[Operator] = [
        *_router(part, group, build),
        *_unfused_routing(part, group, build),
        *(_experts(part, stored, build, ranks) for stored in build.formats("experts", parts, group)),
    ]
    if part.shared_intermediate_size:
        operators += _products(
            "shared ",
            ("mlp.shared_expert", "shared_expert"),
            part.shared_intermediate_size,
            group,
            build,
            gated=part.gated,
        )
    operators += build.products("latent of experts", part.latent_products(hidden), group)
    if part.shared_gate:
        operators += _shared_gate(group, build)
    if setting.runs_joint_steps:
        operators.append(_exchange(part, group, build, ranks))
    return operators


def _router(part: MoEFeedForward, group: LayerGroup, build: Builder) -> list[Gemm]:
    """Build the GEMM of the router, which scores each expert for each token, in 16 or 32 bits."""
    hidden, scored = build.model.hidden_size, part.num_experts + part.zero_experts
    if not part.router_in_fp32:
        return build.gemm("router", "router", k=hidden, n=scored, parts=("mlp.gate",), group=group)
    engine, of_16_bit = build.setting.engine, build.lookup.kernel("gemm", "bf16")
    split = engine is not None and build.setting.profile.architecture in engine.splits_fp32_router_on
    columns, bits = (3.0 * scored, 16.0) if split else (float(scored), 32.0)
    router = Gemm(
        name="router",
        count=group.num_layers,
        k=hidden,
        n=columns,
        weight_bytes=columns * hidden * bits / 8,
        activation_bits=bits,
        flops_per_s=build.peak("bf16" if split else "fp32"),
        device=build.device,
        constants=of_16_bit if split else build.lookup.adjust("gemm", FP32_ROUTER),
        rows=build.group_rows(group),
    )
    return [router]


def _unfused_routing(part: MoEFeedForward, group: LayerGroup, build: Builder) -> list[Operator]:
    """Build the additional kernels of engines that select experts by a biased score with PyTorch operations."""
    engine = build.setting.engine
    if engine is None or engine.fuses_biased_routing or not part.balanced_router:
        return []
    routing = Traffic(
        name="expert routing",
        kernels=float(group.num_layers),
        bytes_per_row=group.num_layers * ROUTING_PASSES * 4.0 * part.num_experts,
        flops_per_row=0.0,
        device=build.device,
        constants=build.lookup.adjust("elementwise", UNFUSED_ROUTING),
        rows=build.group_rows(group),
    )
    return [routing]


def _shared_gate(group: LayerGroup, build: Builder) -> list[Operator]:
    """Build the gate that scales the shared expert by one number per row: GEMM, sigmoid and scaling."""
    hidden = build.model.hidden_size
    parts = ("mlp.shared_expert_gate",)
    return [
        *build.gemm("shared gate", "router", k=hidden, n=1.0, parts=parts, group=group),
        build.traffic(
            "norms, rope, activation",
            kernels=group.num_layers * KERNELS_OF_SHARED_GATE,
            bytes_per_row=group.num_layers * 2 * hidden * ACTIVATION_BYTES,
            flops_per_row=group.num_layers * 1.0 * hidden,
        ),
    ]


def routing_gamma_shape(part: MoEFeedForward) -> float:
    """Return the shape of the gamma distribution of the experts' popularities; it is larger for balanced routers."""
    return BALANCED_ROUTING_GAMMA_SHAPE if part.balanced_router else ROUTING_GAMMA_SHAPE


def _experts(part: MoEFeedForward, stored: StoredFormat, build: Builder, ranks: int) -> Experts:
    """Build the routed experts of the layers that store them in this format."""
    stored = _with_marlin(stored, build)
    setting, execution = build.setting, stored.execution
    hidden = part.latent_size or build.model.hidden_size
    intermediate = part.expert_intermediate_size / (1 if setting.expert_parallel else ranks)
    key = _expert_table(execution.kernel, build, ranks)
    if key == execution.kernel and _marlin_refuses(stored.weight_format, intermediate, build):
        on_blackwell = setting.profile.architecture in DATACENTRE_BLACKWELL
        key = TRITON_INT4_ON_BLACKWELL if on_blackwell else TRITON_INT4
    table = build.lookup.kernel("moe", key)
    constants = apply_uneven_loads(add_matrix_walk(table, hidden + intermediate))
    return Experts(
        name="experts",
        count=stored.count,
        hidden=hidden,
        intermediate=intermediate,
        matrices=part.matrices,
        num_experts=part.num_experts,
        experts_per_token=part.experts_per_token,
        expert_ranks=ranks if setting.expert_parallel else 1,
        weight_bits=stored.bits_per_weight,
        activation_bits=activation_bits(execution.compute_dtype),
        flops_per_s=build.peak(execution.compute_dtype),
        device=build.device,
        constants=constants,
        weight_slowdown=setting.weight_slowdown(
            constants.bandwidth_fraction, share=setting.host_weight_share
        ),
        token_groups=setting.data_parallel_size if setting.runs_joint_steps else 1,
        evenness=routing_gamma_shape(part),
    )


def _marlin_refuses(weight_format: WeightFormat, intermediate: float, build: Builder) -> bool:
    """Return whether 4-bit experts of this width run without Marlin, which needs whole groups and tiles of 64."""
    engine = build.setting.engine
    if engine is None or not engine.marlin_experts_need_whole_groups or build.setting.moe_backend != "auto":
        return False
    return weight_format.kernel == "w4a16" and intermediate % max(64, weight_format.block_columns) != 0


def _expert_table(kernel: Kernel, build: Builder, ranks: int) -> str:
    """Return the key of the fitted expert constants for a kernel and a backend (the user's choice or the engine's
    default) on `ranks` GPUs.

    The fitted constants describe FlashInfer's kernels on datacentre Blackwell, and Triton's, CUTLASS's or
    TensorRT-LLM's on other GPUs, as engines choose them. A backend without constants uses the fitted ones, with a
    note.
    """
    untabled, setting = build.kernel_without_table(kernel), build.setting
    engine, architecture, backend = setting.engine, setting.profile.architecture, setting.moe_backend
    if untabled is not None:
        if backend != "auto":
            build.notes.append(
                f"--moe-backend {backend} does not change predicted times: the step model has one set of constants "
                f"for {kernel} experts, the same for all backends"
            )
        return untabled.experts
    if engine is not None and kernel == "fp8_block" and engine.early_block_experts > 1:
        build.assume(EARLY_KERNELS.format(engine.label), engine.early_block_experts)
    if backend == "auto":
        latent = any(isinstance(group.mixer, LatentAttention) for group in build.model.layer_groups)
        before_others = latent and kernel != "bf16"  # models like DeepSeek's get new kernels first
        whole = setting.expert_parallel
        if engine is None:
            return kernel
        limits = engine.deepgemm_experts_below
        below = limits.get(f"{build.model.model_type}:{architecture}") or limits.get(architecture, 0)
        if kernel == "fp8_block" and (1 if whole else ranks) < below:
            return PADDED_BLOCKS
        if whole and ranks > 1 and kernel in engine.whole_expert_kernels_on.get(architecture, {}):
            return engine.whole_expert_kernels_on[architecture][kernel]
        return kernel if before_others else engine.expert_kernel(kernel, architecture)
    blackwell = architecture in DATACENTRE_BLACKWELL
    if (backend, kernel) == (PADDED_BACKEND, "fp8_block") and (blackwell or architecture == "hopper"):
        return PADDED_BLOCKS
    if blackwell and (backend, kernel) in UNTUNED_EXPERTS:
        return UNTUNED_EXPERTS[backend, kernel]
    if (backend, kernel) == ("triton", "w4a16"):
        return TRITON_INT4_ON_BLACKWELL if blackwell else TRITON_INT4
    measured = _measured_backend(kernel, architecture)
    if backend != measured:
        build.notes.append(
            f"--moe-backend {backend} does not change predicted times: {kernel} experts were not measured with it on "
            f"{setting.profile.name}, so the times are those of {measured}"
        )
    return kernel


def _measured_backend(kernel: Kernel, architecture: str) -> str:
    """Return the backend whose kernels the fitted constants of experts describe."""
    if kernel in MARLIN_KERNELS or (kernel == "mxfp4" and architecture not in NATIVE_MXFP4):
        return MARLIN
    return TABLES_ON_BLACKWELL if architecture in DATACENTRE_BLACKWELL else TABLES_ELSEWHERE


def _with_marlin(stored: StoredFormat, build: Builder) -> StoredFormat:
    """Return the format with the execution that `--moe-backend marlin` selects: 16-bit products on unpacked weights."""
    kernel, architecture = stored.execution.kernel, build.setting.profile.architecture
    if build.setting.moe_backend != MARLIN or _measured_backend(kernel, architecture) == MARLIN:
        return stored
    if kernel not in MARLIN_INSTEAD:
        return stored
    execution = Execution(kernel=MARLIN_INSTEAD[kernel], compute_dtype="bf16", note=None)
    return replace(stored, execution=execution)


def add_matrix_walk(constants: MoeCoefficients, rows: float) -> MoeCoefficients:
    """Return the constants with the kernel's loop over `rows` matrix rows (`per_k_s` each) in the fixed time."""
    return constants.model_copy(
        update={"fixed_s": constants.fixed_s + constants.per_k_s * rows, "per_k_s": 0.0}
    )


def apply_uneven_loads(constants: MoeCoefficients) -> MoeCoefficients:
    """Return constants that were measured with equal expert loads, with rates reduced for unequal loads."""
    rates = ("compute_fraction", "routed_fraction")
    return constants.model_copy(
        update={name: getattr(constants, name) * UNEVEN_LOAD_FRACTION for name in rates}
    )


def _products(
    prefix: str,
    parts: tuple[str, PartKind],
    intermediate: float,
    group: LayerGroup,
    build: Builder,
    *,
    gated: bool,
) -> list[Operator]:
    """Build the operators of a feed-forward: the GEMM of up (and gate), the activation, and the down GEMM. `parts`:
    prefix of the weight names, and kind of the weights."""
    of, kind = parts
    hidden, layers, wide = build.model.hidden_size, group.num_layers, 2 if gated else 1
    width = intermediate / build.setting.tensor_parallel_size
    into = (f"{of}.gate_proj", f"{of}.up_proj") if gated else (f"{of}.up_proj",)
    return [
        *build.gemm(
            f"{prefix}{'gate_up' if gated else 'up'}", kind, k=hidden, n=wide * width, parts=into, group=group
        ),
        *build.gemm(f"{prefix}down", kind, k=width, n=hidden, parts=(f"{of}.down_proj",), group=group),
        build.traffic(
            "norms, rope, activation",
            kernels=float(layers),
            bytes_per_row=layers * (wide + 1) * width * ACTIVATION_BYTES,
            flops_per_row=layers * 4.0 * width,
            rows=build.group_rows(group),
        ),
    ]


def _exchange(part: MoEFeedForward, group: LayerGroup, build: Builder, ranks: int) -> Transfer:
    """Build the exchange of tokens with the GPUs that hold their experts.

    GPUs with direct links exchange all tokens (all-gather, then reduce-scatter: vLLM's default). Other GPUs send each
    token only to the GPUs of its experts (all-to-all). Each GPU of a tensor-parallel rank sends an equal share of the
    rank's tokens.
    """
    setting = build.setting
    link = setting.find_link(ranks)
    everywhere = link.direct or not setting.expert_parallel
    copies = ranks - 1.0 if everywhere else min(part.experts_per_token, ranks) * (ranks - 1) / ranks
    kind: Literal["all_gather", "all_to_all"] = "all_gather" if everywhere else "all_to_all"
    row_bytes = build.model.hidden_size * copies * ACTIVATION_BYTES / setting.tensor_parallel_size
    return Transfer(
        name=EXCHANGE,
        kind=kind,
        count=2 * group.num_layers,
        ranks=ranks,
        bytes_per_row=row_bytes,
        link=link,
        constants=build.lookup.nccl(kind),
    )
