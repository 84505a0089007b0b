"""The view of `cache-curve`: hit rates by cache size and routing, savings, and providers' prices."""

from collections.abc import Iterator

from capacity.report.display import money_phrase, phrase
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Curves, Fact, Table, View, known_facts
from capacity.techniques.cache_curve import CacheCurve
from capacity.techniques.prefix_cache import PrefillSavings

TOKENS_HIT = Column("tokens hit", "token_hit_fraction", units.PERCENT)


def cache_curve_view(answer: CacheCurve) -> View:
    """Return the view of `cache-curve`."""
    title = f"[bold]{answer.workload}[/bold]: {answer.requests:,} requests, replayed in order"
    return View(title, _blocks(answer))


def cache_curve_facts(answer: CacheCurve) -> list[Fact]:
    """Return the hit rate of an unlimited cache, the cache size at which the hit rate saturates, and the savings."""
    best, saved = answer.rows[-1], answer.savings
    knee, read = f"in blocks of {answer.block_tokens} tokens", f"{answer.prompt_tokens:,} prompt tokens"
    share, note = (
        units.value_at(saved, "saved_fraction"),
        phrase("with {.capacity_tokens:,} tokens of KV cache", saved),
    )
    return [
        Fact("Hit rate, no limit", best.token_hit_fraction, units.PERCENT, "of prompt tokens"),
        Fact("Saturates at", answer.knee_tokens, units.NUM_TOKENS, knee),
        Fact("Requests", answer.requests, note=read),
        *known_facts([Fact("Prefill saved", share, units.PERCENT, note)]),
    ]


def _blocks(answer: CacheCurve) -> Iterator[Block]:
    yield _chart(answer)
    columns = [
        Column("cache, tokens", "capacity_tokens", units.TOKENS),
        Column("blocks hit", "block_hit_fraction", units.PERCENT),
        TOKENS_HIT,
    ]
    yield Table(f"LRU cache with blocks of {answer.block_tokens} tokens", answer.rows, columns)
    yield f"the hit rate saturates at {answer.knee_tokens:,} tokens"
    if answer.routing:
        columns = [
            Column("routing", "routing"),
            TOKENS_HIT,
            Column("share of busiest replica", "largest_share", units.PERCENT),
        ]
        title = f"{answer.routing[0].replicas} replicas, each with the largest cache above"
        yield Table(title, answer.routing, columns)
    if saved := answer.savings:
        yield (
            f"hit rate with {saved.capacity_tokens:,} tokens of KV: {saved.token_hit_fraction:.1%}; the mean prefill "
            f"drops from {saved.mean_prefill_s * 1e3:,.0f} to {saved.mean_prefill_cached_s * 1e3:,.0f} ms, which "
            f"saves {saved.saved_fraction:.1%} of prefill time and cost{_input_cost(saved)}"
        )
    columns = [
        Column("plan", "plan"),
        Column("hit in time", "hit_fraction", units.PERCENT),
        Column("cost", "relative_cost", units.PERCENT),
        Column("pays from", "break_even_hit_fraction", units.PERCENT),
        Column("or reuses", "break_even_reuses", units.TIMES),
    ]
    yield Table("Providers' caches: cost of input tokens", answer.plans, columns)


def _chart(answer: CacheCurve) -> Curves:
    """Return the chart of the hit rates of tokens and of blocks by cache size."""
    sized = [row for row in answer.rows if row.capacity_tokens is not None]
    most = next((row.token_hit_fraction for row in answer.rows if row.capacity_tokens is None), None)
    return Curves(
        name="hit_rate",
        title="Prefix cache hit rate by cache size",
        alt=(
            f"{answer.requests:,} requests: at most {most or 0.0:.1%} of their prompt tokens hit, and the hit rate "
            f"saturates at {answer.knee_tokens:,} tokens."
        ),
        data=units.read_series(
            sized, "capacity_tokens", {"tokens hit": "token_hit_fraction", "blocks hit": "block_hit_fraction"}
        ),
        unit=units.PERCENT,
        labels="cache, tokens",
        axis="hit rate, %",
        reference=(most and 100 * most, "no limit"),
    )


def _input_cost(saved: PrefillSavings) -> str:
    full = money_phrase(": {} to ", saved.usd_per_million_input_tokens, ".3f")
    return full + money_phrase("{} for 1M input tokens", saved.usd_per_million_input_tokens_cached, ".3f")
