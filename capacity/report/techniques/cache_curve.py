"""Hit rates by size of cache and routing, savings, and providers' bills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.techniques.cells import Columns, Part, notes, number, percent, table, text, tokens

if TYPE_CHECKING:
    from capacity.techniques.cache_curve import CacheCurve
    from capacity.techniques.prefix_cache import PrefillSavings, RoutedReuse


def cache_curve_parts(answer: CacheCurve) -> list[Part]:
    curve = table(
        f"LRU of blocks of {answer.block_tokens}",
        answer.rows,
        [
            ("cache, tokens", lambda row: tokens(row.capacity_tokens)),
            ("blocks hit", percent("block_hit_fraction")),
            ("tokens hit", percent("token_hit_fraction")),
        ],
    )
    first = f"[bold]{answer.workload}[/bold]: {answer.requests:,} requests, one after another"
    parts: list[Part] = [first, curve, f"no more to gain beyond {answer.knee_tokens:,} tokens"]
    if answer.routing:
        columns: Columns[RoutedReuse] = [
            ("routing", text("routing")),
            ("tokens hit", percent("token_hit_fraction")),
            ("busiest replica prefills", percent("largest_share")),
        ]
        title = f"{answer.routing[0].replicas} replicas, each with the largest cache above"
        parts.append(table(title, answer.routing, columns))
    if saved := answer.savings:
        parts.append(
            f"a KV cache of {saved.capacity_tokens:,} tokens hits {saved.token_hit_fraction:.1%}: prefill "
            f"of a request {saved.mean_prefill_s * 1e3:,.0f} to {saved.mean_prefill_cached_s * 1e3:,.0f} ms on "
            f"average, {saved.saved_fraction:.1%} of prefill time and its cost saved{_input_cost(saved)}"
        )
    plans = table(
        "Providers' caches: input bill",
        answer.plans,
        [
            ("plan", text("plan")),
            ("hit in time", percent("hit_fraction")),
            ("bill", percent("relative_cost")),
            ("pays from", percent("break_even_hit_fraction")),
            ("or reuses", number("break_even_reuses")),
        ],
    )
    return [*parts, plans, *notes(answer.warnings)]


def _input_cost(saved: PrefillSavings) -> str:
    if saved.usd_per_million_input_tokens is None:
        return ""
    return (
        f": ${saved.usd_per_million_input_tokens:.3f} to "
        f"${saved.usd_per_million_input_tokens_cached:.3f} for 1M input tokens"
    )
