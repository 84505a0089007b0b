"""Examples with the user's numbers for the terms of batching, parallelism, speculation and formats."""

from capacity.base.errors import CapacityError
from capacity.model.quantization import weight_bytes
from capacity.pool.drafting import Speculation, find_speculator
from capacity.pool.drafting.lossy import early_exit_share, threshold_acceptance
from capacity.step.expert_load import distinct_experts
from capacity.step.layers.feed_forward import routing_gamma_shape
from capacity.techniques.batch_waste import exponential_slot_gain
from capacity.techniques.glossary.term import GIB, Situation, milliseconds
from capacity.techniques.long_context import context_parallel_prefill
from capacity.techniques.quantization_methods import find_method
from capacity.techniques.scaling import (
    all_reduce_bytes_per_token,
    expert_imbalance,
    pipeline_bubble_fraction,
    routed_experts,
)


def continuous_batching(s: Situation) -> str:
    batch = s.requests_in_flight
    return (
        f"{exponential_slot_gain(batch):.2f} times fewer steps than static batches of {batch:,} if output "
        "lengths are exponential, and the same number if they are equal; `capacity batching` simulates your lengths"
    )


def static_batching(s: Situation) -> str:
    batch = s.requests_in_flight
    bound = exponential_slot_gain(batch)
    return (
        f"{batch:,} requests with exponential outputs waste {1 - 1 / bound:.0%} of their slots; equal outputs waste "
        "none"
    )


def pipeline(s: Situation) -> str:
    stages = max(s.pool.pool.pipeline_parallel_size, 2)
    chunks = -(-s.estimate.input_len // s.pool.max_num_batched_tokens)
    return (
        f"{s.pool.pool.pipeline_parallel_size} stages; a prompt of {chunks:,} chunks alone leaves {stages} "
        f"stages {pipeline_bubble_fraction(stages, chunks):.0%} idle"
    )


def expert_parallel(s: Situation) -> str:
    part = routed_experts(s.pool.model)
    if part is None:
        return f"{s.pool.model.name} has 0 experts to distribute"
    batch, ranks = s.requests_in_flight, max(s.pool.pool.tensor_parallel_size, 2)
    chosen = (part.num_experts, part.experts_per_token, batch)
    read = distinct_experts(*chosen, routing_gamma_shape(part))
    uneven = expert_imbalance(*chosen, ranks, routing_gamma_shape(part))
    return (
        f"a step of {batch:,} tokens reads {read:,.0f} of {part.num_experts} experts; on {ranks} GPUs the "
        f"busiest one processes {uneven:.2f} times the mean"
    )


def data_parallel(s: Situation) -> str:
    pool, heads = s.pool.pool, s.pool.model.num_kv_heads
    return (
        f"a degree of {pool.data_parallel_size}; {s.pool.model.name} has {heads} KV heads, so tensor parallelism "
        f"over more than {max(heads, 1)} GPUs replicates the KV cache, and data parallelism does not"
    )


def context_parallel(s: Situation) -> str:
    tokens = s.estimate.input_len
    ranks = [count for count in (1, 2, 4, 8) if count <= tokens]
    prefills = context_parallel_prefill(s.pool, tokens, ranks)
    shown = ", ".join(f"{over.ranks}: {milliseconds(over.seconds)}" for over in prefills)
    return f"your prompt of {tokens:,} tokens by number of ranks: {shown}"


def all_reduce(s: Situation) -> str:
    model, ranks = s.pool.model, s.pool.pool.tensor_parallel_size
    shown = max(ranks, 2)
    sent = all_reduce_bytes_per_token(model.hidden_size, model.num_layers, shown)
    return f"{ranks} GPUs here; with {shown}, each sends {sent / 1e6:,.2f} MB per token"


def draft_tree(s: Situation) -> str:
    way, requests = find_speculator("eagle2-tree"), s.requests_in_flight
    speculation = Speculation(s.pool, way)
    chain = speculation.round_of(requests, s.estimate.input_len, way.draft_tokens, way.draft_tokens)
    tree = speculation.round_of(requests, s.estimate.input_len)
    return (
        f"EAGLE-2's {tree.verified_tokens} drafts give {tree.tokens_per_round:.2f} tokens per step, a chain of "
        f"{chain.draft_tokens} gives {chain.tokens_per_round:.2f}; at your {requests} requests they are "
        f"{tree.speedup:.2f} and {chain.speedup:.2f} times as fast"
    )


def draft_model(s: Situation) -> str:
    way = find_speculator("draft-model")
    return (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens per step published ({way.acceptance_model}); a "
        f"draft model must share the {s.pool.model.vocab_size:,} tokens of {s.pool.model.name}"
    )


def drafting_example(s: Situation, preset: str) -> str:
    """Return a sentence with a draft method's published acceptance length and its speedup on the user's pool."""
    way = find_speculator(preset)
    published = (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens per step published ({way.acceptance_model})"
    )
    try:
        drafted = Speculation(s.pool, way).round_of(s.requests_in_flight, s.estimate.input_len)
    except CapacityError as error:
        return f"{published}; not possible here: {error}"
    return f"{published}: {drafted.speedup:.2f} times as fast at your {s.requests_in_flight} requests"


def early_exit(s: Situation) -> str:
    alone, together = (early_exit_share(0.5, 0.8, batch) for batch in (1, s.requests_in_flight))
    return (
        f"if half of your {s.pool.model.num_layers} layers were enough for 80% of the tokens, {alone:.0%} of the "
        f"layers would run for one request and {together:.1%} for your {s.requests_in_flight}"
    )


def typical_acceptance(s: Situation) -> str:
    found = threshold_acceptance((0.6, 0.3, 0.1), (0.3, 0.6, 0.1), 0.2)
    return (
        f"{s.pool.pool.speculator or 'no drafts'} here, with lossless verification; for target probabilities "
        "0.6, 0.3, 0.1 and draft probabilities 0.3, 0.6, 0.1, a threshold of 0.2 accepts "
        f"{found.acceptance_rate:.0%} instead of {found.lossless_rate:.0%} and changes {found.distance:.0%} of "
        "the tokens"
    )


def weight_format(s: Situation, preset: str) -> str:
    """Return a sentence with a quantization method's bits, weight size, compute format and published quality."""
    way = find_method(preset)
    scheme = way.scheme(s.pool)
    stored = scheme.format_of("experts" if s.pool.model.is_moe else "dense_ffn")
    execution = stored.execution(s.pool.profile.dense_flops_per_s)
    quality = f"; {way.quality[0].text}" if way.quality else ""
    return (
        f"{stored.bits_per_weight:.2f} bits: {weight_bytes(s.pool.model, scheme) / GIB:,.1f} GiB of weights, "
        f"multiplied in {execution.compute_dtype} on {s.pool.profile.name}{quality}"
    )


def quality(s: Situation) -> str:
    shown = "; ".join(
        f"{find_method(name).title}: {find_method(name).quality[0].text}"
        for name in ("awq-int4", "gptq-int4", "smoothquant")
    )
    return f"published for models other than {s.pool.model.name}: {shown}"
