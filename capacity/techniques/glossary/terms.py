"""The words: definitions with clock or unit, and which sentence gives the user's numbers."""

from __future__ import annotations

from functools import partial

from capacity.techniques.glossary import numbers, technique_numbers
from capacity.techniques.glossary.term import Term

TERMS: tuple[Term, ...] = (
    Term(
        name="TTFT",
        aliases=("time to first token",),
        definition="Time from the request's arrival to its first output token: queueing, prefill and one sampling.",
        numbers=numbers.ttft,
    ),
    Term(
        name="TPOT",
        aliases=("time per output token",),
        definition="(E2E - TTFT)/(output tokens - 1): the mean time between a request's tokens after the first.",
        numbers=numbers.tpot,
    ),
    Term(
        name="ITL",
        aliases=("inter token latency",),
        definition="Each single time between two tokens of a request as they arrive; TPOT is a request's mean of it.",
        numbers=numbers.tpot,
    ),
    Term(
        name="E2E latency",
        aliases=("e2e", "e2el", "end to end latency"),
        definition="Time from the request's arrival to its last token: TTFT + (output tokens - 1) x TPOT.",
        numbers=numbers.e2e,
    ),
    Term(
        name="throughput",
        aliases=("output throughput", "tokens per second"),
        definition="Output tokens of all requests over the time that they took; what a GPU-hour buys.",
        numbers=numbers.throughput,
    ),
    Term(
        name="goodput",
        definition="Requests per second that meet every limit of the SLO; throughput that nobody complains about.",
        numbers=numbers.throughput,
    ),
    Term(
        name="ridge",
        aliases=("ridge point", "roofline", "arithmetic intensity"),
        definition="Dense FLOP/s over HBM bytes/s: below it a kernel waits for memory, above it for compute.",
        numbers=numbers.ridge,
    ),
    Term(
        name="prefill",
        definition="Computing the prompt's KV, many tokens a step: mostly bound by FLOPs; ends with the first token.",
        numbers=numbers.ttft,
    ),
    Term(
        name="decode",
        definition="One token a request and step: all weights and every request's KV are read for it; bound by HBM.",
        numbers=numbers.tpot,
    ),
    Term(
        name="KV cache",
        aliases=("kv",),
        definition="Keys and values of all tokens so far, kept so that a step computes only the new one.",
        numbers=numbers.kv_cache,
    ),
    Term(
        name="paged attention",
        aliases=("pagedattention", "paging", "kv block", "block table"),
        definition="KV in blocks of so many tokens, taken as a request grows: at most one block is part empty.",
        numbers=numbers.paged,
    ),
    Term(
        name="concurrency",
        aliases=("batch size",),
        definition="Requests that run at a time: as many as there are seats and KV for.",
        numbers=numbers.concurrency,
    ),
    Term(
        name="chunked prefill",
        definition="A long prompt computed over several steps beside others' decodes, which so need not wait for it.",
        numbers=numbers.chunked,
    ),
    Term(
        name="acceptance",
        aliases=("acceptance rate", "accepted length"),
        definition="The share of drafts that the target would have chosen too; a round yields those and one more.",
        numbers=technique_numbers.acceptance,
    ),
    Term(
        name="MBU",
        aliases=("bandwidth utilisation", "memory bandwidth utilization"),
        definition="HBM bytes moved a second over the datasheet's bandwidth.",
        numbers=numbers.bandwidth_share,
    ),
    Term(
        name="MFU",
        aliases=("flops utilisation", "model flops utilization"),
        definition="FLOP/s made over the dense rate of the datasheet (the sparse one is twice that, and a trap).",
        numbers=numbers.flops_share,
    ),
    Term(
        name="tensor parallelism",
        aliases=("tp",),
        definition="Every matrix divided over GPUs, with two all-reduces a layer.",
        numbers=numbers.tensor,
    ),
    Term(
        name="GQA",
        aliases=("mha", "mqa", "mla", "attention kind"),
        definition="Query heads that share KV heads: MHA shares none, MQA all; MLA keeps one latent instead.",
        numbers=numbers.attention_kind,
    ),
    Term(
        name="MoE",
        aliases=("mixture of experts", "active parameters"),
        definition="Feed-forwards of many experts of which each token uses a few: memory of all, FLOPs of those.",
        numbers=numbers.experts,
    ),
    Term(
        name="quantization",
        aliases=("weight only",),
        definition=(
            "Fewer bits a weight: fewer bytes to read; faster products only in formats that the GPU "
            "multiplies."
        ),
        numbers=numbers.weights,
    ),
    Term(
        name="cost per token",
        aliases=("usd per million tokens", "price"),
        definition=(
            "GPU-hours times their price over tokens; input and output share it by the GPU time of "
            "each phase."
        ),
        numbers=numbers.cost,
    ),
    Term(
        name="SLO",
        aliases=(
            "service level objective",
            "sla",
        ),
        definition=(
            "A limit on a latency that was promised, of a percentile of the requests: TTFT p99 below "
            "500 ms, say."
        ),
        numbers=numbers.slo,
    ),
    Term(
        name="percentile",
        aliases=(
            "p99",
            "p95",
            "p50",
            "tail latency",
            "median",
        ),
        definition=(
            "The value that so many of a hundred requests do not exceed; p99 leaves one in a hundred "
            "beyond it."
        ),
        numbers=numbers.percentile,
    ),
    Term(
        name="Little's law",
        aliases=("littles law",),
        definition=(
            "Requests in the system = arrivals per second x seconds that each stays: true of any "
            "stable system."
        ),
        numbers=numbers.little,
    ),
    Term(
        name="queueing",
        aliases=(
            "queue",
            "saturation",
            "overload",
            "stability",
        ),
        definition="Waiting for a seat or for KV; without end where more arrive than the engine can serve.",
        numbers=numbers.queueing,
    ),
    Term(
        name="burstiness",
        aliases=(
            "arrival rate",
            "poisson",
            "request rate",
        ),
        definition="Shape of the gaps between arrivals: 1 is Poisson, less is burstier, infinite is a metronome.",
        numbers=numbers.burstiness,
    ),
    Term(
        name="max_num_seqs",
        aliases=(
            "seats",
            "max running requests",
        ),
        definition="Most requests in one step: the scheduler's seats.",
        numbers=numbers.max_num_seqs,
    ),
    Term(
        name="max_num_batched_tokens",
        aliases=(
            "token budget",
            "chunked prefill size",
        ),
        definition="Most tokens that a step computes, prompts' chunks and decodes together.",
        numbers=numbers.token_budget,
    ),
    Term(
        name="gpu_memory_utilization",
        aliases=(
            "mem fraction static",
            "memory budget",
            "activations",
        ),
        definition=(
            "Share of a GPU's memory that the engine may use; what weights and activations leave of it "
            "is KV cache."
        ),
        numbers=numbers.memory_share,
    ),
    Term(
        name="preemption",
        aliases=(
            "recompute",
            "swap",
            "kv pressure",
        ),
        definition=(
            "A running request gives its KV up because others need it, and is computed again later, or "
            "swapped out."
        ),
        numbers=numbers.preemption,
    ),
    Term(
        name="context window",
        aliases=(
            "max_model_len",
            "context length",
            "long context",
        ),
        definition="Most tokens of a request, prompt and output: the model's limit, or the engine's max_model_len.",
        numbers=numbers.context_window,
    ),
    Term(
        name="CUDA graph",
        aliases=(
            "cuda graphs",
            "eager",
            "enforce eager",
        ),
        definition=(
            "A recorded sequence of kernels, replayed at once: no launch gaps, but only for recorded "
            "batch sizes."
        ),
        numbers=numbers.graphs,
    ),
    Term(
        name="host time",
        aliases=(
            "launch overhead",
            "scheduling overhead",
            "host overhead",
        ),
        definition=(
            "What the CPU does for each step: scheduling, preparing inputs, sampling, detokenizing; it "
            "may overlap the GPU."
        ),
        numbers=numbers.host,
    ),
    Term(
        name="HBM",
        aliases=(
            "memory bandwidth",
            "hbm bandwidth",
            "vram",
        ),
        definition="The GPU's own memory; its bandwidth bounds decode, which reads all weights for each step.",
        numbers=numbers.hbm,
    ),
    Term(
        name="NVLink",
        aliases=(
            "interconnect",
            "pcie",
            "infiniband",
            "link",
        ),
        definition="The link among GPUs of a node; PCIe leads to the CPU, the network to other nodes.",
        numbers=numbers.links,
    ),
    Term(
        name="energy",
        aliases=(
            "joules per token",
            "power",
            "watts",
        ),
        definition="Power of GPU, host and cooling over the tokens made with it.",
        numbers=numbers.energy,
    ),
    Term(
        name="prefix caching",
        aliases=(
            "prompt caching",
            "radix attention",
            "automatic prefix caching",
            "cache hit",
        ),
        definition=(
            "KV of a prompt's beginning kept for the next prompt that begins alike: nothing to compute "
            "for it."
        ),
        numbers=technique_numbers.prefix_caching,
    ),
    Term(
        name="LRU",
        aliases=(
            "eviction",
            "reuse distance",
            "stack distance",
            "hit rate curve",
        ),
        definition=(
            "Eviction of what was used least recently; a block survives as long as fewer others were "
            "used than the cache holds."
        ),
        numbers=technique_numbers.eviction,
    ),
    Term(
        name="KV offloading",
        aliases=(
            "offload",
            "cpu offload",
            "lmcache",
        ),
        definition="KV kept in CPU memory or on disk, and fetched over the link in place of computing it again.",
        numbers=technique_numbers.offloading,
    ),
    Term(
        name="disaggregation",
        aliases=(
            "disaggregated",
            "disaggregated serving",
            "pd disaggregation",
            "prefill decode disaggregation",
        ),
        definition="Prefill on some engines, decode on others, KV sent between them: neither delays the other.",
        numbers=technique_numbers.disaggregation,
    ),
    Term(
        name="KV quantization",
        aliases=(
            "kv cache dtype",
            "fp8 kv cache",
        ),
        definition="The KV cache in fewer bits: more requests and longer contexts, and less to read for each.",
        numbers=technique_numbers.kv_format,
    ),
    Term(
        name="sliding window",
        aliases=(
            "window attention",
            "attention sinks",
            "streamingllm",
            "chunked attention",
        ),
        definition=(
            "Attention to the last so many tokens only; StreamingLLM keeps the first few (sinks) too, "
            "chunks start afresh."
        ),
        numbers=technique_numbers.windows,
    ),
    Term(
        name="crossover",
        aliases=(
            "attention crossover",
            "attention cost",
        ),
        definition="The length at which attention costs as much as all the weights' matrices.",
        numbers=technique_numbers.crossover,
    ),
    Term(
        name="FlashAttention",
        aliases=(
            "flash attention",
            "tiled attention",
        ),
        definition="Attention in tiles that stay on chip: the square of scores is never written to HBM.",
        numbers=technique_numbers.flash_attention,
    ),
    Term(
        name="linear attention",
        aliases=(
            "mamba",
            "state space model",
            "recurrent state",
        ),
        definition="A state of fixed size in place of a cache that grows: Mamba, DeltaNet and their like.",
        numbers=technique_numbers.linear_attention,
    ),
    Term(
        name="continuous batching",
        aliases=(
            "in flight batching",
            "iteration level scheduling",
            "dynamic splitfuse",
        ),
        definition="A request joins at any step, and leaves when it ends, so that no seat waits for the longest.",
        numbers=technique_numbers.continuous_batching,
    ),
    Term(
        name="static batching",
        aliases=(
            "padding",
            "dynamic batching",
            "batching window",
            "wasted slots",
        ),
        definition=(
            "A batch runs until its longest member ends; shorter ones waste their slots, shorter "
            "prompts are padded."
        ),
        numbers=technique_numbers.static_batching,
    ),
    Term(
        name="pipeline parallelism",
        aliases=(
            "pp",
            "bubble",
            "pipeline bubble",
        ),
        definition="Layers in stages on GPUs in a row; stages idle while a batch fills and drains them.",
        numbers=technique_numbers.pipeline,
    ),
    Term(
        name="expert parallelism",
        aliases=(
            "ep",
            "all to all",
            "expert imbalance",
        ),
        definition="Whole experts on each GPU; tokens travel to theirs and back, and the busiest GPU decides.",
        numbers=technique_numbers.expert_parallel,
    ),
    Term(
        name="data parallelism",
        aliases=(
            "dp",
            "dp attention",
        ),
        definition=(
            "Attention repeated on every rank with its own requests; a mixture's experts lie over all "
            "of them."
        ),
        numbers=technique_numbers.data_parallel,
    ),
    Term(
        name="context parallelism",
        aliases=(
            "cp",
            "sequence parallelism",
            "ring attention",
        ),
        definition=(
            "One sequence over several GPUs; keys and values go round a ring, behind each part's own "
            "attention."
        ),
        numbers=technique_numbers.context_parallel,
    ),
    Term(
        name="all-reduce",
        aliases=(
            "allreduce",
            "collective",
            "nccl",
        ),
        definition="The sum over GPUs of what each computed of a layer, twice a layer under tensor parallelism.",
        numbers=technique_numbers.all_reduce,
    ),
    Term(
        name="speculative decoding",
        aliases=(
            "speculation",
            "draft",
            "draft tokens",
            "verification",
        ),
        definition=(
            "Several tokens drafted cheaply and verified in one step of the model: the same text, in "
            "fewer steps."
        ),
        numbers=technique_numbers.acceptance,
    ),
    Term(
        name="draft tree",
        aliases=(
            "token tree",
            "tree attention",
            "tree verification",
        ),
        definition="Several candidates for each drafted place, verified together; the target takes one path of them.",
        numbers=technique_numbers.draft_tree,
    ),
    Term(
        name="draft model",
        aliases=(
            "self draft",
            "assistant model",
        ),
        definition="A small model with the same vocabulary that drafts for a large one.",
        numbers=technique_numbers.draft_model,
    ),
    Term(
        name="EAGLE",
        aliases=(
            "eagle2",
            "eagle3",
        ),
        definition=(
            "One layer that drafts from the model's hidden states, in a tree; EAGLE-3 takes several "
            "layers' states."
        ),
        numbers=partial(technique_numbers.drafting, method="eagle3"),
    ),
    Term(
        name="MTP",
        aliases=(
            "multi token prediction",
            "nextn",
        ),
        definition="A layer trained with the model that predicts the tokens after the next: DeepSeek's own draft.",
        numbers=partial(technique_numbers.drafting, method="mtp"),
    ),
    Term(
        name="Medusa",
        definition="Extra heads that guess the next tokens at once from the last hidden state.",
        numbers=partial(technique_numbers.drafting, method="medusa"),
    ),
    Term(
        name="n-gram",
        aliases=(
            "prompt lookup",
            "ngram",
            "lookahead",
        ),
        definition="Drafts copied from where the prompt says the same words: free, and good where answers repeat it.",
        numbers=partial(technique_numbers.drafting, method="ngram"),
    ),
    Term(
        name="W8A8",
        aliases=(
            "smoothquant",
            "int8",
        ),
        definition=(
            "Weights and activations in 8-bit integers: half the bytes and the integer roof; "
            "SmoothQuant makes it accurate."
        ),
        numbers=partial(technique_numbers.weight_format, method="smoothquant"),
    ),
    Term(
        name="FP8",
        aliases=(
            "e4m3",
            "fp8 block",
        ),
        definition=(
            "8-bit floats (E4M3), scaled by tensor, row or block: half the bytes, twice the FLOP/s "
            "where the GPU has them."
        ),
        numbers=partial(technique_numbers.weight_format, method="fp8-tensor"),
    ),
    Term(
        name="AWQ",
        aliases=(
            "w4a16",
            "int4",
        ),
        definition="4-bit weights, scaled by what activations need; multiplied in 16 bit.",
        numbers=partial(technique_numbers.weight_format, method="awq-int4"),
    ),
    Term(
        name="GPTQ",
        aliases=("rtn",),
        definition=(
            "4-bit weights, rounded so that each layer's error is made up for by the rest; multiplied "
            "in 16 bit."
        ),
        numbers=partial(technique_numbers.weight_format, method="gptq-int4"),
    ),
    Term(
        name="NF4",
        aliases=(
            "bitsandbytes",
            "qlora",
        ),
        definition="bitsandbytes' 4 bits spaced as a normal distribution, its scales quantized again.",
        numbers=partial(technique_numbers.weight_format, method="nf4-dq"),
    ),
    Term(
        name="MXFP4",
        aliases=("microscaling",),
        definition="4-bit floats with a power-of-two scale for each 32 (gpt-oss).",
        numbers=partial(technique_numbers.weight_format, method="mxfp4"),
    ),
    Term(
        name="NVFP4",
        aliases=("fp4",),
        definition="4-bit floats with an 8-bit float scale for each 16 (Blackwell).",
        numbers=partial(technique_numbers.weight_format, method="nvfp4"),
    ),
    Term(
        name="GGUF",
        aliases=(
            "q4 k m",
            "llama cpp quantization",
        ),
        definition="llama.cpp's file of blocks with nested scales; Q4_K_M is 4 to 5 bits, mixed by matrix.",
        numbers=partial(technique_numbers.weight_format, method="gguf-q4_k_m"),
    ),
    Term(
        name="perplexity",
        aliases=(
            "quality",
            "recovery",
        ),
        definition=(
            "How surprised a model is by a text, as an effective number of choices; quantization's "
            "usual yardstick."
        ),
        numbers=technique_numbers.quality,
    ),
)
