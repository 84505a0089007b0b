"""Answers as text: tables for people, JSON and CSV for programs. The only place that makes ms, GiB and %."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capacity.answers.records import Attribution, Estimate, Fit, OperatorTime
from capacity.base.rows import flattened, to_csv
from capacity.report.display import (
    STANDARD,
    between,
    rate_and_interval,
    seconds_and_interval,
    time_and_interval,
    usd_and_interval,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capacity.answers.records import Simulation
    from capacity.simulator.intervals import Interval
    from capacity.simulator.replications import Replications

GIB = 2**30
BETWEEN_COLUMNS, EDGES = 3, 2  # cells: two of padding and one of rule; one at each side


def render(answer: Any, format: str) -> str:
    """An answer in `format`: table, json or csv."""
    if format == "json":
        return json.dumps(answer.to_dict(), indent=2, allow_nan=False)
    if format == "csv":
        return to_csv([flattened(answer.to_dict())])
    if isinstance(answer, Estimate):
        return _text(_estimate_tables(answer))
    if isinstance(answer, Attribution):
        return _text(_attribution_tables(answer))
    if isinstance(answer, Fit):
        return _text(_fit_tables(answer))
    return _text(_simulation_tables(answer))


def listing(rows: Sequence[Mapping[str, Any]], format: str, *, title: str) -> str:
    """A list of records as JSON, CSV, or a table of `COLUMNS[title]`."""
    if format == "json":
        return json.dumps(list(rows), indent=2)
    flat = [flattened(row) for row in rows]
    if format == "csv":
        return to_csv(flat)
    columns = COLUMNS[title]
    table = _grid(title, ("name", "left"), *((heading, "right") for heading, _, _ in columns))
    table.columns[0].no_wrap = True
    for row in flat:
        cells = ((row.get(key), scale) for _, key, scale in columns)
        table.add_row(row["name"], *("-" if v is None else f"{v / scale:,.5g}" for v, scale in cells))
    return _text([table])


# heading, key of the flattened record, and what it is divided by
COLUMNS = {
    "Models": (
        ("params, B", "total_params", 1e9),
        ("active, B", "active_params", 1e9),
        ("KV KiB/token, 16 bit", "kv_bytes_per_token", 1024),
    ),
    "GPUs": (
        ("GiB", "memory_bytes", GIB),
        ("HBM TB/s", "hbm_bytes_per_s", 1e12),
        ("BF16 TFLOP/s", "dense_flops_per_s.bf16", 1e12),
        ("FP8", "dense_flops_per_s.fp8", 1e12),
        ("FP4", "dense_flops_per_s.fp4", 1e12),
        ("link GB/s", "link_bytes_per_s", 1e9),
        ("TDP W", "tdp_watts", 1),
    ),
}


# tables


def _grid(title: str, *columns: tuple[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _facts(title: str, rows: Iterable[tuple[str, str, str]]) -> Any:
    table = _grid(title, ("", "left"), ("", "right"), ("", "left"))
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def _text(parts: Iterable[RenderableType]) -> str:
    from rich.console import Console

    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((110, 24)).columns if on_terminal else 110
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=on_terminal, highlight=False)
    for part in parts:
        if title := _taken_title(part):
            console.print(title)
        _keep_words(part, width)
        console.print(part)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def _taken_title(part: Any) -> Any:
    """A table's title, to stand on a line of its own: within the table it would wrap at the table's width."""
    from rich.table import Table
    from rich.text import Text

    if not isinstance(part, Table) or not part.title:
        return None
    title, part.title = str(part.title), None
    return Text.from_markup(title, style="table.title")


def _keep_words(part: Any, width: int) -> None:
    """Give a table that must wrap such columns that no word is broken, where there are any: the widest give way."""
    from rich.table import Table
    from rich.text import Text

    if not isinstance(part, Table):
        return
    texts = [
        [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
        for column in part.columns
    ]
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in texts]
    least = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    least = [
        full if column.no_wrap else word
        for column, word, full in zip(part.columns, least, widths, strict=True)
    ]
    room = width - EDGES - BETWEEN_COLUMNS * (len(widths) - 1)
    if sum(widths) <= room or sum(least) > room:
        return
    for _ in range(sum(widths) - room):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    for column, found in zip(part.columns, widths, strict=True):
        column.width = found


def _headline(answer: Fit) -> str:
    gpus = f"{answer.gpu.count} x {answer.gpu.name}" if answer.gpu.count > 1 else answer.gpu.name
    return (
        f"[bold]{answer.model.name}[/bold] ({answer.model.total_params / 1e9:.1f} B parameters, "
        f"{answer.weight_format} weights, {answer.kv_cache_dtype} KV cache) on [bold]{gpus}[/bold], {answer.engine}"
    )


def _fit_tables(answer: Fit) -> list[RenderableType]:
    verdict = "[green]fits[/green]" if answer.fits else f"[red]does not fit:[/red] {answer.reason}"
    return [f"{_headline(answer)}: {verdict}", _memory_table(answer), *_warnings(answer.warnings)]


def _memory_table(answer: Fit) -> Any:
    memory = answer.memory
    rows = [
        ("engine sees", _gib(memory.total_bytes), ""),
        ("may use", _gib(memory.usable_bytes), f"{memory.usable_bytes / memory.total_bytes:.0%}"),
        ("weights", _gib(memory.weights_bytes), ""),
        ("activations", _gib(memory.activations_bytes), "peak of a full step"),
        ("overhead", _gib(memory.overhead_bytes), "CUDA context, communication buffers, CUDA graphs"),
        (
            "KV cache",
            _gib(memory.kv_cache_bytes),
            f"{answer.kv_capacity_blocks:,} blocks of {answer.kv_block_tokens}",
        ),
        ("KV per token", f"{answer.kv_bytes_per_token / 1024:,.1f} KiB", "whole model"),
        ("KV capacity", f"{answer.kv_capacity_tokens:,} tokens", ""),
        ("longest request", f"{answer.max_context_tokens:,} tokens", "that fits alone"),
        ("concurrency", f"{answer.max_concurrency:,.2f}", f"requests of {answer.max_model_len:,} tokens"),
    ]
    if answer.smallest_tensor_parallel_size:
        rows.append(("smallest TP", str(answer.smallest_tensor_parallel_size), "that fits"))
    return _facts("Memory of one GPU", rows)


def _estimate_tables(answer: Estimate) -> list[RenderableType]:
    load = (
        f"{answer.batch_size} requests together"
        if answer.batch_size
        else f"{answer.concurrency} requests in flight, closed loop"
    )
    lengths = f"{answer.input_len:,} tokens in, {answer.output_len:,} out"
    intensity = answer.arithmetic_intensity
    rows = [
        ("TTFT", *_ms(answer.ttft_s)),
        ("TPOT", *(_ms(answer.tpot_s) if answer.tpot_s else ("-", "a single output token"))),
        ("E2E latency", *_seconds(answer.e2e_s)),
        ("output tokens/s", *_rate(answer.output_tokens_per_s)),
        ("  per GPU", *_rate(answer.output_tokens_per_s_per_gpu)),
        ("  per user", *_rate(answer.output_tokens_per_s_per_user)),
        ("requests/s", *_rate(answer.requests_per_s)),
        ("KV capacity", f"{answer.kv_capacity_tokens:,} tokens", f"{answer.kv_cache_dtype}"),
    ]
    if cost := answer.cost:
        rows += [
            (
                "cost",
                f"${cost.usd_per_hour:,.2f}/h",
                f"{cost.tier}, ${cost.usd_per_gpu_hour:.2f} per GPU-hour: {cost.source}",
            ),
            ("  month", f"${cost.usd_per_month:,.0f}", "730 h"),
            ("  1M input tokens", *_usd(answer.usd_per_million_input_tokens)),
            ("  1M output tokens", *_usd(answer.usd_per_million_output_tokens)),
            ("  request", f"${cost.usd_per_request:.6f}", ""),
        ]
    rows.append(
        (
            "energy",
            f"{answer.energy.joules_per_output_token:.2f} J/token",
            f"{answer.energy.watts_per_gpu:,.0f} W per GPU, all in",
        )
    )
    tables: list[RenderableType] = [
        f"{_headline(answer)}\n{load}, {lengths}; basis: {answer.basis}",
        _facts("Prediction" + (" (90 % interval)" if answer.ttft_s.low is not None else ""), rows),
    ]
    ridge = intensity.ridge_flops_per_byte
    tables.append(
        _step_table(
            f"A prefill step: {intensity.prefill_flops_per_byte:,.0f} FLOP/byte, ridge {ridge:,.0f}",
            answer.breakdown.prefill,
        )
    )
    if intensity.decode_flops_per_byte is not None:
        title = f"A decode step: {intensity.decode_flops_per_byte:,.0f} FLOP/byte, ridge {ridge:,.0f}"
        tables.append(_step_table(title, answer.breakdown.decode))
    return [*tables, *_warnings(answer.warnings)]


def _step_table(title: str, operators: Sequence[OperatorTime]) -> Any:
    table = _grid(
        title,
        ("operator", "left"),
        ("ms", "right"),
        ("share", "right"),
        ("GFLOP", "right"),
        ("MB", "right"),
        ("bound", "left"),
    )
    total = sum(op.seconds for op in operators)
    for op in operators:
        table.add_row(
            op.name,
            f"{op.seconds * 1e3:.3f}",
            f"{op.seconds / total:.0%}",
            f"{op.flops / 1e9:,.1f}",
            f"{op.bytes / 1e6:,.1f}",
            op.bound,
        )
    table.add_row("step", f"{total * 1e3:.3f}", "", "", "", "", style="bold")
    return table


def _attribution_tables(answer: Attribution) -> list[RenderableType]:
    load = f"batch of {answer.batch_size}" if answer.batch_size else f"closed loop of {answer.concurrency}"
    headline = (
        f"[bold]{answer.model.name}[/bold] on [bold]{answer.gpu.count} x {answer.gpu.name}[/bold], {answer.engine}, "
        f"{load}, {answer.input_len:,} tokens in, {answer.output_len:,} out"
    )
    share = _grid("Where the time goes", ("", "left"), ("prefill step", "right"), ("decode step", "right"))
    for bound in ("compute", "memory", "communication", "launch", "host"):
        decode = "-" if answer.decode is None else f"{getattr(answer.decode, bound):.0%}"
        share.add_row(bound, f"{getattr(answer.prefill, bound):.0%}", decode)
    help_table = _grid(
        "What would help", ("", "left"), *((name, "right") for name in ("TTFT", "TPOT", "$/token"))
    )
    for response in answer.responses:
        tpot = "-" if response.tpot is None else f"{response.tpot:+.1%}"
        cells = (f"{response.ttft:+.1%}", tpot, f"{response.cost_per_token:+.1%}")
        help_table.add_row(f"{response.change:+.0%} {response.resource}", *cells)
    steps = [_step_table("A prefill step", answer.breakdown.prefill)]
    if answer.breakdown.decode:
        steps.append(_step_table("A decode step", answer.breakdown.decode))
    return [headline, share, help_table, *steps, *_warnings(answer.warnings)]


LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2el"))


def _simulation_tables(answer: Simulation) -> list[RenderableType]:
    values = answer.to_dict()
    latency = _grid(
        "Latency, ms", ("", "left"), *((name, "right") for name in ("mean", "p50", "p90", "p95", "p99"))
    )
    for label, key in LATENCIES:
        cells = [values.get(f"{statistic}_{key}_ms") for statistic in ("mean", "p50", "p90", "p95", "p99")]
        latency.add_row(label, *("-" if cell is None else f"{cell:,.1f}" for cell in cells))
    rows = [
        ("requests", f"{values['completed']:,}", f"{values['failed']:,} failed"),
        ("duration", f"{values['duration']:,.1f} s", "simulated"),
        ("requests/s", f"{values['request_throughput']:,.2f}", ""),
        ("output tokens/s", f"{values['output_throughput']:,.0f}", ""),
        ("steps", f"{values['steps']:,}", f"mean batch {values['mean_batch_size']:.1f}"),
        ("KV use", f"{values['kv_utilization_mean']:.0%}", f"peak {values['kv_utilization_peak']:.0%}"),
        ("preemptions", f"{values['preemptions']:,}", ""),
        ("prefix cache hits", _share(values["prefix_cache_hit_fraction"]), "of prompt tokens"),
        *_tier_rows(answer),
    ]
    if ranks := values["data_parallel_requests"]:
        spread = f"in lock-step; {min(ranks):,} to {max(ranks):,} requests each"
        rows.append(("data-parallel ranks", str(len(ranks)), spread))
    if values.get("request_goodput") is not None:
        rows.insert(4, ("goodput", f"{values['request_goodput']:,.2f}", "requests/s that meet the SLO"))
    gpus = _replicas_text(values.get("replicas") or ()) or f"{answer.gpu.count} x {answer.gpu.name}"
    headline = f"[bold]{answer.model.name}[/bold] on [bold]{gpus}[/bold], {answer.engine}, {answer.workload}"
    ended = [] if values["status"] == "complete" else [f"[red]{values['status']}:[/red] {values['reason']}"]
    if values.get("replicas"):
        rows += _replica_rows(values)
    tables: list[RenderableType] = [headline, *ended, *_verdict(answer), _facts("Served", rows), latency]
    error = ", ".join(
        f"mean {name} {_between(found, 1, 1, ' ms')}"
        for name, found in (("TTFT", answer.mean_ttft_ms), ("TPOT", answer.mean_tpot_ms))
        if found is not None
    )
    if error:
        tables.append(f"90 % interval by the simulator's error against real servers: {error}")
    return [*tables, *_level_table(answer), *_warnings(answer.warnings)]


def _tier_rows(answer: Simulation) -> list[tuple[str, str, str]]:
    """Where KV went that left the GPU, and what came back."""
    prompts = max(1, int(answer.run.records.prompt_tokens.sum()))
    return [
        (
            f"{tier.name} hits" if tier.name != "swap" else "swapped back",
            _share(tier.hit_tokens / prompts) if tier.name != "swap" else f"{tier.loaded:,} blocks",
            f"{tier.loaded_bytes / 1e9:,.1f} GB in, {tier.stored_bytes / 1e9:,.1f} GB out, per GPU",
        )
        for tier in answer.run.kv_tiers
    ]


def _verdict(answer: Simulation) -> list[RenderableType]:
    if answer.verdict is None:
        return []
    colour = {"stable": "green", "overloaded": "red"}.get(answer.verdict.verdict, "yellow")
    return [f"[{colour}]{answer.verdict.verdict}[/{colour}]: {answer.verdict.reason}"]


def _replicas_text(replicas: Sequence[Mapping[str, Any]]) -> str:
    """What stands at the start of the run, where that is more than one engine: 2 replicas of 4 x h100."""
    found = Counter((each["role"], each["label"]) for each in replicas if not each["from_s"])
    if found.total() < 2:
        return ""
    return " + ".join(
        f"{count} {'' if role == 'both' else role + ' '}replica{'s' if count > 1 else ''} of {label}"
        for (role, label), count in found.items()
    )


def _replica_rows(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    roles: dict[str, list[Mapping[str, Any]]] = {}
    for replica in values["replicas"]:
        roles.setdefault(replica["role"], []).append(replica)
    rows = []
    for role, members in roles.items():
        router = values["decode_router"] if role == "decode" else values["router"]
        label = "replicas" if role == "both" else f"{role} replicas"
        shares = [each["requests"] for each in members]
        later = sum(each["from_s"] > 0 for each in members)
        failed = sum(each["ended"] == "failed" for each in members)
        changes = [f"{failed:,} lost"] * (failed > 0) + [f"{later:,} started later"] * (later > 0)
        text = "; ".join((router, *changes, f"{min(shares):,} to {max(shares):,} requests each"))
        rows.append((label, str(len(members) - later), text))
    if values["transfer_ms"]:
        mean, p99 = values["transfer_ms"]["mean"], values["transfer_ms"]["p99"]
        aborted = values["transfers"]["aborted"]
        more = f"; {aborted:,} aborted" if aborted else ""
        rows.append(("KV transfer", f"{mean:,.1f} ms", f"mean; p99 {p99:,.1f} ms{more}"))
    for name in ("rejected", "timed_out", "restarted", "lost"):
        if values[name]:
            rows.append((name.replace("_", " "), f"{values[name]:,}", "requests"))
    return rows


def _level_table(answer: Simulation) -> list[RenderableType]:
    """The steady part's percentiles with their intervals, and the service levels."""
    found: list[RenderableType] = []
    if answer.time_parts is not None:
        parts = list(answer.time_parts["mean_ms"])
        table = _grid("Where the time goes, ms", ("", "left"), *((name, "right") for name in parts))
        for label, key in (("all requests", "mean_ms"), ("slowest 5 %", "slowest_mean_ms")):
            table.add_row(label, *(f"{answer.time_parts[key][name]:,.1f}" for name in parts))
        found.append(table)
    if answer.step_bounds:
        bounds = [
            bound for bound in answer.step_bounds if bound.time_fraction >= 5e-4 or bound.steps_fraction
        ]
        table = _grid("What bounds the steps", ("", "left"), *((each.bound, "right") for each in bounds))
        table.add_row("share of busy time", *(f"{each.time_fraction:.1%}" for each in bounds))
        table.add_row("steps mostly so", *(f"{each.steps_fraction:.1%}" for each in bounds))
        found.append(table)
    if answer.verdict is not None and answer.verdict.verdict == "stable":
        names = ("p50", "p90", "p95", "p99")
        table = _grid("Steady part, ms (95 % interval)", ("", "left"), *((name, "right") for name in names))
        for label, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2el")):
            intervals = [answer.verdict.intervals_ms.get(f"{name}_{key}_ms") for name in names]
            table.add_row(label, *("-" if i is None else _range(i.low, i.high) for i in intervals))
        found.append(table)
        if any("?" in str(cell) for column in table.columns for cell in column.cells):
            found.append("?: this run is too short to tell that end")
    if answer.replications is not None:
        found.append(_replications_table(answer.replications))
    if answer.goodput is not None:
        good = answer.goodput
        table = _grid(
            "Goodput",
            ("", "left"),
            ("requests/s", "right"),
            ("attained", "right"),
            ("95 % interval", "right"),
        )
        for level in good.limits:
            table.add_row(
                level.slo, "", *_attained(level.attained_fraction, level.attained_low, level.attained_high)
            )
        rate = f"{good.requests_per_s:,.2f}"
        table.add_row("all", rate, *_attained(good.attained_fraction, good.attained_low, good.attained_high))
        found.append(table)
    if answer.slos:
        table = _grid(
            "Service levels",
            ("", "left"),
            ("value, ms", "right"),
            ("attained", "right"),
            ("95 % interval", "right"),
            ("", "left"),
        )
        for level in answer.slos:
            value = "-" if level.value_ms is None else f"{level.value_ms:,.1f}"
            attained = _attained(level.attained_fraction, level.attained_low, level.attained_high)
            table.add_row(
                level.slo, value, *attained, "[green]met[/green]" if level.met else "[red]unmet[/red]"
            )
        found.append(table)
    return found


def _replications_table(runs: Replications) -> Any:
    """Means over the runs, of each statistic, with their intervals."""
    names = ("mean", "p50", "p90", "p95", "p99")
    title = f"Mean of {len(runs.seeds)} runs, ms (95 % interval)"
    table = _grid(title, ("", "left"), *((name, "right") for name in names))
    for label, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2el")):
        intervals = [runs.metrics[f"{name}_{key}_ms"] for name in names]
        table.add_row(label, *("-" if i is None else _plus_minus(i) for i in intervals))
    return table


def _plus_minus(found: Interval) -> str:
    half = "?" if found.high is None else f"{found.high - found.value:,.1f}"
    return f"{found.value:,.1f} ± {half}"


def _attained(share: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    if share is None:
        return "-", ""
    ends = ("?" if end is None else f"{end:.2%}" for end in (low, high))
    return f"{share:.2%}", " to ".join(ends)


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "too few to tell"
    ends = ("?" if low is None else f"{low:,.1f}", "?" if high is None else f"{high:,.1f}")
    return " to ".join(ends)


def _warnings(warnings: Sequence[str]) -> list[RenderableType]:
    return [f"[yellow]note:[/yellow] {warning}" for warning in warnings]


# units


_gib = STANDARD.memory_text
_between, _ms, _seconds = between, time_and_interval, seconds_and_interval
_rate, _usd = rate_and_interval, usd_and_interval


def _share(value: float | None) -> str:
    return "off" if value is None else f"{value:.1%}"
