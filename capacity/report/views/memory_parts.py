"""The view of `fit`: whether a model fits, and what uses the memory of one GPU."""

from collections.abc import Iterator

from capacity.answers.grid import FitGrid, GridCell
from capacity.answers.records import Fit, StartUp
from capacity.report.display import STANDARD
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Fact, Facts, Stack, View, blocks_if_known, known_facts

PARTS = {
    "weights": "",
    "activations": "peak during a step with the most tokens",
    "overhead": "CUDA context, communication buffers, CUDA graphs",
}
YES, NO = "✓", "✗"


def model_headline(answer: Fit) -> str:
    """Return model, formats, GPUs and engine in one line."""
    gpus = f"{answer.gpu.count} x {answer.gpu.name}".removeprefix("1 x ")
    return (
        f"[bold]{answer.model.name}[/bold] ({answer.model.total_params / 1e9:.1f} B parameters, "
        f"{answer.weight_format} weights, {answer.kv_cache_dtype} KV cache) on [bold]{gpus}[/bold], {answer.engine}"
    )


def fit_view(answer: Fit) -> View:
    """Return whether the model fits, and what uses the memory of one GPU."""
    facts = Facts("Memory of one GPU", fit_facts(answer))
    return View(f"{model_headline(answer)}: {_verdict(answer)}", [facts, memory_chart(answer)])


def _verdict(answer: Fit) -> str:
    if answer.fits:
        return "[green]fits[/green]"
    if answer.memory.kv_cache_bytes and answer.max_context_tokens:
        return (
            f"[red]does not fit[/red] with requests of {answer.max_model_len:,} tokens, "
            f"[green]fits up to {answer.max_context_tokens:,} tokens[/green]: {answer.reason}"
        )
    return f"[red]does not fit:[/red] {answer.reason}"


def fit_facts(answer: Fit) -> list[Fact]:
    """Return the memory of one GPU by use, and the requests and tokens that fit."""
    memory, longest = answer.memory, answer.max_context_tokens
    concurrency = f"requests of {answer.max_model_len:,} tokens"
    rows = [
        Fact("visible to engine", memory.total_bytes, units.MEMORY),
        Fact("usable", memory.usable_bytes, units.MEMORY, f"{memory.usable_bytes / memory.total_bytes:.0%}"),
        *(Fact(name, getattr(memory, f"{name}_bytes"), units.MEMORY, note) for name, note in PARTS.items()),
        *_kv_facts(answer),
        Fact(
            "longest request", longest, units.NUM_TOKENS, "if no other request runs", first="Longest request"
        ),
        Fact("concurrency", answer.max_concurrency, units.TIMES, concurrency, first="Concurrency"),
    ]
    if not answer.fits and longest:
        rows.append(Fact("", "", note=f"below 1: only a context of up to {longest:,} tokens fits"))
    smallest = Fact(
        "smallest TP", answer.smallest_tensor_parallel_size, note="that fits", first="Smallest TP"
    )
    return [*rows, *known_facts([smallest]), *blocks_if_known(_startup_facts, answer.startup)]


def _startup_facts(startup: StartUp) -> list[Fact]:
    total, weights = startup.total_s, startup.parts_s["weights"].value
    rate = f"{startup.weights_gb_per_s:.1f} GB/s per GPU"
    note = f"{STANDARD.time_interval(total)} (90 %); weights {weights:,.0f} s at {rate}"
    return [Fact("start-up", total, units.BARE_LATENCY, note)]


def _kv_facts(answer: Fit) -> Iterator[Fact]:
    """Return the size and capacity of the KV cache; for a model without a KV cache, the free memory."""
    left = answer.memory.kv_cache_bytes
    kept = (
        answer.kv_bytes_per_token,
        answer.kv_window_bytes_per_token,
        answer.linear_state_bytes_per_request,
    )
    if not any(kept):
        yield Fact("free", left, units.MEMORY, "no KV cache: the model only processes prompts")
        return
    blocks = f"{answer.kv_capacity_blocks:,} blocks of {answer.kv_block_tokens}"
    yield Fact("KV cache", left, units.MEMORY, blocks, first="KV cache")
    yield Fact("KV per token", answer.kv_bytes_per_token, Unit(1, 1 / 1024, " KiB"), "whole model")
    yield Fact("KV capacity", answer.kv_capacity_tokens, units.NUM_TOKENS, first="KV capacity")


def memory_chart(answer: Fit) -> Stack:
    """Return the chart of one GPU's memory as a stacked bar, with marks at the visible and the usable memory."""
    memory, name = answer.memory, answer.gpu.name
    parts = {part: getattr(memory, f"{part}_bytes") for part in PARTS} | {"KV cache": memory.kv_cache_bytes}
    sizes = ", ".join(f"{part} {STANDARD.memory_text(size)}" for part, size in parts.items())
    verdict = "The model fits" if answer.fits else "The model does not fit"
    return Stack(
        name="memory",
        title=f"Memory of one {name}",
        alt=f"{verdict}: {sizes}; the engine may use {STANDARD.memory_text(memory.usable_bytes)}.",
        data={part: {name: size} for part, size in parts.items()},
        unit=units.GIB,
        labels="GPU",
        axis="{memory} on one GPU",
        marks={"usable": memory.usable_bytes, "visible to engine": memory.total_bytes},
    )


def grid_rows(grid: FitGrid) -> list[dict[str, str]]:
    """Return a row per GPU type: for each TP size `cell_text`, then the reasons why the model does not fit."""
    rows: dict[str, dict[str, str]] = {}
    reasons: dict[str, list[str]] = {}
    for cell in grid.cells:
        rows.setdefault(cell.gpu, {"GPU": cell.gpu})[f"TP {cell.tensor_parallel_size}"] = cell_text(cell)
        if cell.reason is not None:
            reasons.setdefault(cell.gpu, []).append(f"TP {cell.tensor_parallel_size}: {cell.reason}")
    return [{**row, "why not": " ".join(reasons.get(gpu, []))} for gpu, row in rows.items()]


def cell_text(cell: GridCell) -> str:
    """Return `✓ 3.2` (3.2 concurrent requests of maximum length fit), or `✗` if the model does not fit."""
    return NO if cell.max_concurrency is None else f"{YES} {cell.max_concurrency:,.1f}"
