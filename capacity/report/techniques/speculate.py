"""Rounds of drafting by batch, the ways to draft, and a published textbook table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.layout import GIB
from capacity.report.techniques.cells import Columns, Part, headline, notes, number, table, text

if TYPE_CHECKING:
    from capacity.pool.drafting import TextbookEntry
    from capacity.techniques.speculate import (
        AcceptanceSource,
        Speculating,
        SpeculationRow,
        SpeculatorRow,
        Speculators,
        Textbook,
    )


def speculate_parts(answer: Speculating) -> list[Part]:
    source = answer.acceptance_source
    batch = answer.break_even_batch
    rates = ", ".join(f"{rate:.2f}" for rate in answer.acceptance)
    memory, ttft = answer.memory, answer.ttft_s
    lines = [
        f"{headline(answer)}: {answer.method}, {answer.drafts}, {answer.context_tokens:,} tokens of context",
        f"acceptance by position {rates}: {_measured(source)}",
    ]
    simulated: Columns[object] = [("simulated", number("simulated_speedup"))]
    columns: Columns[SpeculationRow] = [
        ("batch", lambda row: f"{row.batch_size:,}"),
        ("tokens/round", number("tokens_per_round")),
        ("draft ms", number("draft_s", 1e3)),
        ("verify ms", number("verify_s", 1e3)),
        ("plain ms", number("plain_step_s", 1e3)),
        ("speed-up", number("speedup")),
        *(simulated if answer.rows[0].simulated_speedup is not None else []),
        ("textbook", number("textbook_speedup")),
        ("best k", lambda row: _drafts(row.best_draft_tokens, row.best_verified_tokens)),
        ("speed-up", number("best_speedup")),
    ]
    rounds = table("One round against plain decode steps", answer.rows, columns)
    after = [
        f"stops paying at a batch of {batch:,}"
        if batch is not None
        else f"pays up to a batch of {answer.largest_batch:,}, the most that max_num_seqs and the KV cache hold",
        f"draft weights {memory.draft_weights_bytes / GIB:.2f} GiB; KV capacity "
        f"{memory.kv_capacity_tokens_before:,} to {memory.kv_capacity_tokens_after:,} tokens; "
        f"TTFT {ttft.plain * 1e3:.1f} to {ttft.with_draft * 1e3:.1f} ms without queueing",
    ]
    return [*lines, rounds, *after, *notes(answer.warnings)]


def _measured(source: AcceptanceSource) -> str:
    """On which model, engine and batch it was measured; or that it was given."""
    on = ", ".join(part for part in (source.model, source.setting) if part)
    return f"{source.basis} on {on} ({source.text})" if on else f"{source.basis}, {source.text}"


def _drafts(depth: int, nodes: int) -> str:
    """A chain by its length, a tree by its depth and size."""
    return f"{depth}" if nodes == depth else f"{depth} ({nodes})"


def speculators_parts(answer: Speculators) -> list[Part]:
    columns: Columns[SpeculatorRow] = [
        ("method", text("method")),
        ("depth", text("draft_tokens")),
        ("tree", lambda row: "-" if row.tree_tokens is None else str(row.tree_tokens)),
        ("tokens/round", number("tokens_per_round")),
        ("remark", _known),
    ]
    return [table("Ways to draft, with published acceptance", answer.rows, columns)]


def _known(row: SpeculatorRow) -> str:
    by_task = ", ".join(f"{task} {length:.2f}" for task, length in row.tokens_per_round_by_task.items())
    return (
        f"{row.acceptance_model}: {row.source} ({row.date}, {row.basis})"
        + (f"; by task: {by_task}" if by_task else "")
        + (f"; in {', '.join(row.engines)} only" if row.engines else "")
    )


def textbook_parts(answer: Textbook) -> list[Part]:
    columns: Columns[TextbookEntry] = [
        ("quantity", text("quantity")),
        ("acceptance", number("acceptance")),
        ("K", text("draft_tokens")),
        ("published", number("published")),
        ("formula", number("formula")),
        ("remark", lambda row: "agrees" if row.agrees else row.explained_by),
    ]
    return [table("A published table beside (1 - a^(K+1))/(1 - a)", answer.rows, columns)]
