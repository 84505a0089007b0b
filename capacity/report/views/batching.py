"""Ways of batching, and the gain by the spread of lengths."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from capacity.report.display import join_words
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Panels, Table, View, headline

if TYPE_CHECKING:
    from capacity.techniques.batching import Batching

PANELS = (
    ("output tokens/s a GPU", "output_tokens_per_s_per_gpu", 1.0),
    ("p95 TTFT, ms", "p95_ttft_s", 1e3),
    ("p95 E2E, ms", "p95_e2e_s", 1e3),
    ("KV waste, %", "kv_waste_fraction", 100.0),
)


def batching_view(answer: Batching) -> View:
    """Return what `batching` shows."""
    columns = [
        Column("batching", "name"),
        Column("tokens/s/GPU", "output_tokens_per_s_per_gpu", units.COUNT),
        Column("gain", "gain", units.TIMES),
        Column("TTFT {time}", "mean_ttft_s", units.MS_0),
        Column("p99", "p99_ttft_s", units.MS_0),
        Column("TPOT {time}", "mean_tpot_s", units.MS),
        Column("slots", "slot_waste_fraction", units.PERCENT_0),
        Column("padding", "padding_waste_fraction", units.PERCENT_0),
        Column("KV", "kv_waste_fraction", units.PERCENT),
    ]
    closed_form = (
        f"by the lengths alone: a static batch of {answer.batch_size:,} wastes {answer.slot_waste_fraction:.0%} "
        f"of its decode slots and {answer.padding_waste_fraction:.0%} of its prefill on padding; continuous "
        f"batching is {answer.slot_gain:.2f} times faster if every step takes the same time; reserving "
        f"{answer.max_model_len:,} tokens a request leaves {answer.contiguous_kv_waste_fraction:.0%} of the KV "
        f"empty at its end, blocks {answer.paged_kv_waste_fraction:.1%}"
    )
    table = Table("The same arrivals, and what each wastes", answer.rows, columns)
    blocks: list[Block] = [batching_chart(answer), table, closed_form]
    if answer.spread:
        spread = [
            Column("coefficient of variation", "coefficient_of_variation", units.TIMES),
            Column("wasted slots", "slot_waste_fraction", units.PERCENT_0),
            Column("by slots alone", "slot_gain", units.TIMES),
            Column("simulated", "simulated_gain", units.TIMES),
        ]
        size = answer.spread[0].batch_size
        title = f'"2 to 5 times": continuous over static by the spread of output lengths, batch {size}'
        blocks.append(Table(title, answer.spread, spread))
    return View(f"{headline(answer)}, {answer.workload}, {answer.requests:,} requests", blocks)


def batching_chart(answer: Batching) -> Panels:
    """Return four panels of bars, one bar for each way of batching."""
    names = [row.name for row in answer.rows]
    fastest = max(answer.rows, key=attrgetter("output_tokens_per_s_per_gpu"))
    return Panels(
        name="batching",
        title=f"{answer.model} on {answer.gpu.count} x {answer.gpu.name}: {answer.workload}",
        alt=(
            f"Throughput, latency and KV waste under {join_words(names)}. {fastest.name} makes the most tokens a GPU: "
            f"{fastest.output_tokens_per_s_per_gpu:,.0f} a second, {fastest.gain:.2f} times {names[0]}."
        ),
        labels="batching",
        data={
            title: {row.name: (value := getattr(row, path)) and scale * value for row in answer.rows}
            for title, path, scale in PANELS
        },
    )
