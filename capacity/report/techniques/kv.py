"""KV by model and context, kinds of attention, ways to forget, long contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capacity.report.layout import GIB
from capacity.report.techniques.cells import Cell, Columns, Part, number, table, text, tokens

if TYPE_CHECKING:
    from capacity.techniques.kv import KvAnswer, KvAnswerRow, LimitedRow
    from capacity.techniques.kv_eviction import EvictionMethod, EvictionRow
    from capacity.techniques.long_context import LongContext


def kv_parts(answer: KvAnswer) -> list[Part]:
    def at(context: int) -> Cell[KvAnswerRow]:
        return lambda row: f"{row.request_bytes[context] / GIB:,.2f}"

    def held(gpu: str) -> Cell[KvAnswerRow]:
        return lambda row: f"{row.gpu_context_tokens[gpu]:,}" if row.gpu_context_tokens[gpu] else "none"

    def kind(key: str) -> Cell[KvAnswerRow]:
        return lambda row: f"{getattr(row.kinds, key) / 1024:,.1f}"

    rows = answer.rows
    columns: Columns[KvAnswerRow] = [
        ("model", text("model")),
        ("attention", text("attention")),
        ("KiB/token", number("bytes_per_token", 1 / 1024, 1)),
        *((f"GiB at {tokens(context)}", at(context)) for context in answer.contexts),
        *((f"{gpu} holds", held(gpu)) for gpu in answer.gpus),
    ]
    kinds = table(
        "KiB per token, if attention were of another kind",
        rows,
        [
            ("model", text("model")),
            ("as it is", kind("actual_bytes_per_token")),
            ("MHA", kind("mha_bytes_per_token")),
            ("MQA", kind("mqa_bytes_per_token")),
            ("MLA (512 + 64)", kind("mla_bytes_per_token")),
            ("prefill attention overtakes at", number("prefill_crossover_tokens", 1, 0)),
        ],
    )
    parts: list[Part] = [table("KV cache of one request", rows, columns), kinds]
    if answer.limited:
        parts.append(_limited_table(answer))
    if answer.evictions:
        parts += _eviction_parts(answer)
    if answer.long_contexts:
        parts += _long_context_parts(answer.long_contexts)
    return parts


def _limited_table(answer: KvAnswer) -> Part:
    def way(index: int) -> Cell[LimitedRow]:
        return lambda row: f"{row.ways[index].kv_bytes / GIB:,.2f}"

    def share(index: int) -> Cell[LimitedRow]:
        return lambda row: f"{row.ways[index].pair_fraction:.1%}"

    names = [way.name for way in answer.limited[0].ways]
    columns: Columns[LimitedRow] = [
        ("model", text("model")),
        ("tokens", lambda row: tokens(row.context_tokens)),
        *((f"{name}, GiB", way(index)) for index, name in enumerate(names)),
        *((f"{name}, prefill", share(index)) for index, name in enumerate(names) if index),
    ]
    title = (
        f"If every layer forgot: a window of {answer.window_tokens:,} tokens, {answer.sink_tokens} sinks; "
        "prefill: query x key pairs over all"
    )
    return table(title, answer.limited, columns)


def _eviction_parts(answer: KvAnswer) -> list[Part]:
    """Bytes alone where no GPU is named; then who has which method, and what was published of it."""
    rows = answer.evictions
    columns: Columns[EvictionRow] = [
        ("method", text("method")),
        *([("model", text("model"))] if len(answer.rows) > 1 else []),
        *([("GPU", text("gpu"))] if len(answer.gpus) > 1 else []),
        ("tokens", lambda row: tokens(row.context_tokens)),
        ("kept", lambda row: f"{row.kept_tokens:,}"),
        ("MiB", number("kv_bytes", 1 / 2**20, 0)),
        ("share", lambda row: f"{row.kept_share:.1%}"),
    ]
    if answer.gpus:
        columns += [
            (f"step of {rows[0].batch_size}, ms", number("step_s", 1e3, 1)),
            ("times", number("speedup")),
            ("held", lambda row: f"{row.held:,}"),
            ("tokens/s", number("tokens_per_s", 1, 0)),
            ("prefill, s", number("prefill_s")),
            ("scoring, ms", number("score_s", 1e3, 1)),
        ]
    found: Columns[EvictionMethod] = [
        ("method", text("method")),
        ("engines", lambda row: ", ".join(row.engines) or "none"),
        ("remark", _published),
    ]
    return [
        table("Keeping less: one request, a step, and as many requests as fit", rows, columns),
        table("Not lossless: what was published", answer.eviction_methods, found),
    ]


def _published(row: EvictionMethod) -> str:
    known = "; ".join(f"{each.what} ({each.model}; {each.source}, {each.date})" for each in row.published)
    return f"{row.title}. {known}" + (f". Here: {row.note}" if row.note else "")


def _long_context_parts(rows: Sequence[LongContext]) -> list[Part]:
    prefix = next((row.offload.tokens for row in rows if row.offload), 0)
    columns: Columns[LongContext] = [
        ("model", text("model")),
        ("GPU", text("gpu")),
        ("holds", number("held_tokens", 1, 0)),
        ("attention half of decode at", number("decode_crossover_tokens", 1, 0)),
        (f"{tokens(prefix)} from CPU / again, ms", _load_or_recompute),
        ("prefill of all it holds on 1, 2, 4, 8 ranks, s", _prefill_by_ranks),
    ]
    title = f"Long contexts; decode at a batch of {rows[0].batch_size}"
    reasons = [f"{row.model} on {row.gpu}: {row.reason}" for row in rows if row.reason]
    return [table(title, rows, columns), *_growth_parts([row for row in rows if row.growth]), *reasons]


def _load_or_recompute(row: LongContext) -> str:
    prefix = row.offload
    return "-" if prefix is None else f"{prefix.load_s * 1e3:,.1f} / {prefix.recompute_s * 1e3:,.1f}"


def _prefill_by_ranks(row: LongContext) -> str:
    return ", ".join(f"{over.seconds:,.1f}" for over in row.prefill) or "-"


def _growth_parts(rows: Sequence[LongContext]) -> list[Part]:
    """Decode steps by context, where any is known."""
    if not rows:
        return []

    def share(index: int) -> Cell[LongContext]:
        return lambda row: f"{row.growth[index].step_s * 1e3:,.1f} ({row.growth[index].attention_share:.0%})"

    columns: Columns[LongContext] = [
        ("model", text("model")),
        ("GPU", text("gpu")),
        *((f"at {tokens(point.context_tokens)}", share(i)) for i, point in enumerate(rows[0].growth)),
    ]
    return [table("A decode step, ms (attention's share), if memory were no limit", rows, columns)]
