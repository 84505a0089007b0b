"""Ways of batching, and the gain by the spread of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.techniques.cells import (
    Columns,
    Part,
    headline,
    notes,
    number,
    percent,
    table,
    text,
)

if TYPE_CHECKING:
    from capacity.techniques.batching import Batching, BatchingOption, SpreadGain


def batching_parts(answer: Batching) -> list[Part]:
    columns: Columns[BatchingOption] = [
        ("batching", text("name")),
        ("tokens/s/GPU", number("output_tokens_per_s_per_gpu", 1, 0)),
        ("gain", number("gain")),
        ("TTFT ms", number("mean_ttft_s", 1e3, 0)),
        ("p99", number("p99_ttft_s", 1e3, 0)),
        ("TPOT ms", number("mean_tpot_s", 1e3)),
        ("slots", percent("slot_waste_fraction", 0)),
        ("padding", percent("padding_waste_fraction", 0)),
        ("KV", percent("kv_waste_fraction")),
    ]
    spread: Columns[SpreadGain] = [
        ("coefficient of variation", number("coefficient_of_variation")),
        ("wasted slots", percent("slot_waste_fraction", 0)),
        ("by slots alone", number("slot_gain")),
        ("simulated", number("simulated_gain")),
    ]
    closed_form = (
        f"by the lengths alone: a static batch of {answer.batch_size:,} wastes {answer.slot_waste_fraction:.0%} "
        f"of its decode slots and {answer.padding_waste_fraction:.0%} of its prefill on padding; continuous "
        f"batching is {answer.slot_gain:.2f} times faster if every step takes the same time; reserving "
        f"{answer.max_model_len:,} tokens a request leaves {answer.contiguous_kv_waste_fraction:.0%} of the KV "
        f"empty at its end, blocks {answer.paged_kv_waste_fraction:.1%}"
    )
    first = f"{headline(answer)}, {answer.workload}, {answer.requests:,} requests"
    parts: list[Part] = [
        first,
        table("The same arrivals, and what each wastes", answer.rows, columns),
        closed_form,
    ]
    if answer.spread:
        size = answer.spread[0].batch_size
        title = f'"2 to 5 times": continuous over static by the spread of output lengths, batch {size}'
        parts.append(table(title, answer.spread, spread))
    return [*parts, *notes(answer.warnings)]
