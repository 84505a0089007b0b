"""The view of `speculate`: draft and verification time by batch size, draft methods, and a textbook table."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from capacity.report.display import join_phrases, join_words, phrase
from capacity.report.layout import GIB
from capacity.report.views import units
from capacity.report.views.view import Bars, Block, Column, Curves, Fact, Table, View, headline
from capacity.techniques.speculate import (
    AcceptanceSource,
    Speculating,
    SpeculationRow,
    SpeculatorRow,
    Speculators,
    Textbook,
)

BREAK_EVEN = (1.0, "break-even")
CHART_ROW = {  # heading and path of the numbers behind the charts
    "batch": "batch_size",
    "tokens per round": "tokens_per_round",
    "times as fast": "speedup",
    "best k": "best_draft_tokens",
    "at best k": "best_speedup",
    "textbook": "textbook_speedup",
    "verify / plain step": "verify_cost",
}
ACCEPTANCE_ROW = {"acceptance": "0", **{heading: f"1.{path}" for heading, path in CHART_ROW.items()}}
NO_INTERVAL_NOTE = (
    "No intervals: a speed-up compares two steps of the same step model, so most of its error cancels. It depends on "
    "the acceptance, which varies with model and task (chart below). `capacity estimate` shows the interval of TPOT."
)


def speculate_view(answer: Speculating) -> View:
    """Return the view of `speculate`."""
    setting = f"{answer.method}, {answer.drafts}, {answer.context_tokens:,} tokens of context"
    return View(f"{headline(answer)}: {setting}", _blocks(answer))


def speculate_facts(answer: Speculating, batch: int) -> list[Fact]:
    """Return the metrics at the largest batch size that is at most `batch`."""
    row = max((row for row in answer.rows if row.batch_size <= batch), key=attrgetter("batch_size"))
    plain, draft, alone = (
        units.LATENCY.texts(seconds)[0] for seconds in (row.plain_step_s, row.draft_s, answer.ttft_s.plain)
    )
    best = f"best k {row.best_draft_tokens}: {row.best_speedup:.2f}"
    return [
        Fact(f"Times as fast at batch {row.batch_size}", row.speedup, units.TIMES, best),
        Fact("TPOT", row.tpot_s, units.LATENCY, f"{plain} without drafts"),
        Fact("Tokens per round", row.tokens_per_round, units.TIMES, f"{row.verified_tokens} verified"),
        Fact("Verification", row.verify_cost, units.Unit(2, after=" steps"), f"draft {draft}"),
        Fact("Break-even batch", answer.break_even_batch, units.Unit(none="never")),
        Fact("TTFT", answer.ttft_s.with_draft, units.LATENCY, f"{alone} without drafts"),
    ]


def _blocks(answer: Speculating) -> Iterator[Block]:
    batch, memory, ttft = answer.break_even_batch, answer.memory, answer.ttft_s
    rates = ", ".join(f"{rate:.2f}" for rate in answer.acceptance)
    yield f"acceptance by position {rates}: {_source_text(answer.acceptance_source)}"
    yield _chart(answer)
    columns = [
        Column("batch", "batch_size", units.COUNT),
        Column("tokens/round", "tokens_per_round", units.TIMES),
        Column("draft {time}", "draft_s", units.MS),
        Column("verify {time}", "verify_s", units.MS),
        Column("plain {time}", "plain_step_s", units.MS),
        Column("speed-up", "speedup", units.TIMES),
        Column("simulated", "simulated_speedup", units.TIMES, optional=True),
        Column("textbook", "textbook_speedup", units.TIMES),
        Column("best k", _best_draft_text, units.TEXT),
        Column("speed-up", "best_speedup", units.TIMES),
    ]
    yield Table("One drafting round compared with decode steps without drafts", answer.rows, columns)
    every = (
        f"speed-up at every batch up to {answer.largest_batch:,}, the limit of max_num_seqs and the KV cache"
    )
    yield phrase("no speed-up from a batch of {:,}", batch) or every
    yield (
        f"draft weights {memory.draft_weights_bytes / GIB:.2f} GiB; KV capacity "
        f"{memory.kv_capacity_tokens_before:,} to {memory.kv_capacity_tokens_after:,} tokens; "
        f"TTFT {ttft.plain * 1e3:.1f} to {ttft.with_draft * 1e3:.1f} ms without queueing"
    )


def _source_text(source: AcceptanceSource) -> str:
    """Return where the acceptance comes from: its basis, the model and setting of a measurement, and the source."""
    on = join_phrases(source.model, source.setting, separator=", ")
    return f"{source.basis} on {on} ({source.text})" if on else f"{source.basis}, {source.text}"


def _best_draft_text(row: SpeculationRow) -> str:
    """Return the best draft: a chain by its length, a tree by its depth and, in brackets, its number of tokens."""
    depth, nodes = row.best_draft_tokens, row.best_verified_tokens
    return f"{depth}" if nodes == depth else f"{depth} ({nodes})"


def _chart(answer: Speculating) -> Curves:
    """Return the chart of speed-up by batch size: as requested, with best draft length, and by textbook formula."""
    first = answer.rows[0]
    limit = (
        phrase("No speed-up from batch {:,}.", answer.break_even_batch) or "Speed-up at every batch shown."
    )
    lines = {"as requested": "speedup", "best draft length": "best_speedup"}
    lines["textbook, free verification"] = "textbook_speedup"
    return Curves(
        name="speedup_by_batch",
        title=f"{answer.method}, {answer.draft_tokens} drafted tokens: speed-up by batch size",
        alt=f"{first.speedup:.2f} times at batch {first.batch_size}. {limit}",
        data=units.read_series(answer.rows, "batch_size", lines),
        labels="batch size",
        axis="times as fast",
        reference=BREAK_EVEN,
        note=NO_INTERVAL_NOTE,
        rows=units.read_rows(answer.rows, CHART_ROW),
    )


def acceptance_chart(grid: Mapping[int, Sequence[tuple[float, SpeculationRow]]]) -> Curves:
    """Return the chart of speed-up by acceptance; `grid` maps draft length k to pairs of acceptance and result."""
    phrases = []
    for k, points in grid.items():
        pays = next((acceptance for acceptance, row in points if row.speedup > 1), None)
        phrases.append(f"k = {k} " + ("never breaks even" if pays is None else f"breaks even at {pays:.0%}"))
    return Curves(
        name="speedup_by_acceptance",
        title="Speed-up by acceptance and draft length",
        alt=join_words(phrases) + ".",
        data=units.read_curves(grid.items(), "k = {0[0]}".format, "1", x="0", y="1.speedup"),
        labels="acceptance of each drafted token",
        axis="times as fast",
        shares=True,
        reference=BREAK_EVEN,
        rows=[
            {"k": k, **row} for k, points in grid.items() for row in units.read_rows(points, ACCEPTANCE_ROW)
        ],
    )


def methods_chart(answers: Mapping[str, Speculating]) -> Bars:
    """Return the chart of draft methods at one batch size, each with its published acceptance, the fastest first."""
    rows = {name: answer.rows[0] for name, answer in answers.items()}
    fastest_first = sorted(rows, key=lambda name: -rows[name].speedup)
    shares = {name: row.draft_s / row.plain_step_s for name, row in rows.items()}
    best = ", ".join(f"{name} is fastest, {rows[name].speedup:.2f} times" for name in fastest_first[:1])
    return Bars(
        name="ways_to_draft",
        title="Draft methods by published acceptance",
        alt=f"{best or 'no method fits'}.",
        data={
            "times as fast": {
                f"{name}, draft {shares[name]:.0%} of a step": rows[name].speedup for name in fastest_first
            }
        },
        labels="method",
        axis="times as fast",
        reference=(1.0, ""),
        rows=[
            {
                "method": name,
                "k": rows[name].draft_tokens,
                "draft share of a step": shares[name],
                "acceptance from": answers[name].acceptance_source.text,
                **units.read_rows([rows[name]], CHART_ROW)[0],
            }
            for name in fastest_first
        ],
    )


def speculators_view(answer: Speculators) -> View:
    """Return the view of `speculate --list`."""
    columns = [
        Column("method", "method"),
        Column("depth", "draft_tokens", units.COUNT),
        Column("tree", "tree_tokens", units.COUNT),
        Column("tokens/round", "tokens_per_round", units.TIMES),
        Column("note", _acceptance_text),
    ]
    return View("", [Table("Draft methods with published acceptance", answer.rows, columns)])


def _acceptance_text(row: SpeculatorRow) -> str:
    by_task = ", ".join(f"{task} {length:.2f}" for task, length in row.tokens_per_round_by_task.items())
    return join_phrases(
        f"{row.acceptance_model}: {row.source} ({row.date}, {row.basis})",
        phrase("by task: {}", by_task),
        phrase("in {} only", ", ".join(row.engines)),
    )


def textbook_view(answer: Textbook) -> View:
    """Return the view of `speculate --textbook`."""
    columns = [
        Column("quantity", "quantity"),
        Column("acceptance", "acceptance", units.TIMES),
        Column("K", "draft_tokens", units.COUNT),
        Column("published", "published", units.TIMES),
        Column("formula", "formula", units.TIMES),
        Column("note", lambda row: "agrees" if row.agrees else row.explained_by),
    ]
    return View("", [Table("Published table compared with (1 - a^(K+1))/(1 - a)", answer.rows, columns)])
