"""Memory that an engine's steps need beside weights and KV: the peak of activations, and CUDA graphs."""

from capacity.deployment.engines import EngineSpec
from capacity.model.feed_forward import DenseFeedForward, FeedForward, NoFeedForward
from capacity.model.layers import Attention
from capacity.model.quantization import ComputeDtype, QuantizationScheme
from capacity.model.spec import ModelSpec
from capacity.model.vision_towers import VisionEncoder

HALF_BYTES = 2  # of an activation, 16 bit
SHARE_OF_HALF: dict[ComputeDtype, float] = {"fp8": 0.5, "int8": 0.5, "fp4": 0.28}  # quantized activations
MOE_HIDDEN_COPIES = 2  # beside the experts' rows: 0.08 GiB of Qwen3-30B-A3B at 2048 tokens, vLLM 0.26
TOWER_STATE_COPIES = 5  # of a patch, at the widest moment of a vision tower
DEEP_GEMM_ROWS = 128  # of an expert, in its kernel's tile
MOE_CHUNK_TOKENS = (
    16 * 1024
)  # tokens that vLLM's fused experts take at a time: VLLM_FUSED_MOE_CHUNK_SIZE, envs.py


def activation_bytes(
    model: ModelSpec,
    engine: EngineSpec,
    *,
    sampled_rows: int,
    tokens: int,
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
    expert_parallel: bool = False,
    scheme: QuantizationScheme | None = None,
) -> float:
    """Peak of vLLM's profile run: sampling `sampled_rows` rows, or the widest layer for all `tokens`, if larger.

    Sampling holds rows x vocabulary x 38.2 bytes (logits at 32 bit, sorted copies, probabilities; 14.75 since vLLM
    0.17) beside the hidden states of the batch; within 0.6 % of seven logs of vLLM 0.11 (at 1024 sequences). Where
    the engine keeps the rows of fused experts, they are there too. The
    widest layer holds its gate and up projections, their product and hidden states, all but the residual as narrow
    as `scheme` (None: the checkpoint's) quantizes activations; MoE layers one row for each token and expert
    chosen, the tokens of all data-parallel ranks together, up to `MOE_CHUNK_TOKENS` at a time.
    """
    hidden = model.hidden_size
    logits = sampled_rows * model.vocab_size * engine.sampler_bytes_per_logit
    kept = kept_expert_bytes(
        model,
        engine,
        scheme or model.checkpoint,
        tokens=min(tokens * data_parallel_size, max(tokens, MOE_CHUNK_TOKENS)),
        ranks=tensor_parallel_size * data_parallel_size,
        expert_parallel=expert_parallel,
    )
    sampling = logits + tokens * hidden * HALF_BYTES * engine.activation_hidden_copies + kept
    values = max(
        _layer_values(
            group.feed_forward,
            engine,
            hidden=hidden,
            tokens=tokens,
            expert_tokens=min(tokens * data_parallel_size, max(tokens, MOE_CHUNK_TOKENS)),
            share=SHARE_OF_HALF.get((scheme or model.checkpoint).dense_ffn.compute_dtype, 1.0),
            tp=tensor_parallel_size,
            expert_ranks=1 if expert_parallel else tensor_parallel_size * data_parallel_size,
        )
        for group in model.layer_groups
    )
    text = max(sampling, values * HALF_BYTES)
    if not model.towers or not engine.profiles_images:
        return text
    return max(
        with_images(text, tower, hidden, tokens=tokens, tensor_parallel_size=tensor_parallel_size)
        for tower in model.towers
    )


def kept_expert_bytes(
    model: ModelSpec,
    engine: EngineSpec,
    scheme: QuantizationScheme,
    *,
    tokens: int,
    ranks: int = 1,
    expert_parallel: bool = False,
) -> float:
    """Rows of the fused experts that stay after the profile run, of `tokens` tokens; nothing in most engines.

    Two buffers at 16 bit, a row for each token and expert chosen: one as wide as gate and up together or the hidden
    state, one as their product or the hidden state. DeepGEMM, which computes FP8 in blocks, rounds the rows of each
    expert up to 128. Source: vLLM TritonExperts and DeepGemmExperts, workspace_shapes; within 0.03 GiB of five models
    in logs of 0.19 (Qwen3-30B-A3B, Qwen1.5-MoE, DeepSeek-V2-Lite, Mixtral at TP2, Llama 4 Scout at TP4).
    """
    if scheme.experts.family not in engine.kept_expert_rows:
        return 0.0
    hidden, most = model.hidden_size, 0.0
    for group in model.layer_groups:
        experts = group.feed_forward
        if isinstance(experts, DenseFeedForward | NoFeedForward):
            continue
        width = experts.expert_intermediate_size / (1 if expert_parallel else ranks)
        rows = float(tokens * experts.experts_per_token)
        if scheme.experts.name == "fp8-block":
            held = experts.num_experts / (ranks if expert_parallel else 1)
            rows += held * (DEEP_GEMM_ROWS - 1)
        most = max(most, rows * (max(2 * width, hidden) + max(width, hidden)) * HALF_BYTES)
    return most


def eager_score_bytes(model: ModelSpec, *, tokens: int, context: int, tensor_parallel_size: int = 1) -> int:
    """Scores and probabilities of one layer, of all its heads: 2 values for each of `tokens` and each of `context`."""
    heads = max(
        (
            max(group.mixer.num_heads // tensor_parallel_size, 1)
            for group in model.layer_groups
            if isinstance(group.mixer, Attention)
        ),
        default=0,
    )
    return 2 * heads * tokens * context * (4 if model.dtype == "fp32" else HALF_BYTES)


def with_images(
    text_bytes: float, tower: VisionEncoder, hidden_size: int, *, tokens: int, tensor_parallel_size: int = 1
) -> float:
    """Peak of vLLM's profile run of a model that sees, `text_bytes` the language model's.

    As many images of the largest size as `tokens` hold, one at least, go through the tower: five copies of a patch's
    state and two of its hidden layer, which tensor parallelism divides; what comes out stays while the language model
    runs, and so do the pixels. Chosen on Qwen3.5-9B (vLLM 0.18, A100, 1.90 GiB) and Qwen3.6-27B (0.27.1, two A100, 1.36
    GiB), 1.88 and 1.39 here. Source: vLLM v1/worker/gpu_model_runner.py, profile_run; 2026-11.
    """
    images = max(tokens // tower.largest_image_tokens, 1)
    image_tokens = images * tower.largest_image_tokens
    patches = image_tokens * tower.patches_per_token
    patch = TOWER_STATE_COPIES * tower.hidden_size + 2 * tower.intermediate_size / tensor_parallel_size
    kept = image_tokens * hidden_size * HALF_BYTES
    pixels = patches * tower.patch_inputs * HALF_BYTES
    return kept + max(text_bytes + pixels, patches * patch * HALF_BYTES)


def _layer_values(
    feed_forward: FeedForward,
    engine: EngineSpec,
    *,
    hidden: int,
    tokens: int,
    expert_tokens: int,
    share: float,
    tp: int,
    expert_ranks: int,
) -> float:
    """16-bit values that the widest moment of a layer keeps for `tokens` tokens, and `expert_tokens` at the experts.

    Of a MoE layer those of vLLM's fused kernel: for each chosen expert the larger of gate+up and output, and the
    activated half. Source: vLLM fused_moe workspaces.
    """
    if isinstance(feed_forward, NoFeedForward):
        return tokens * engine.activation_layer_hidden_copies * hidden
    if isinstance(feed_forward, DenseFeedForward):
        states = 1 + (engine.activation_layer_hidden_copies - 1) * share
        products = 2 + (engine.activation_layer_ffn_copies - 2) * share
        return tokens * (states * hidden + products * feed_forward.intermediate_size / tp)
    width = feed_forward.expert_intermediate_size / expert_ranks
    rows = expert_tokens * feed_forward.experts_per_token
    return tokens * MOE_HIDDEN_COPIES * hidden + rows * (max(2 * width, hidden) + width)


def graph_bytes(
    engine: EngineSpec,
    architecture: str,
    max_num_seqs: int,
    *,
    model_type: str = "",
    num_layers: float | None = None,
    enforce_eager: bool = False,
    max_graph_rows: int | None = None,
) -> float:
    """CUDA graphs: a base and so much for each captured batch size; published figures scatter by a factor of 3.

    `num_layers` of one GPU, where the engine's figure is of so many; None: as many as there.
    """
    sizes = engine.graph_batch_sizes(max_num_seqs, architecture, model_type=model_type, most=max_graph_rows)
    limits = () if enforce_eager else sizes
    if not limits:
        return 0.0
    reference = engine.graph_reference_layers
    depth = 1.0 if reference is None or num_layers is None else num_layers / reference
    return engine.graph_base_bytes + len(limits) * engine.graph_bytes_per_size * depth
