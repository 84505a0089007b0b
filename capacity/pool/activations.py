"""Memory that an engine needs in addition to weights and KV cache: peak activations and CUDA graphs."""

from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward, NoFeedForward
from capacity.model.layers import Attention
from capacity.model.quantization import ComputeDtype
from capacity.model.vision_towers import VisionEncoder
from capacity.pool.settings import PoolSettings

HALF_BYTES = 2  # bytes of a 16-bit activation
SHARE_OF_HALF: dict[ComputeDtype, float] = {"fp8": 0.5, "int8": 0.5, "fp4": 0.28}  # quantized activations
MOE_HIDDEN_COPIES = 2  # in addition to expert rows: 0.08 GiB for Qwen3-30B-A3B at 2048 tokens, vLLM 0.26
TOWER_STATE_COPIES = 5  # states per patch at a vision tower's peak
DEEP_GEMM_ROWS = 128  # rows of an expert in a kernel tile
MOE_CHUNK_TOKENS = 16 * 1024  # tokens per call of vLLM's fused experts: VLLM_FUSED_MOE_CHUNK_SIZE, envs.py


def activation_bytes(settings: PoolSettings, *, samples: bool = True) -> int:
    """Return the activation peak of vLLM's profile run, in bytes.

    The peak is the larger of two parts: sampling for all sequences, and the widest layer for all tokens.

    Sampling needs rows x vocabulary x 38.2 bytes (32-bit logits, sorted copies, probabilities; 14.75 bytes since vLLM
    0.17) and the hidden states of the batch. This is within 0.6 % of seven logs of vLLM 0.11 (1024 sequences). A stage
    that does not sample (`samples=False`) needs none of this. Engines that keep the buffers of fused experts after the
    profile run need the bytes of these buffers in addition (`kept_expert_bytes`).

    The widest layer holds the outputs of its gate and up projections, their activated product and the hidden states.
    The outputs of gate and up and one copy of the hidden states have 16 bits; everything else has the number format of
    the weight format's activations. MoE layers hold one row per token and chosen expert, for the tokens of all
    data-parallel ranks together, up to `MOE_CHUNK_TOKENS` at a time. Eager attention adds the scores of one layer.
    """
    model, engine, tokens = settings.model, settings.engine, settings.max_num_batched_tokens
    rows = settings.max_num_seqs if samples else 0
    states = tokens * model.hidden_size * HALF_BYTES * engine.activation_hidden_copies
    sampling = rows * model.vocab_size * engine.sampler_bytes_per_logit + states + kept_expert_bytes(settings)
    values = max(_layer_values(group.feed_forward, settings) for group in model.layer_groups)
    peak = max(sampling, values * HALF_BYTES)
    if model.towers and engine.profiles_images:
        peak = max(image_activation_bytes(peak, tower, settings) for tower in model.towers)
    scores = eager_score_bytes(settings) if settings.pool.attn_implementation == "eager" else 0
    return round(peak) + scores


def _expert_tokens(settings: PoolSettings) -> int:
    """Return the number of tokens that a layer's experts process at once.

    These are the tokens of all data-parallel ranks, but at most `MOE_CHUNK_TOKENS`.
    """
    tokens = settings.max_num_batched_tokens
    return min(tokens * settings.lockstep_ranks, max(tokens, MOE_CHUNK_TOKENS))


def _expert_width(experts: MoEFeedForward, settings: PoolSettings) -> float:
    ranks = settings.pool.tensor_parallel_size * settings.lockstep_ranks
    return experts.expert_intermediate_size / (1 if settings.expert_parallel else ranks)


def kept_expert_bytes(settings: PoolSettings) -> float:
    """Return the bytes of fused-expert buffers that remain after the profile run; 0 for most engines.

    Two 16-bit buffers have one row per token and chosen expert. A row of the first buffer is as wide as gate and up
    together, a row of the second as wide as one of them; both are at least as wide as the hidden state.
    DeepGEMM, which computes FP8 in blocks, rounds the rows of each expert up to 128. Source: vLLM TritonExperts and
    DeepGemmExperts, workspace_shapes. Within 0.03 GiB of five models in logs of vLLM 0.19 (Qwen3-30B-A3B, Qwen1.5-MoE,
    DeepSeek-V2-Lite, Mixtral at TP2, Llama 4 Scout at TP4).
    """
    stored = settings.scheme.experts
    if stored.family not in settings.engine.kept_expert_rows:
        return 0.0
    hidden, most = settings.model.hidden_size, 0.0
    ranks = settings.pool.tensor_parallel_size * settings.lockstep_ranks
    for group in settings.model.layer_groups:
        experts = group.feed_forward
        if isinstance(experts, DenseFeedForward | NoFeedForward):
            continue
        width = _expert_width(experts, settings)
        rows = float(_expert_tokens(settings) * experts.experts_per_token)
        if stored.name == "fp8-block":
            held = experts.num_experts / (ranks if settings.expert_parallel else 1)
            rows += held * (DEEP_GEMM_ROWS - 1)
        most = max(most, rows * (max(2 * width, hidden) + max(width, hidden)) * HALF_BYTES)
    return most


def eager_score_bytes(settings: PoolSettings) -> int:
    """Return the bytes of one layer's attention scores and probabilities in the largest step."""
    model = settings.model
    mixers = [group.mixer for group in model.layer_groups if isinstance(group.mixer, Attention)]
    ranks = settings.pool.tensor_parallel_size
    heads = max((max(mixer.num_heads // ranks, 1) for mixer in mixers), default=0)
    values = 2 * heads * settings.max_num_batched_tokens * settings.max_model_len
    return values * (4 if model.dtype == "fp32" else HALF_BYTES)


def image_activation_bytes(text_bytes: float, tower: VisionEncoder, settings: PoolSettings) -> float:
    """Return the activation peak of vLLM's profile run of a vision model, in bytes.

    `text_bytes`: peak of the language model alone. The vision encoder processes as many images of the largest size as
    fit in the tokens of a step, and at least one, or a video as long as a request may be, if it has more tokens. It
    holds five copies of a patch's hidden state and two of its feed-forward layer, which tensor parallelism divides. Its
    output and the pixels remain in memory while the language model runs. Calibrated on Qwen3.5-9B (vLLM 0.18, A100,
    1.90 GiB; 1.88 here) and Qwen3.6-27B (vLLM 0.27.1, two A100, 1.36 GiB; 1.39 here). Source: vLLM
    v1/worker/gpu_model_runner.py, profile_run; 2026-11.
    """
    video = min(settings.max_model_len // tower.largest_image_tokens, tower.video_images)
    images = max(settings.max_num_batched_tokens // tower.largest_image_tokens, video, 1)
    image_tokens = images * tower.largest_image_tokens
    patches = image_tokens * tower.patches_per_token
    inner = 2 * tower.intermediate_size / settings.pool.tensor_parallel_size
    patch = TOWER_STATE_COPIES * tower.hidden_size + inner
    kept = image_tokens * settings.model.hidden_size * HALF_BYTES
    pixels = patches * tower.patch_inputs * HALF_BYTES
    return kept + max(text_bytes + pixels, patches * patch * HALF_BYTES)


def _layer_values(feed_forward: FeedForward, settings: PoolSettings) -> float:
    """Return the number of 16-bit values that a layer holds at its peak.

    A MoE layer holds the buffers of vLLM's fused kernel. For each token and chosen expert, the first is as wide as gate
    and up together, but at least as wide as the output, and the second as wide as one expert. Source: vLLM fused_moe
    workspaces.
    """
    engine, hidden, tokens = settings.engine, settings.model.hidden_size, settings.max_num_batched_tokens
    if isinstance(feed_forward, NoFeedForward):
        return tokens * engine.activation_layer_hidden_copies * hidden
    if isinstance(feed_forward, DenseFeedForward):
        share = SHARE_OF_HALF.get(settings.scheme.dense_ffn.compute_dtype, 1.0)
        states = 1 + (engine.activation_layer_hidden_copies - 1) * share
        products = 2 + (engine.activation_layer_ffn_copies - 2) * share
        width = feed_forward.intermediate_size / settings.pool.tensor_parallel_size
        return tokens * (states * hidden + products * width)
    expert_width = _expert_width(feed_forward, settings)
    rows = _expert_tokens(settings) * feed_forward.experts_per_token
    return tokens * MOE_HIDDEN_COPIES * hidden + rows * (max(2 * expert_width, hidden) + expert_width)


def graph_bytes(settings: PoolSettings) -> float:
    """Return the bytes of CUDA graphs: a base plus a constant per captured batch size.

    Published numbers differ by a factor of 3. If the constant was measured on a model with a known number of layers, it
    is scaled to the number of layers on one GPU.
    """
    pool, engine = settings.pool, settings.engine
    sizes = engine.graph_batch_sizes(
        settings.max_num_seqs,
        settings.profile.architecture,
        model_type=settings.model.model_type,
        most=pool.max_cudagraph_capture_size,
        padding=pool.cudagraph_padding,
    )
    if pool.enforce_eager or not sizes:
        return 0.0
    layers, reference = settings.model.num_layers / pool.pipeline_parallel_size, engine.graph_reference_layers
    depth = 1.0 if reference is None else layers / reference
    return engine.graph_base_bytes + len(sizes) * engine.graph_bytes_per_size * depth
