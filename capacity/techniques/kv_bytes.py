"""KV bytes by kind of attention, and with windows, sinks and chunks, in closed form."""

from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.model import ModelSpec
from capacity.model.quantization import find_kv_cache_format
from capacity.step import windowed_pairs

LATENT_VALUES = 512 + 64  # of DeepSeek-V2 and V3: kv_lora_rank and rotary key; arXiv 2405.04434
LONGEST_CONTEXT = 1 << 40


def request_kv_bytes(model: ModelSpec, tokens: int, kv_cache_dtype: str = "auto") -> float:
    """Return the KV bytes of a request, not counting copies on tensor-parallel ranks. Windowed layers store at most
    their window; linear layers store a state of fixed size. Raises InvalidInput."""
    if not 1 <= tokens <= LONGEST_CONTEXT:
        raise InvalidInput(f"a context of {tokens} tokens: must be from 1 to {LONGEST_CONTEXT}")
    return sum(
        group.state_bytes_per_sequence
        if group.kind == "linear"
        else group.bytes_per_token * min(tokens, group.window_tokens or tokens)
        for group in model.kv_cache_groups(kv_cache_dtype)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedAttention:
    """KV bytes of a request if every layer limits its attention in one way.

    `pair_fraction`: query-key pairs that the prefill of the request computes, as a fraction of those of full causal
    attention. `seen_tokens`: how many tokens the last token of the request can attend to.
    """

    name: str
    kv_bytes: float
    pair_fraction: float
    seen_tokens: int


def limited_attention(
    model: ModelSpec, tokens: int, *, window_tokens: int, sink_tokens: int = 4, kv_cache_dtype: str = "auto"
) -> tuple[LimitedAttention, ...]:
    """Return full, sliding-window, sink-and-window (StreamingLLM) and chunked attention for a request of `tokens`.

    A window keeps the last `window_tokens`. StreamingLLM also keeps the first `sink_tokens` (4), without which quality
    collapses (Xiao et al., arXiv 2309.17453). Chunks of `window_tokens` attend only within themselves (Llama 4), and
    at most one whole chunk is stored. Other tokens are dropped, not compressed. In layers that already have a window,
    the smaller of the two windows applies. Raises InvalidInput.
    """
    if sink_tokens < 0 or window_tokens < 1 or tokens < 1:
        raise InvalidInput(
            f"sinks {sink_tokens}, window {window_tokens}, tokens {tokens}: must be at least 0, 1 and 1"
        )
    streaming = sink_tokens + window_tokens
    whole, rest = divmod(tokens, window_tokens)
    causal = windowed_pairs(tokens, 0, None)
    chunked = whole * windowed_pairs(window_tokens, 0, None) + windowed_pairs(rest, 0, None)
    ways = (
        ("full", tokens, causal, tokens),
        ("window", window_tokens, windowed_pairs(tokens, 0, window_tokens), window_tokens),
        ("sinks and window", streaming, windowed_pairs(tokens, 0, streaming), streaming),
        ("chunks", window_tokens, chunked, rest or window_tokens),
    )
    return tuple(
        LimitedAttention(
            name=name,
            kv_bytes=request_kv_bytes(model, min(tokens, held), kv_cache_dtype),
            pair_fraction=pairs / causal,
            seen_tokens=min(tokens, seen),
        )
        for name, held, pairs, seen in ways
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindComparison:
    """KV bytes per token if all softmax layers of the model had another attention kind; linear layers stay the same."""

    model: str
    actual: str
    actual_bytes_per_token: float
    mha_bytes_per_token: float  # one KV head for each query head
    mqa_bytes_per_token: float  # one for all
    mla_bytes_per_token: float  # DeepSeek's latent of 512 + 64 values, independent of the heads


def compare_attention_kinds(model: ModelSpec, kv_cache_dtype: str = "auto") -> KindComparison:
    """Return the KV bytes per token with the model's own attention, and with MHA, MQA and MLA. Layers that cache no
    tokens do not count, and windows are ignored."""
    kv = find_kv_cache_format(kv_cache_dtype, model_dtype=model.dtype)
    mha = mqa = mla = own = 0.0
    for group in model.softmax_groups:
        layers, mixer = group.num_layers, group.mixer
        kept = mixer.kv_cache_groups(group.layers, kv)
        if not kept:
            continue
        head = kv.vector_bytes(mixer.value_head_dim)
        own += sum(each.bytes_per_token for each in kept)
        mha += layers * 2 * mixer.num_heads * head
        mqa += layers * 2 * head
        mla += layers * kv.vector_bytes(LATENT_VALUES)
    return KindComparison(
        model=model.name,
        actual=model.attention_kind,
        actual_bytes_per_token=own,
        mha_bytes_per_token=mha,
        mqa_bytes_per_token=mqa,
        mla_bytes_per_token=mla,
    )
