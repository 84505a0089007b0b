"""Batching, parallelism, speculation and formats."""

from __future__ import annotations

from functools import partial

from capacity.techniques.glossary.basics import acceptance
from capacity.techniques.glossary.term import GIB, Situation, milliseconds, term


@term(
    "continuous batching",
    "A request joins at any step, and leaves when it ends, so that no seat waits for the longest.",
    also="in flight batching, iteration level scheduling, dynamic splitfuse",
)
def continuous_batching(s: Situation) -> str:
    from capacity.techniques.batch_waste import exponential_slot_gain

    batch = s.requests_in_flight
    return (
        f"{exponential_slot_gain(batch):.2f} times fewer steps than static batches of {batch:,} if output lengths are "
        "exponential, as many if they are equal; `capacity batching` simulates your lengths"
    )


@term(
    "static batching",
    "A batch runs until its longest member ends; shorter ones waste their slots, shorter prompts are padded.",
    also="padding, dynamic batching, batching window, wasted slots",
)
def static_batching(s: Situation) -> str:
    from capacity.techniques.batch_waste import exponential_slot_gain

    batch = s.requests_in_flight
    bound = exponential_slot_gain(batch)
    return f"{batch:,} requests with exponential outputs waste {1 - 1 / bound:.0%} of their slots; equal ones none"


@term(
    "pipeline parallelism",
    "Layers in stages on GPUs in a row; stages idle while a batch fills and drains them.",
    also="pp, bubble, pipeline bubble",
)
def pipeline(s: Situation) -> str:
    from capacity.techniques.parallelism import pipeline_bubble_fraction

    stages = max(s.pool.pool.pipeline_parallel_size, 2)
    chunks = -(-s.estimate.input_len // s.pool.max_num_batched_tokens)
    return (
        f"{s.pool.pool.pipeline_parallel_size} stages; a prompt of {chunks:,} chunks alone leaves {stages} of them "
        f"{pipeline_bubble_fraction(stages, chunks):.0%} idle"
    )


@term(
    "expert parallelism",
    "Whole experts on each GPU; tokens travel to theirs and back, and the busiest GPU decides.",
    also="ep, all to all, expert imbalance",
)
def expert_parallel(s: Situation) -> str:
    from capacity.step.layers.feed_forward import routing_evenness
    from capacity.techniques.parallelism import expert_imbalance, experts_touched, routed_experts

    part = routed_experts(s.pool.model)
    if part is None:
        return f"{s.pool.model.name} has 0 experts to distribute"
    batch, ranks = s.requests_in_flight, max(s.pool.pool.tensor_parallel_size, 2)
    chosen = (part.num_experts, part.experts_per_token, batch)
    read = experts_touched(*chosen, routing_evenness(part))
    uneven = expert_imbalance(*chosen, ranks, routing_evenness(part))
    return (
        f"a step of {batch:,} tokens reads {read:,.0f} of {part.num_experts} experts; on {ranks} GPUs the busiest has "
        f"{uneven:.2f} times the mean"
    )


@term(
    "data parallelism",
    "Attention repeated on every rank with its own requests; a mixture's experts lie over all of them.",
    also="dp, dp attention",
)
def data_parallel(s: Situation) -> str:
    pool, heads = s.pool.pool, s.pool.model.num_kv_heads
    return (
        f"a degree of {pool.data_parallel_size}; {s.pool.model.name} has {heads} KV heads, so tensor parallelism "
        f"beyond {max(heads, 1)} GPUs repeats the cache, and ranks of their own do not"
    )


@term(
    "context parallelism",
    "One sequence over several GPUs; keys and values go round a ring, behind each part's own attention.",
    also="cp, sequence parallelism, ring attention",
)
def context_parallel(s: Situation) -> str:
    from capacity.techniques.long_context import context_parallel_prefill

    tokens = s.estimate.input_len
    ranks = [count for count in (1, 2, 4, 8) if count <= tokens]
    prefills = context_parallel_prefill(s.pool, tokens, ranks)
    shown = ", ".join(f"{over.ranks}: {milliseconds(over.seconds)}" for over in prefills)
    return f"your prompt of {tokens:,} tokens by ranks: {shown}"


@term(
    "all-reduce",
    "The sum over GPUs of what each computed of a layer, twice a layer under tensor parallelism.",
    also="allreduce, collective, nccl",
)
def all_reduce(s: Situation) -> str:
    from capacity.techniques.parallelism import all_reduce_bytes_per_token

    model, ranks = s.pool.model, s.pool.pool.tensor_parallel_size
    shown = max(ranks, 2)
    sent = all_reduce_bytes_per_token(model.hidden_size, model.num_layers, shown)
    return f"{ranks} GPUs here; on {shown} each sends {sent / 1e6:,.2f} MB a token"


term(
    "speculative decoding",
    "Several tokens drafted cheaply and verified in one step of the model: the same text, in fewer steps.",
    also="speculation, draft, draft tokens, verification",
)(acceptance)


@term(
    "draft tree",
    "Several candidates for each drafted place, verified together; the target takes one path of them.",
    also="token tree, tree attention, tree verification",
)
def draft_tree(s: Situation) -> str:
    from capacity.pool.drafting import Speculation, find_speculator

    way, requests = find_speculator("eagle2-tree"), s.requests_in_flight
    speculation = Speculation(s.pool, way)
    chain = speculation.round(requests, s.estimate.input_len, way.draft_tokens, way.draft_tokens)
    tree = speculation.round(requests, s.estimate.input_len)
    return (
        f"EAGLE-2's {tree.verified_tokens} drafts make {tree.tokens_per_round:.2f} tokens a round, a chain of "
        f"{chain.draft_tokens} {chain.tokens_per_round:.2f}; at your {requests} requests {tree.speedup:.2f} and "
        f"{chain.speedup:.2f} times faster"
    )


@term(
    "draft model",
    "A small model with the same vocabulary that drafts for a large one.",
    also="self draft, assistant model",
)
def draft_model(s: Situation) -> str:
    from capacity.pool.drafting import find_speculator

    way = find_speculator("draft-model")
    return (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens a round published ({way.acceptance_model}); a draft must "
        f"share the {s.pool.model.vocab_size:,} tokens of {s.pool.model.name}"
    )


def drafting(s: Situation, method: str) -> str:
    """A preset's published length, and what it does here."""
    from capacity.base.errors import CapacityError
    from capacity.pool.drafting import Speculation, find_speculator

    way = find_speculator(method)
    published = (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens a round published ({way.acceptance_model})"
    )
    try:
        drafted = Speculation(s.pool, way).round(s.requests_in_flight, s.estimate.input_len)
    except CapacityError as error:
        return f"{published}; not here: {error}"
    return f"{published}: {drafted.speedup:.2f} times faster at your {s.requests_in_flight} requests"


term(
    "EAGLE",
    "One layer that drafts from the model's hidden states, a chain or a tree; EAGLE-3 takes several layers' states.",
    also="eagle2, eagle3",
)(partial(drafting, method="eagle3"))
term(
    "MTP",
    "A layer trained with the model that predicts the tokens after the next: DeepSeek's own draft.",
    also="multi token prediction, nextn",
)(partial(drafting, method="mtp"))
term("Medusa", "Extra heads that guess the next tokens at once from the last hidden state.")(
    partial(drafting, method="medusa")
)
term(
    "n-gram",
    "Drafts copied from where the prompt says the same words: free, and good where answers repeat it.",
    also="prompt lookup, ngram",
)(partial(drafting, method="ngram"))
term(
    "lookahead",
    "No drafter: Jacobi steps guess a window of places at once, and n-grams that came up are verified beside them.",
    also="lookahead decoding, jacobi decoding, n gram pool",
)(partial(drafting, method="lookahead"))
term(
    "layer skip",
    "The model's own first layers draft (LayerSkip, Draft & Verify); the draft costs their share of a step.",
    also="layerskip, self speculative decoding, draft and verify",
)(partial(drafting, method="layer-skip"))


@term(
    "early exit",
    "A token leaves the model once a layer is sure of it (CALM): not lossless, and a batch waits for its deepest row.",
    also="calm, adaptive computation",
)
def early_exit(s: Situation) -> str:
    from capacity.pool.drafting.lossy import early_exit_share

    alone, together = (early_exit_share(0.5, 0.8, batch) for batch in (1, s.requests_in_flight))
    return (
        f"were half of your {s.pool.model.num_layers} layers enough for 80% of the tokens, {alone:.0%} of them would "
        f"run for one request and {together:.1%} for your {s.requests_in_flight}"
    )


@term(
    "typical acceptance",
    "Drafts taken where the target finds them likely enough: more pass than by rejection sampling; not lossless.",
    also="threshold acceptance, medusa acceptance",
)
def typical_acceptance(s: Situation) -> str:
    from capacity.pool.drafting.lossy import threshold_acceptance

    found = threshold_acceptance((0.6, 0.3, 0.1), (0.3, 0.6, 0.1), 0.2)
    return (
        f"{s.pool.pool.speculator or 'no drafts'} here, which are verified; of a target 0.6, 0.3, 0.1 and a draft 0.3, "
        f"0.6, 0.1 a threshold of 0.2 accepts {found.acceptance_rate:.0%} in place of {found.lossless_rate:.0%}, and "
        f"{found.distance:.0%} of the tokens are other ones"
    )


def weight_format(s: Situation, method: str) -> str:
    """Bits, size and roof of one way to quantize, and its published quality."""
    from capacity.model.quantization import weight_bytes
    from capacity.techniques.quantization_methods import find_method

    way = find_method(method)
    scheme = way.scheme(s.pool)
    stored = scheme.format_of("experts" if s.pool.model.is_moe else "dense_ffn")
    execution = stored.execution(s.pool.profile.dense_flops_per_s)
    quality = f"; {way.quality[0].text}" if way.quality else ""
    return (
        f"{stored.bits_per_weight:.2f} bits: {weight_bytes(s.pool.model, scheme) / GIB:,.1f} GiB of weights, "
        f"multiplied in {execution.compute_dtype} on {s.pool.profile.name}{quality}"
    )


term(
    "W8A8",
    "Weights and activations in 8-bit integers: half the bytes and the integer roof; SmoothQuant makes it accurate.",
    also="smoothquant, int8",
)(partial(weight_format, method="smoothquant"))
term(
    "FP8",
    "8-bit floats (E4M3), scaled by tensor, row or block: half the bytes, twice the FLOP/s where the GPU has them.",
    also="e4m3, fp8 block",
)(partial(weight_format, method="fp8-tensor"))
term("AWQ", "4-bit weights, scaled by what activations need; multiplied in 16 bit.", also="w4a16, int4")(
    partial(weight_format, method="awq-int4")
)
term(
    "GPTQ",
    "4-bit weights, rounded so that each layer's error is made up for by the rest; multiplied in 16 bit.",
    also="rtn",
)(partial(weight_format, method="gptq-int4"))
term(
    "NF4",
    "bitsandbytes' 4 bits spaced as a normal distribution, its scales quantized again.",
    also="bitsandbytes, qlora",
)(partial(weight_format, method="nf4-dq"))
term("MXFP4", "4-bit floats with a power-of-two scale for each 32 (gpt-oss).", also="microscaling")(
    partial(weight_format, method="mxfp4")
)
term("NVFP4", "4-bit floats with an 8-bit float scale for each 16 (Blackwell).", also="fp4")(
    partial(weight_format, method="nvfp4")
)
term(
    "GGUF",
    "llama.cpp's file of blocks with nested scales; Q4_K_M is 4 to 5 bits, mixed by matrix.",
    also="q4 k m, llama cpp quantization",
)(partial(weight_format, method="gguf-q4_k_m"))


@term(
    "perplexity",
    "How surprised a model is by a text, as an effective number of choices; quantization's usual yardstick.",
    also="quality, recovery",
)
def quality(s: Situation) -> str:
    from capacity.techniques.quantization_methods import find_method

    shown = "; ".join(
        f"{find_method(name).title}: {find_method(name).quality[0].text}"
        for name in ("awq-int4", "gptq-int4", "smoothquant")
    )
    return f"published for others than {s.pool.model.name}: {shown}"
