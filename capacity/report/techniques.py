"""The techniques' answers as tables for people; JSON and CSV are the records themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capacity.base.rows import flattened, to_csv
from capacity.report.tables import GIB, _grid, _text

Cell = Callable[[Mapping[str, Any]], str]
Columns = Sequence[tuple[str, Cell]]
PROSE = ("remark", "published quality", "weights", "KV cache", "calibration")


def render_answer(answer: Mapping[str, Any], format: str) -> str:
    """An answer of `capacity.techniques` in `format`: table, json or csv (its rows)."""
    if format == "json":
        return json.dumps(answer, indent=2, allow_nan=False)
    if format == "csv":
        return to_csv([flattened(row) for row in answer["rows"]])
    name = str(answer["schema"]).split("/")[1]
    return _text(TABLES[name](answer))


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Columns) -> Any:
    """A table of records: the first column and those of prose to the left, numbers to the right."""
    sides = ("left" if i == 0 or heading in PROSE else "right" for i, (heading, _) in enumerate(columns))
    grid = _grid(title, *((heading, side) for (heading, _), side in zip(columns, sides, strict=True)))
    grid.columns[0].no_wrap = True
    for row in rows:
        grid.add_row(*(cell(row) for _, cell in columns))
    return grid


def number(key: str, scale: float = 1.0, digits: int = 2) -> Cell:
    """A number of the record in another unit; "-" where it is None."""
    return lambda row: "-" if row[key] is None else f"{row[key] * scale:,.{digits}f}"


def text(key: str) -> Cell:
    """Whatever the record says, as text."""
    return lambda row: str(row[key])


def percent(key: str, digits: int = 1) -> Cell:
    """A fraction as %."""
    return lambda row: "-" if row[key] is None else f"{row[key]:.{digits}%}"


def tokens(count: int | None) -> str:
    """4096 as 4K, 1048576 as 1M; None: no limit."""
    if count is None:
        return "no limit"
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count:,}"


def _headline(answer: Mapping[str, Any]) -> str:
    gpu = answer["gpu"]
    return (
        f"[bold]{answer['model']}[/bold] on [bold]{gpu['count']} x {gpu['name']}[/bold], {answer['engine']}"
    )


def _notes(answer: Mapping[str, Any]) -> list[str]:
    return [f"[yellow]note:[/yellow] {warning}" for warning in answer.get("warnings", ())]


def _quantize(answer: Mapping[str, Any]) -> list[Any]:
    def large(row: Mapping[str, Any]) -> str:
        return number("tpot_large_s", 1e3)(row)

    columns: list[tuple[str, Cell]] = [
        ("method", lambda row: row["method"] + ("" if row["engine_loads"] else " †")),
        ("bits", number("bits_per_weight", 1, 3)),
        ("GB", number("weights_bytes", 1e-9, 2)),
        ("compute", lambda row: row["compute"] + ("" if row["native"] else " *")),
        ("max batch", lambda row: f"{row['max_batch']:,}"),
        ("TTFT ms", number("ttft_s", 1e3, 1)),
        ("TPOT ms b=1", number("tpot_small_s", 1e3)),
        (f"b={answer['large_batch']}", large),
        ("pays below", _pays_below),
    ]
    if answer["price"] is not None:
        columns.append(("$/1M tokens", number("usd_per_million_tokens", 1, 3)))
    rows = answer["rows"]
    title = f"{answer['input_len']:,} tokens in, {answer['output_len']:,} out; * dequantized to 16 bit here"
    if not all(row["engine_loads"] for row in rows):
        title += f"; † not loaded by {answer['engine']}"
    quality = table(
        "Quality, from 16 bit to quantized",
        [row for row in rows if row["quality"] or row["note"]],
        [
            ("method", text("method")),
            ("published quality", lambda row: "; ".join(row["quality"]) or "none published"),
            ("remark", text("note")),
        ],
    )
    kernels = table(
        "Kernels and calibration",
        rows,
        [
            ("method", text("method")),
            ("kernel", text("kernel")),
            ("of its roof", percent("kernel_roof_fraction", 0)),
            ("native from", _capability),
            ("calibration", text("calibration")),
        ],
    )
    refused = [f"{row['method']}: {row['reason']}" for row in rows if row["reason"]]
    return [_headline(answer), table(title, rows, columns), kernels, quality, *refused, *_notes(answer)]


def _capability(row: Mapping[str, Any]) -> str:
    """NVIDIA's compute capability that multiplies in the format."""
    return f"sm_{row['min_compute_capability'] * 10:.0f}" if row["min_compute_capability"] else "any"


def _pays_below(row: Mapping[str, Any]) -> str:
    """The batch from which a decode step is no faster than at 16 bit."""
    if row["tpot_small_s"] is None or row["kind"] not in ("weight-only", "weights and activations"):
        return "-"
    return "any" if row["pays_below_batch"] is None else f"b={row['pays_below_batch']:,}"


def _speculate(answer: Mapping[str, Any]) -> list[Any]:
    source = answer["acceptance_source"]
    batch = answer["break_even_batch"]
    rates = ", ".join(f"{rate:.2f}" for rate in answer["acceptance"])
    memory, ttft = answer["memory"], answer["ttft_s"]
    lines = [
        f"{_headline(answer)}: {answer['method']}, {_drafts(answer['draft_tokens'], answer['verified_tokens'])}, "
        f"{answer['context_tokens']:,} tokens of context",
        f"acceptance by position {rates} ({source['basis']}: {source['text']})",
    ]
    simulated: list[tuple[str, Cell]] = [("simulated", number("simulated_speedup"))]
    rounds = table(
        "One round against plain decode steps",
        answer["rows"],
        [
            ("batch", lambda row: f"{row['batch_size']:,}"),
            ("tokens/round", number("tokens_per_round")),
            ("draft ms", number("draft_s", 1e3)),
            ("verify ms", number("verify_s", 1e3)),
            ("plain ms", number("plain_step_s", 1e3)),
            ("speed-up", number("speedup")),
            *(simulated if answer["rows"][0]["simulated_speedup"] is not None else []),
            ("textbook", number("textbook_speedup")),
            (
                "best k",
                lambda row: _drafts(row["best_draft_tokens"], row["best_verified_tokens"], short=True),
            ),
            ("speed-up", number("best_speedup")),
        ],
    )
    after = [
        "stops paying at a batch of " + (f"{batch:,}" if batch is not None else "more than 16,384"),
        f"draft weights {memory['draft_weights_bytes'] / GIB:.2f} GiB; KV capacity "
        f"{memory['kv_capacity_tokens_before']:,} to {memory['kv_capacity_tokens_after']:,} tokens; "
        f"TTFT {ttft['plain'] * 1e3:.1f} to {ttft['with_draft'] * 1e3:.1f} ms without queueing",
    ]
    return [*lines, rounds, *after, *_notes(answer)]


def _drafts(depth: int, nodes: int, *, short: bool = False) -> str:
    """A chain by its length, a tree by its size and depth."""
    if short:
        return f"{depth}" if nodes == depth else f"{depth} ({nodes})"
    return f"{depth} draft tokens" if nodes == depth else f"a tree of {nodes} drafts, {depth} deep"


def _speculators(answer: Mapping[str, Any]) -> list[Any]:
    columns: list[tuple[str, Cell]] = [
        ("method", text("method")),
        ("depth", text("draft_tokens")),
        ("tree", lambda row: "-" if row["tree_tokens"] is None else str(row["tree_tokens"])),
        ("tokens/round", number("tokens_per_round")),
        ("remark", lambda row: f"{row['acceptance_model']}: {row['source']} ({row['date']}, {row['basis']})"),
    ]
    return [table("Ways to draft, with published acceptance", answer["rows"], columns)]


def _textbook(answer: Mapping[str, Any]) -> list[Any]:
    columns: list[tuple[str, Cell]] = [
        ("quantity", text("quantity")),
        ("acceptance", number("acceptance")),
        ("K", text("draft_tokens")),
        ("published", number("published")),
        ("formula", number("formula")),
        ("remark", lambda row: "agrees" if row["agrees"] else row["explained_by"]),
    ]
    return [table("A published table beside (1 - a^(K+1))/(1 - a)", answer["rows"], columns)]


def _kv(answer: Mapping[str, Any]) -> list[Any]:
    def at(context: int) -> Cell:
        return lambda row: f"{row['request_bytes'][str(context)] / GIB:,.2f}"

    def held(gpu: str) -> Cell:
        return lambda row: f"{row['gpu_context_tokens'][gpu]:,}" if row["gpu_context_tokens"][gpu] else "none"

    def kind(key: str) -> Cell:
        return lambda row: f"{row['kinds'][key] / 1024:,.1f}"

    rows = answer["rows"]
    columns: list[tuple[str, Cell]] = [
        ("model", text("model")),
        ("attention", text("attention")),
        ("KiB/token", number("bytes_per_token", 1 / 1024, 1)),
        *((f"GiB at {tokens(context)}", at(context)) for context in answer["contexts"]),
        *((f"{gpu} holds", held(gpu)) for gpu in answer["gpus"]),
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
    parts = [table("KV cache of one request", rows, columns), kinds]
    if answer["limited"]:
        parts.append(_limited_table(answer))
    if answer["long_contexts"]:
        parts += _long_context_parts(answer["long_contexts"])
    return parts


def _limited_table(answer: Mapping[str, Any]) -> Any:
    def way(index: int) -> Cell:
        return lambda row: f"{row['ways'][index]['kv_bytes'] / GIB:,.2f}"

    def share(index: int) -> Cell:
        return lambda row: f"{row['ways'][index]['pair_fraction']:.1%}"

    names = [way["name"] for way in answer["limited"][0]["ways"]]
    columns: list[tuple[str, Cell]] = [
        ("model", text("model")),
        ("tokens", lambda row: tokens(row["context_tokens"])),
        *((f"{name}, GiB", way(index)) for index, name in enumerate(names)),
        *((f"{name}, prefill", share(index)) for index, name in enumerate(names) if index),
    ]
    title = (
        f"If every layer forgot: a window of {answer['window_tokens']:,} tokens, {answer['sink_tokens']} sinks; "
        "prefill: query x key pairs over all"
    )
    return table(title, answer["limited"], columns)


def _long_context_parts(found: Sequence[Mapping[str, Any]]) -> list[Any]:
    def offload(row: Mapping[str, Any]) -> str:
        prefix = row["offload"]
        if prefix is None:
            return "-"
        return f"{prefix['load_s'] * 1e3:,.1f} / {prefix['recompute_s'] * 1e3:,.1f}"

    def prefill(row: Mapping[str, Any]) -> str:
        return ", ".join(f"{over['seconds']:,.1f}" for over in row["prefill"]) or "-"

    asked = next((row["offload"]["tokens"] for row in found if row["offload"]), 0)
    columns: list[tuple[str, Cell]] = [
        ("model", text("model")),
        ("GPU", text("gpu")),
        ("holds", number("held_tokens", 1, 0)),
        ("attention half of decode at", number("decode_crossover_tokens", 1, 0)),
        (f"{tokens(asked)} from CPU / again, ms", offload),
        ("prefill of all it holds on 1, 2, 4, 8 ranks, s", prefill),
    ]
    title = f"Long contexts; decode at a batch of {found[0]['batch_size']}"
    grown = [row for row in found if row["growth"]]
    points = [point["context_tokens"] for point in grown[0]["growth"]] if grown else []

    def share(index: int) -> Cell:
        return lambda row: (
            f"{row['growth'][index]['step_s'] * 1e3:,.1f} ({row['growth'][index]['attention_share']:.0%})"
        )

    growth: list[tuple[str, Cell]] = [
        ("model", text("model")),
        ("GPU", text("gpu")),
        *((f"at {tokens(context)}", share(index)) for index, context in enumerate(points)),
    ]
    reasons = [f"{row['model']} on {row['gpu']}: {row['reason']}" for row in found if row["reason"]]
    more = (
        [table("A decode step, ms (attention's share), if memory were no limit", grown, growth)]
        if grown
        else []
    )
    return [table(title, found, columns), *more, *reasons]


def _cache_curve(answer: Mapping[str, Any]) -> list[Any]:
    curve = table(
        f"LRU of blocks of {answer['block_tokens']}",
        answer["rows"],
        [
            ("cache, tokens", lambda row: tokens(row["capacity_tokens"])),
            ("blocks hit", percent("block_hit_fraction")),
            ("tokens hit", percent("token_hit_fraction")),
        ],
    )
    headline = f"[bold]{answer['workload']}[/bold]: {answer['requests']:,} requests, one after another"
    parts: list[Any] = [headline, curve, f"no more to gain beyond {answer['knee_tokens']:,} tokens"]
    if answer["routing"]:
        columns = [
            ("routing", text("routing")),
            ("tokens hit", percent("token_hit_fraction")),
            ("busiest replica prefills", percent("largest_share")),
        ]
        title = f"{answer['routing'][0]['replicas']} replicas, each with the largest cache above"
        parts.append(table(title, answer["routing"], columns))
    if saved := answer["savings"]:
        parts.append(
            f"a KV cache of {saved['capacity_tokens']:,} tokens hits {saved['token_hit_fraction']:.1%}: prefill "
            f"of a request {saved['mean_prefill_s'] * 1e3:,.0f} to {saved['mean_prefill_cached_s'] * 1e3:,.0f} ms on "
            f"average, {saved['saved_fraction']:.1%} of prefill time and its cost saved{_input_cost(saved)}"
        )
    plans = table(
        "Providers' caches: input bill",
        answer["plans"],
        [
            ("plan", text("plan")),
            ("hit in time", percent("hit_fraction")),
            ("bill", percent("relative_cost")),
            ("pays from", percent("break_even_hit_fraction")),
            ("or reuses", number("break_even_reuses")),
        ],
    )
    return [*parts, plans, *_notes(answer)]


def _input_cost(saved: Mapping[str, Any]) -> str:
    if saved["usd_per_million_input_tokens"] is None:
        return ""
    return (
        f": ${saved['usd_per_million_input_tokens']:.3f} to "
        f"${saved['usd_per_million_input_tokens_cached']:.3f} for 1M input tokens"
    )


def _engines(answer: Mapping[str, Any]) -> list[Any]:
    def yes(key: str) -> Cell:
        return lambda row: "yes" if row[key] else "no"

    columns: list[tuple[str, Cell]] = [
        ("engine", text("engine")),
        ("policy", lambda row: row["policy"] + ("" if row["simulated"] else " *")),
        ("paged", yes("paged")),
        ("chunked", yes("chunked_prefill")),
        ("cache", yes("prefix_caching")),
        ("async", yes("async_scheduling")),
        ("seqs", lambda row: f"{row['max_num_seqs']:,}"),
        ("tokens", lambda row: f"{row['max_num_batched_tokens']:,}"),
        ("memory", percent("gpu_memory_utilization", 0)),
        ("host ms", number("host_step_s", 1e3)),
        ("sourced", percent("sourced_fraction", 0)),
    ]
    formats: list[tuple[str, Cell]] = [
        ("engine", text("engine")),
        ("drafts simulated", yes("drafts")),
        ("weights", lambda row: ", ".join(row["weight_formats"])),
        ("KV cache", lambda row: ", ".join(("16-bit", *row["kv_cache_formats"]))),
    ]
    parts: list[Any] = [
        table(f"Engines and their defaults on {answer['gpu']} (* not simulated)", answer["rows"], columns),
        table("Formats that they load: others are refused", answer["rows"], formats),
    ]
    if answer["claims"]:
        claims: list[tuple[str, Cell]] = [
            ("claim", text("name")),
            ("published", lambda row: f"{row['published']:g} {row['unit']}"),
            ("ours", number("ours", 1, 1)),
            ("bound", number("bound", 1, 1)),
            ("possible", yes("possible")),
            ("remark", text("note")),
        ]
        parts.append(table("Published single-stream claims on A100", answer["claims"], claims))
    return parts


def _scale(answer: Mapping[str, Any]) -> list[Any]:
    columns: list[tuple[str, Cell]] = [
        ("GPUs", text("num_gpus")),
        ("max batch", lambda row: f"{row['max_batch']:,}"),
        ("TTFT ms", number("ttft_s", 1e3, 1)),
        ("TPOT ms", number("tpot_s", 1e3)),
        ("speed-up", number("speedup")),
        ("tokens/s/GPU", number("output_tokens_per_s_per_gpu", 1, 0)),
        ("efficient", percent("efficiency", 0)),
        ("links", percent("communication_share", 0)),
        *_axis_columns(answer["axis"]),
        ("$/1M tokens", number("usd_per_million_tokens", 1, 3)),
    ]
    rows = answer["rows"]
    title = f"{answer['axis']} parallelism, {answer['concurrency']} requests in flight"
    parts: list[Any] = [_headline(answer), table(title, rows, columns)]
    parts += [f"{row['num_gpus']} GPUs: {row['reason']}" for row in rows if row["reason"]]
    if answer["tpot_limit_s"] is not None:
        found = answer["cheapest_num_gpus"]
        verdict = "no layout" if found is None else f"{found} GPUs"
        parts.append(f"cheapest with a TPOT of {answer['tpot_limit_s'] * 1e3:g} ms: {verdict}")
    if answer["context_parallel"]:
        ranks: list[tuple[str, Cell]] = [
            ("ranks", text("ranks")),
            ("prefill ms", number("seconds", 1e3, 1)),
            ("ring not hidden ms", number("exposed_communication_s", 1e3, 2)),
            ("efficiency", percent("efficiency", 0)),
        ]
        title = f"Context parallelism: one prompt of {answer['input_len']:,} tokens over several such groups"
        parts.append(table(title, answer["context_parallel"], ranks))
    return [*parts, *_notes(answer)]


def _axis_columns(axis: str) -> list[tuple[str, Cell]]:
    """What is particular to an axis of parallelism."""
    own: dict[str, list[tuple[str, Cell]]] = {
        "tensor": [("MB/token sent", number("all_reduce_bytes_per_token", 1e-6))],
        "pipeline": [
            ("prefill bubble", percent("bubble_fraction", 0)),
            ("decode idle", percent("idle_fraction", 0)),
        ],
        "expert": [
            ("busiest GPU x", number("expert_imbalance")),
            ("experts read", number("experts_read", 1, 0)),
        ],
        "data": [
            ("busiest GPU x", number("expert_imbalance")),
            ("experts read", number("experts_read", 1, 0)),
        ],
    }
    return own[axis]


def _attention_io(answer: Mapping[str, Any]) -> list[Any]:
    columns: list[tuple[str, Cell]] = [
        ("tokens", lambda row: tokens(row["tokens"])),
        ("naive GB", number("naive_bytes", 1e-9, 1)),
        ("tiled GB", number("tiled_bytes", 1e-9, 1)),
        ("ratio", number("traffic_ratio", 1, 1)),
        ("naive scores GiB", number("naive_extra_bytes", 1 / GIB)),
        ("naive ms", number("naive_seconds", 1e3)),
        ("tiled ms", number("tiled_seconds", 1e3)),
        ("kernel ms", number("kernel_seconds", 1e3)),
    ]
    title = f"Prefill attention of one prompt, all layers; {answer['on_chip_bytes'] // 1024} KiB on chip"
    return [_headline(answer), table(title, answer["rows"], columns), *_notes(answer)]


def _batching(answer: Mapping[str, Any]) -> list[Any]:
    columns: list[tuple[str, Cell]] = [
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
    spread: list[tuple[str, Cell]] = [
        ("coefficient of variation", number("coefficient_of_variation")),
        ("wasted slots", percent("slot_waste_fraction", 0)),
        ("at most", number("gain_bound")),
        ("simulated", number("simulated_gain")),
    ]
    closed_form = (
        f"by the lengths alone: a static batch of {answer['batch_size']:,} wastes {answer['slot_waste_fraction']:.0%} "
        f"of its decode slots and {answer['padding_waste_fraction']:.0%} of its prefill on padding; continuous "
        f"batching gains at most {answer['gain_bound']:.2f} times; reserving {answer['max_model_len']:,} tokens a "
        f"request leaves {answer['contiguous_kv_waste_fraction']:.0%} of the KV empty at its end, blocks "
        f"{answer['paged_kv_waste_fraction']:.1%}"
    )
    headline = f"{_headline(answer)}, {answer['workload']}, {answer['requests']:,} requests"
    parts = [headline, table("The same arrivals, and what each wastes", answer["rows"], columns), closed_form]
    if answer["spread"]:
        size = answer["spread"][0]["batch_size"]
        title = f'"2 to 5 times": continuous over static by the spread of output lengths, batch {size}'
        parts.append(table(title, answer["spread"], spread))
    return [*parts, *_notes(answer)]


TABLES: dict[str, Callable[[Mapping[str, Any]], list[Any]]] = {
    "quantize": _quantize,
    "speculate": _speculate,
    "textbook": _textbook,
    "speculators": _speculators,
    "kv": _kv,
    "cache-curve": _cache_curve,
    "engines": _engines,
    "scale": _scale,
    "attention-io": _attention_io,
    "batching": _batching,
}
