"""The view of `scale`: latency and throughput by the size of one kind of parallelism (such as tensor)."""

from collections.abc import Iterator, Sequence

from capacity.report.display import phrase, with_relative_interval
from capacity.report.views import units
from capacity.report.views.units import time_with_interval
from capacity.report.views.view import Block, Column, Fact, Panels, Table, View, headline
from capacity.techniques.scaling import Layout, Scaling

AXIS_COLUMNS = {  # columns specific to an axis of parallelism
    "tensor": [Column("MB/token sent", "all_reduce_bytes_per_token", units.Unit(2, 1e-6))],
    "pipeline": [
        Column("prefill bubble", "bubble_fraction", units.PERCENT_0),
        Column("decode idle", "idle_fraction", units.PERCENT_0),
    ],
}
EXPERT_COLUMNS = [
    Column("busiest GPU x", "expert_imbalance", units.TIMES),
    Column("experts read", "experts_read", units.COUNT),
]
TPOT = time_with_interval("tpot_s")


def scaling_view(answer: Scaling) -> View:
    """Return the view of `scale`."""
    return View(headline(answer), _blocks(answer))


def scaling_facts(run: Sequence[Layout]) -> list[Fact]:
    """Return the metrics of the largest layout that runs, compared with the smallest one."""
    first, last = run[0], run[-1]
    return [
        Fact(f"TPOT on {last.num_gpus}", TPOT(last), units.LATENCY),
        Fact(f"TPOT on {first.num_gpus}", TPOT(first), units.LATENCY),
        Fact("Times as fast", last.speedup, units.TIMES, f"{last.num_gpus} GPUs instead of {first.num_gpus}"),
        Fact("Efficiency", last.efficiency, units.PERCENT_0, "tokens/s per GPU, relative to the fewest GPUs"),
        Fact("Links", last.communication_share, units.PERCENT_0, "of a decode step"),
    ]


def running_layouts(answer: Scaling) -> list[Layout]:
    """Return the layouts (one for each number of GPUs) that run, smallest first."""
    return [row for row in answer.rows if row.tpot_s is not None]


def _blocks(answer: Scaling) -> Iterator[Block]:
    yield _chart(answer)
    columns = [
        Column("GPUs", "num_gpus", units.COUNT),
        Column("max batch", "max_batch", units.COUNT),
        Column("TTFT {time}", "ttft_s", units.MS_1),
        Column("TPOT {time}", "tpot_s", units.MS),
        Column("speed-up", "speedup", units.TIMES),
        Column("tokens/s/GPU", "output_tokens_per_s_per_gpu", units.COUNT),
        Column("efficiency", "efficiency", units.PERCENT_0),
        Column("links", "communication_share", units.PERCENT_0),
        *AXIS_COLUMNS.get(answer.axis, EXPERT_COLUMNS),
        Column("$/1M tokens", "usd_per_million_tokens", units.USD_3),
    ]
    title = f"{answer.axis} parallelism, {answer.concurrency} requests in flight"
    yield Table(title, answer.rows, columns)
    yield from (f"{row.num_gpus} GPUs: {row.reason}" for row in answer.rows if row.reason)
    limit_ms, verdict = (answer.tpot_limit_s or 0.0) * 1e3, phrase("{} GPUs", answer.cheapest_num_gpus)
    yield phrase("cheapest layout with a TPOT of at most {:g} ms: {}", limit_ms, verdict or "no layout")
    ranks = [
        Column("ranks", "ranks", units.COUNT),
        Column("prefill {time}", "seconds", units.MS_1),
        Column("exposed ring {time}", "exposed_communication_s", units.MS),
        Column("efficiency", "efficiency", units.PERCENT_0),
    ]
    title = (
        f"Context parallelism: one prompt of {answer.input_len:,} tokens split across several groups of GPUs"
    )
    yield Table(title, answer.context_parallel, ranks)


def _chart(answer: Scaling) -> Panels:
    """Return the chart of TPOT and of tokens/s per GPU by number of GPUs, both with the relative interval of TPOT."""
    run = running_layouts(answer)
    words = "no layout runs"
    if run:
        words = (
            f"{run[-1].num_gpus} GPUs take {units.LATENCY.texts(TPOT(run[-1]))[0]} per token, {run[-1].speedup:.2f} "
            f"times as fast as {run[0].num_gpus}, with {run[-1].efficiency:.0%} of the tokens/s per GPU"
        )
    tpots = {row.num_gpus: TPOT(row) for row in run}
    per_gpu = {row.num_gpus: row.output_tokens_per_s_per_gpu or 0.0 for row in run}
    return Panels(
        name="scaling",
        title=f"Scaling with {answer.axis} parallelism",
        alt=f"{answer.concurrency} requests in flight: {words}.",
        labels="GPUs",
        data={
            "TPOT, ms": {gpus: tpot and tpot.scale(1e3) for gpus, tpot in tpots.items()},
            "output tokens/s per GPU": {
                gpus: with_relative_interval(rate, tpots[gpus]) for gpus, rate in per_gpu.items()
            },
        },
    )
