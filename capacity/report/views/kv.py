"""The view of `kv`: KV cache by model and context, attention types, eviction, and long contexts."""

from collections.abc import Iterator, Sequence
from functools import partial

from capacity.report.display import phrase
from capacity.report.layout import token_count_text
from capacity.report.views import units
from capacity.report.views.units import Unit, join_names
from capacity.report.views.view import Bars, Block, Column, Curves, Fact, Table, View, known_facts
from capacity.techniques.kv import KvAnswer, KvAnswerRow
from capacity.techniques.kv_eviction import EvictionMethod, EvictionRow
from capacity.techniques.long_context import LongContext

MODEL, GPU = Column("model", "model", units.TEXT), Column("GPU", "gpu", units.TEXT)
CONTEXT = Column("tokens", "context_tokens", units.TOKENS)
TOKENS_PER_S = Unit(after=" tokens/s")
NUM_TOKENS = units.NUM_TOKENS
RATIO_NOTE = (
    "Ratios have no interval because both sides use the same step model, so most of its error cancels. Bytes and "
    "tokens are exact counts."
)


def kv_view(answer: KvAnswer, context: int | None = None) -> View:
    """Return the view of `kv`; if `context` is given, it shows eviction only at this length in tokens."""
    return View("", _blocks(answer, answer.contexts if context is None else (context,)))


def kv_facts(answer: KvAnswer, context: int, batch: int) -> list[Fact]:
    """Return facts of the first model and GPU at a context length in tokens; a decode step has `batch` requests."""
    row, gpu = answer.rows[0], answer.gpus[0]
    half = answer.long_contexts[0].decode_crossover_tokens if answer.long_contexts else None
    cached = f", {row.kv_cache_dtype}" * (row.kv_cache_dtype != "auto")
    whole, *kept = eviction_rows(answer, context)
    facts = [
        Fact("KiB a token", row.bytes_per_token, units.KIB, f"{row.attention}{cached}"),
        Fact(
            f"A request of {token_count_text(context)}", row.request_bytes[context], units.MEMORY, "KV cache"
        ),
        Fact(
            "Fits on the GPU",
            row.gpu_context_tokens[gpu],
            NUM_TOKENS,
            "one request, within the model's limit",
        ),
        Fact("Attention is half from", half, NUM_TOKENS, f"half of a decode step with batch {batch}"),
        *known_facts([Fact("Step time", whole.step_s, units.LATENCY, f"{batch} such requests")]),
    ]
    if tried := [each for each in kept if each.tokens_per_s is not None]:
        best = max((whole, *tried), key=lambda each: each.tokens_per_s or 0.0)
        note = f"{best.method}, not lossless{phrase('; {:,.0f} with {}', whole.tokens_per_s, whole.title)}"
        facts.append(Fact("KV eviction", best.tokens_per_s, TOKENS_PER_S, note))
    return facts


def eviction_rows(answer: KvAnswer, context: int) -> list[EvictionRow]:
    """Return the rows of the full KV cache and of every eviction method, at one context length in tokens."""
    return [row for row in answer.evictions if row.context_tokens == context]


def _blocks(answer: KvAnswer, drawn: Sequence[int]) -> Iterator[Block]:
    rows = answer.rows
    yield _contexts_chart(answer)
    columns = [
        MODEL,
        Column("attention", "attention", units.TEXT),
        Column("KiB/token", "bytes_per_token", units.KIB),
        *(
            Column(f"{{memory}} at {token_count_text(n)}", f"request_bytes.{n}", units.GIB)
            for n in answer.contexts
        ),
        *(Column(f"tokens on {gpu}", partial(_tokens_that_fit, gpu), units.TEXT) for gpu in answer.gpus),
    ]
    yield Table("KV cache of one request", rows, columns)
    kinds = [
        MODEL,
        Column("actual", "kinds.actual_bytes_per_token", units.KIB),
        Column("MHA", "kinds.mha_bytes_per_token", units.KIB),
        Column("MQA", "kinds.mqa_bytes_per_token", units.KIB),
        Column("MLA (512 + 64)", "kinds.mla_bytes_per_token", units.KIB),
        Column("prefill attention dominates from", "prefill_crossover_tokens", units.COUNT),
    ]
    yield Table("KiB per token with other attention types", rows, kinds)
    if answer.limited:
        yield _limited_table(answer)
    if answer.evictions:
        yield from _eviction_blocks(answer, drawn)
    if answer.long_contexts:
        yield from _long_context_blocks(answer.long_contexts)


def _contexts_chart(answer: KvAnswer) -> Curves:
    """Return the chart of the KV cache size of one request by its number of tokens, one line for each model."""
    last = answer.contexts[-1]
    sizes = "; ".join(
        f"{row.model} {units.MEMORY.texts(row.request_bytes[last])[0]} at {token_count_text(last)}"
        for row in answer.rows
    )
    return Curves(
        name="kv_contexts",
        title="KV cache of one request",
        alt=f"{sizes}.",
        data={row.model: row.request_bytes for row in answer.rows},
        unit=units.GIB,
        labels="tokens of a request",
        axis="KV cache, {memory}",
        log=True,
    )


def _tokens_that_fit(gpu: str, row: KvAnswerRow) -> int | str:
    return row.gpu_context_tokens[gpu] or "none"


def _limited_table(answer: KvAnswer) -> Table:
    ways = list(enumerate(way.name for way in answer.limited[0].ways))
    columns = [
        MODEL,
        CONTEXT,
        *(Column(f"{name}, {{memory}}", f"ways.{i}.kv_bytes", units.GIB) for i, name in ways),
        *(Column(f"{name}, prefill", f"ways.{i}.pair_fraction", units.PERCENT) for i, name in ways[1:]),
    ]
    title = (
        f"Sliding window in every layer: {answer.window_tokens:,} tokens, {answer.sink_tokens} attention sinks; "
        "prefill: computed share of query-key pairs"
    )
    return Table(title, answer.limited, columns)


def _eviction_blocks(answer: KvAnswer, drawn: Sequence[int]) -> Iterator[Block]:
    """Return charts and tables of eviction methods: KV cache size, speed (with a GPU), engines, published quality."""
    if len(answer.gpus) == 1 and len(answer.rows) == 1:
        for context in drawn:
            yield _eviction_chart(eviction_rows(answer, context))
    rows = [row for row in answer.evictions if row.context_tokens in drawn]
    columns = [
        Column("method", "method"),
        *([MODEL] if len(answer.rows) > 1 else []),
        *([GPU] if len(answer.gpus) > 1 else []),
        CONTEXT,
        Column("kept", "kept_tokens", units.COUNT),
        Column("MiB", "kv_bytes", Unit(0, 2**-20)),
        Column("share", "kept_share", units.PERCENT),
    ]
    if answer.gpus:
        columns += [
            Column(f"step of {rows[0].batch_size}, {{time}}", "step_s", units.MS_1),
            Column("speed-up", "speedup", units.TIMES),
            Column("requests", "held", units.COUNT),
            Column("tokens/s", "tokens_per_s", units.COUNT),
            Column("prefill, s", "prefill_s", units.SECONDS),
            Column("scoring, {time}", "score_s", units.MS_1),
        ]
    yield Table(
        "KV eviction: KV cache of one request, step time, and number of requests that fit", rows, columns
    )
    found = [
        Column("method", "method"),
        Column("engines", join_names("engines", "none"), units.TEXT),
        Column("published", _describe_method),
    ]
    yield Table("Published quality of KV eviction (not lossless)", answer.eviction_methods, found)


def _describe_method(row: EvictionMethod) -> str:
    known = "; ".join(f"{each.what} ({each.model}; {each.source}, {each.date})" for each in row.published)
    return f"{row.title}. {known}{phrase('. Note: {}', row.note)}"


def _eviction_chart(rows: Sequence[EvictionRow]) -> Bars:
    """Return the chart of speed-up, requests and tokens/s of each method relative to the full cache."""
    whole, *methods = rows
    best = max(methods, key=lambda row: row.tokens_per_s or 0.0)
    words = "one prompt of this length does not fit on the GPU"
    if best.tokens_per_s is not None:
        words = f"{best.method} has the most tokens/s, {best.tokens_per_s:,.0f} with {best.held:,} requests"
    return Bars(
        name=f"kv_eviction_{whole.context_tokens}",
        title=f"Effect of KV eviction at {token_count_text(whole.context_tokens)} tokens",
        alt=f"{len(methods)} methods: {words}.",
        data={
            "step speed-up": {row.method: row.speedup for row in methods},
            "requests": {row.method: _ratio(row.held, whole.held) for row in methods},
            "tokens/s": {row.method: _ratio(row.tokens_per_s, whole.tokens_per_s) for row in methods},
        },
        labels="method",
        axis="relative to the full KV cache",
        log=True,
        reference=(1.0, ""),
        note=RATIO_NOTE,
    )


def _ratio(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _long_context_blocks(rows: Sequence[LongContext]) -> Iterator[Block]:
    prefix = next((row.offload.tokens for row in rows if row.offload), 0)
    columns = [
        MODEL,
        GPU,
        Column("KV tokens", "held_tokens", units.COUNT),
        Column("attention is half of decode from", "decode_crossover_tokens", units.COUNT),
        Column(
            f"{token_count_text(prefix)}: load from CPU / recompute, ms", _load_and_recompute_text, units.TEXT
        ),
        Column(
            f"{token_count_text(prefix)}: prefill on 1, 2, 4, 8 ranks, s",
            lambda row: ", ".join(f"{over.seconds:,.1f}" for over in row.prefill) or "-",
            units.TEXT,
        ),
    ]
    yield Table(f"Long contexts; decode at a batch of {rows[0].batch_size}", rows, columns)
    if grown := [row for row in rows if row.growth]:
        shares = [
            Column(
                f"at {token_count_text(point.context_tokens)}", partial(_step_and_share_text, i), units.TEXT
            )
            for i, point in enumerate(grown[0].growth)
        ]
        title = "Decode step, ms (share of attention), if memory were unlimited"
        yield Table(title, grown, [MODEL, GPU, *shares])
    yield from (f"{row.model} on {row.gpu}: {row.reason}" for row in rows if row.reason)


def _load_and_recompute_text(row: LongContext) -> str:
    prefix = row.offload
    return "-" if prefix is None else f"{prefix.load_s * 1e3:,.1f} / {prefix.recompute_s * 1e3:,.1f}"


def _step_and_share_text(place: int, row: LongContext) -> str:
    return f"{row.growth[place].step_s * 1e3:,.1f} ({row.growth[place].attention_share:.0%})"
