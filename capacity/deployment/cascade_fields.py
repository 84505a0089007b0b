"""A cascade: what is asked before the model of the question, and how much goes on to it, as a user writes it."""

from typing import Literal

from capacity.base.spec import Spec
from capacity.deployment.field_flags import Need, flag

SMALL = Need("small")
CACHE = Need("cache_hit_rate")
PRICED = (Need("api"), Need("api_input_price"))
SMALL_PRICED = (Need("small_api"), Need("small_api_input_price"))

# $ per 1M tokens of OpenAI's text-embedding-3-small: developers.openai.com/api/docs/models, read 2026-11; datasheet.
EMBEDDING_USD_PER_MILLION = 0.02
# an embedding over a network and a look into an index in memory: assumed, 2026-11.
LOOKUP_S = 0.05
# of what an engine serves at most, so that a queue stays short: assumed, 2026-11.
UTILIZATION = 0.7


class Cascade(Spec):
    """What is asked first: a semantic cache, a small model, or both; each on GPUs of one's own or of an API."""

    small: str | None = flag(
        None, "Model that is asked first; the others go on to the model of the question."
    )
    escalation_rate: float | None = flag(
        None,
        "Share of what the small model gets that goes on to the large one; yours to measure, as quality hangs on it.",
        ge=0,
        le=1,
        needs=SMALL,
    )
    escalate_by: Literal["answer", "prompt"] = flag(
        "answer",
        "What decides: the small model's whole answer, so that some requests are answered twice, or the prompt alone "
        "(a router).",
        needs=SMALL,
    )
    judge_s: float = flag(0.0, "Seconds that the decision takes.", ge=0, le=3600, needs=SMALL)
    judge_usd: float = flag(0.0, "$ of a decision.", ge=0, le=1000, needs=SMALL)
    small_gpu: str | None = flag(None, "GPU of the small model; default: that of the large one.", needs=SMALL)
    small_tensor_parallel_size: int | None = flag(
        None, "GPUs that share its layers; default: the fewest that hold it.", ge=1, le=1024, needs=SMALL
    )
    small_quantization: str | None = flag(
        None, "Weight format of the small model; default: its checkpoint's.", needs=SMALL
    )
    small_output_len: int | None = flag(
        None, "Output tokens of the small model; default: --output-len.", ge=1, le=1 << 24, needs=SMALL
    )
    api: str | None = flag(
        None, "The large model is not on GPUs of one's own: its provider in the dated API price list."
    )
    api_input_price: float | None = flag(None, "The same: $ per 1M input tokens.", ge=0)
    api_output_price: float | None = flag(None, "The same: $ per 1M output tokens.", ge=0)
    api_ttft_s: float | None = flag(
        None, "Seconds to that API's first token, as you measured them.", ge=0, le=3600, needs=PRICED
    )
    api_tpot_s: float | None = flag(
        None, "Seconds to each further token of it.", ge=0, le=3600, needs=Need("api_ttft_s")
    )
    small_api: str | None = flag(
        None, "The small model's provider in the dated API price list, in place of GPUs.", needs=SMALL
    )
    small_api_input_price: float | None = flag(None, "The same: $ per 1M input tokens.", ge=0, needs=SMALL)
    small_api_output_price: float | None = flag(None, "The same: $ per 1M output tokens.", ge=0, needs=SMALL)
    small_api_ttft_s: float | None = flag(
        None, "Seconds to that API's first token, as you measured them.", ge=0, le=3600, needs=SMALL_PRICED
    )
    small_api_tpot_s: float | None = flag(
        None, "Seconds to each further token of it.", ge=0, le=3600, needs=Need("small_api_ttft_s")
    )
    api_price_file: str | None = flag(
        None,
        "API price list of your own (CSV in the form of capacity/planning/bills/hosted_prices.csv), "
        "in place of the bundled one.",
        needs=(Need("api"), Need("small_api")),
    )
    cache_hit_rate: float | None = flag(
        None, "Share of requests that a semantic cache answers; yours to measure.", ge=0, le=1
    )
    cache_lookup_s: float = flag(
        LOOKUP_S,
        "Seconds to embed a prompt and look it up; with --embedding-model, to look it up.",
        ge=0,
        le=3600,
        needs=CACHE,
    )
    embedding_model: str | None = flag(
        None, "Model that embeds prompts on GPUs of one's own, in place of --embedding-price.", needs=CACHE
    )
    embedding_gpu: str | None = flag(
        None, "Its GPU; default: that of the large or the small model.", needs=Need("embedding_model")
    )
    embedding_price: float = flag(
        EMBEDDING_USD_PER_MILLION,
        "$ per 1M tokens embedded; default: OpenAI's text-embedding-3-small.",
        ge=0,
        le=1e6,
        needs=CACHE,
    )
    cache_store_usd_per_month: float = flag(
        0.0, "$ a month of the store of vectors and answers.", ge=0, le=1e9, needs=CACHE
    )
    target_utilization: float = flag(
        UTILIZATION, "Part of its full load that an engine is given, for the number of engines.", gt=0, lt=1
    )
