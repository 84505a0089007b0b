"""The view of `batching`: batching methods, and the gain of continuous batching by the spread of output lengths."""

from operator import attrgetter

from capacity.report.display import join_words
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Panels, Table, View, headline
from capacity.techniques.batching import Batching

PANELS = (
    ("output tokens/s per GPU", "output_tokens_per_s_per_gpu", 1.0),
    ("p95 TTFT, ms", "p95_ttft_s", 1e3),
    ("p95 E2E, ms", "p95_e2e_s", 1e3),
    ("KV waste, %", "kv_waste_fraction", 100.0),
)


def batching_view(answer: Batching) -> View:
    """Return the view of `batching`."""
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
        f"From the lengths alone: a static batch of {answer.batch_size:,} wastes {answer.slot_waste_fraction:.0%} "
        f"of its decode slots, and {answer.padding_waste_fraction:.0%} of its prefill is padding. Continuous "
        f"batching is {answer.slot_gain:.2f} times faster if every step takes the same time. Reserving "
        f"{answer.max_model_len:,} tokens per request leaves {answer.contiguous_kv_waste_fraction:.0%} of the KV "
        f"cache unused; paged blocks leave {answer.paged_kv_waste_fraction:.1%}."
    )
    table = Table("Throughput, latency and waste on the same arrivals", answer.rows, columns)
    blocks: list[Block] = [batching_chart(answer), table, closed_form]
    if answer.spread:
        spread = [
            Column("coefficient of variation", "coefficient_of_variation", units.TIMES),
            Column("wasted slots", "slot_waste_fraction", units.PERCENT_0),
            Column("gain from slots", "slot_gain", units.TIMES),
            Column("simulated gain", "simulated_gain", units.TIMES),
        ]
        size = answer.spread[0].batch_size
        title = f"Gain of continuous over static batching by spread of output lengths, batch {size}"
        blocks.append(Table(title, answer.spread, spread))
    return View(f"{headline(answer)}, {answer.workload}, {answer.requests:,} requests", blocks)


def batching_chart(answer: Batching) -> Panels:
    """Return the chart with four panels, each with one bar for each batching method."""
    names = [row.name for row in answer.rows]
    fastest = max(answer.rows, key=attrgetter("output_tokens_per_s_per_gpu"))
    return Panels(
        name="batching",
        title=f"{answer.model} on {answer.gpu.count} x {answer.gpu.name}: {answer.workload}",
        alt=(
            f"Throughput, latency and KV waste under {join_words(names)}. {fastest.name} has the most output tokens/s "
            f"per GPU: {fastest.output_tokens_per_s_per_gpu:,.0f}, {fastest.gain:.2f} times {names[0]}."
        ),
        labels="batching",
        data={
            title: {row.name: (value := getattr(row, path)) and scale * value for row in answer.rows}
            for title, path, scale in PANELS
        },
    )
