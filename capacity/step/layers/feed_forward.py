"""Feed-forward layers: dense, or a mixture of experts with the exchange of tokens between GPUs."""

from typing import Literal

from capacity.hardware.coefficients import Fit, GemmCoefficients, MoeCoefficients
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward
from capacity.model.layers import LatentAttention, LayerGroup
from capacity.model.parameter_part import PartKind
from capacity.model.quantization import Kernel
from capacity.step.collectives import Transfer
from capacity.step.expert_load import BALANCED_ROUTING_GAMMA_SHAPE, ROUTING_GAMMA_SHAPE
from capacity.step.layers.builder import Builder, StoredFormat, activation_bits
from capacity.step.operators import ACTIVATION_BYTES, Experts, Gemm, Operator

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
because of half-empty tiles and a small last wave. Source: aiconfigurator-core 0.12.0, rows of H100, H200 and B200
under `power_law_1.2`, all experts on every rank, 512 tokens and more. There, constants of balanced rows are 9 % too
fast at the median, and 0.9 has the least error (11.7 %, against 13.2 % at 0.85). Served rows prefer a higher value in
the range 0.85 to 1, a server's log a lower one. 2026-11-22."""
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
    setting, execution = build.setting, stored.execution
    hidden = part.latent_size or build.model.hidden_size
    intermediate = part.expert_intermediate_size / (1 if setting.expert_parallel else ranks)
    table = build.lookup.kernel("moe", _expert_table(execution.kernel, build))
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


def _expert_table(kernel: Kernel, build: Builder) -> str:
    """Return the key of the fitted expert constants for a kernel and a backend (the user's choice or the engine's
    default).

    The fitted constants describe FlashInfer's kernels on datacentre Blackwell, and Triton's, CUTLASS's or
    TensorRT-LLM's on other GPUs, as engines choose them. A backend without constants uses the fitted ones, with a
    note.
    """
    untabled, setting = build.kernel_without_table(kernel), build.setting
    if untabled is not None:
        return untabled.experts
    engine, architecture, backend = setting.engine, setting.profile.architecture, setting.moe_backend
    if engine is not None and kernel == "fp8_block" and engine.early_block_experts > 1:
        build.assume(EARLY_KERNELS.format(engine.label), engine.early_block_experts)
    if backend == "auto":
        latent = any(isinstance(group.mixer, LatentAttention) for group in build.model.layer_groups)
        before_others = latent and kernel != "bf16"  # models like DeepSeek's get new kernels first
        return kernel if engine is None or before_others else engine.expert_kernel(kernel, architecture)
    blackwell = architecture in ("blackwell", "blackwell-ultra")
    if blackwell and (backend, kernel) in UNTUNED_EXPERTS:
        return UNTUNED_EXPERTS[backend, kernel]
    if backend != (TABLES_ON_BLACKWELL if blackwell else TABLES_ELSEWHERE):
        build.notes.append(
            f"{kernel} experts with {backend} on {setting.profile.name} were not measured: the fitted kernels are used"
        )
    return kernel


def add_matrix_walk(constants: MoeCoefficients, rows: float) -> MoeCoefficients:
    """Return the constants with `per_k_s` x `rows`, the time of a loop over matrix rows, moved to the fixed time."""
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
    the prefix of the weights' names, and their kind."""
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
