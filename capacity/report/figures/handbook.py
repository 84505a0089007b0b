"""Charts of the handbook for any model and GPU. Each chart function takes a resolved pool and returns SVG text."""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.output_files import write_file
from capacity.deployment import Pool
from capacity.pool.drafting import Speculation, find_speculator
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.figures.chart import apply_layout, colour, log_axis, new_figure, symbol
from capacity.report.figures.picture import draw_picture
from capacity.report.layout import GIB, token_count_text
from capacity.report.views.units import read_columns
from capacity.step import decode_shape
from capacity.techniques.attention_io import naive_attention, shared_memory_bytes, tiled_attention
from capacity.techniques.batch_waste import exponential_slot_gain, slot_gain
from capacity.techniques.kv_bytes import request_kv_bytes
from capacity.techniques.prefix_cache import reuse_curve
from capacity.techniques.quantization_methods import find_method
from capacity.techniques.scaling import scaling_curve
from capacity.workload import FixedLengths, SteadyArrivals, ThinkTime, conversations

POWERS_OF_TWO = tuple(2**power for power in range(21))
BATCHES = POWERS_OF_TWO[:11]
CONTEXT = 1024


Lines = Mapping[str, Sequence[tuple[float, float]]]
"""A dict from the name of each line to its points (x, y), sorted by x."""


def line_chart(
    title: str, lines: Lines, *, x_label: str, y_label: str, log_x: bool = True, log_y: bool = False
) -> str:
    """Draw lines over common axes as SVG; a logarithmic x axis has ticks at powers of 2, a linear y axis begins at 0.

    Raises InvalidInput if there are no points, or for values that are not finite or not above 0 on a logarithmic axis.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise InvalidInput(f"the chart {title!r} has no points")
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)) or (log_x and x <= 0) or (log_y and y <= 0):
            raise InvalidInput(f"the chart {title!r} cannot draw the point ({x}, {y})")
    figure = new_figure()
    for index, (name, line) in enumerate(lines.items()):
        look = {"marker": {"symbol": symbol(index), "size": 6}, "line": {"color": colour(index)}}
        figure.add_scatter(
            **read_columns(line, x="0", y="1"), name=name, mode="lines+markers" if log_x else "lines", **look
        )
    apply_layout(figure, x=x_label, y=y_label)
    if log_x:
        powers = range(math.floor(math.log2(min(points)[0])), math.ceil(math.log2(max(points)[0])) + 1)
        ticks = [2.0**power for power in powers[:: math.ceil(len(powers) / 12)]]
        figure.update_xaxes(
            type="log",
            tickvals=ticks,
            ticktext=[token_count_text(int(tick)) if tick >= 1 else f"{tick:g}" for tick in ticks],
        )
    figure.update_yaxes(log_axis([y for _, y in points]) if log_y else {"rangemode": "tozero"})
    return draw_picture(figure, "svg", title=title).decode()


def quantization_chart(pool: ResolvedPool) -> str:
    """Return the chart of TPOT by batch size, one line each for 16 bit, FP8 and 4-bit weight-only quantization."""
    return _decode_steps(
        pool, {name: find_method(name).apply(pool) for name in ("bf16", "fp8-tensor", "awq-int4")}
    )


def _decode_steps(pool: ResolvedPool, pools: Mapping[str, ResolvedPool]) -> str:
    """Return the chart of decode step time (ms) by batch size, one line for each of `pools`."""
    lines = {}
    for name, each in pools.items():
        steps = each.step_model
        lines[name] = [(batch, steps.step_seconds(decode_shape(batch, CONTEXT)) * 1e3) for batch in BATCHES]
    title = f"{pool.model.name} on {pool.profile.name}: a decode step"
    return line_chart(title, lines, x_label="batch", y_label="ms", log_y=True)


def speculation_chart(pool: ResolvedPool) -> str:
    """Return the chart of speed-up by batch size, for chains of 1 to 7 draft tokens and a tree of 25 draft tokens."""
    speculation = Speculation(pool, find_speculator("eagle-tree").with_acceptance("0.7"))
    drafts = {f"chain of {k}": (k, k) for k in (1, 3, 5, 7)} | {"tree of 25, 5 deep": (5, 25)}
    lines = {
        name: [(b, speculation.round_of(b, CONTEXT, depth, nodes).speedup) for b in BATCHES]
        for name, (depth, nodes) in drafts.items()
    }
    title = f"{pool.model.name} on {pool.profile.name}: drafts, acceptance 0.7"
    return line_chart(title, lines, x_label="batch", y_label="speed-up")


def kv_chart(pool: ResolvedPool) -> str:
    """Return the chart of the KV cache size of one request by context length, one line for each cache format."""
    contexts = POWERS_OF_TWO[10:]
    lines = {
        dtype: [(n, request_kv_bytes(pool.model, n, dtype) / GIB) for n in contexts]
        for dtype in ("bf16", "fp8", "int4")
    }
    title = f"{pool.model.name}: KV cache of one request"
    return line_chart(title, lines, x_label="tokens", y_label="GiB", log_y=True)


def attention_chart(pool: ResolvedPool) -> str:
    """Return a chart of one attention head's HBM traffic against the number of tokens, naive and tiled."""
    on_chip = shared_memory_bytes(pool.profile)
    tokens = POWERS_OF_TWO[9:18]
    lines = {
        "naive": [(n, naive_attention(n, 128).hbm_bytes / 1e9) for n in tokens],
        "tiled": [(n, tiled_attention(n, 128, on_chip_bytes=on_chip).hbm_bytes / 1e9) for n in tokens],
    }
    title = "Attention head of dimension 128, 16 bit"
    return line_chart(title, lines, x_label="tokens", y_label="GB of HBM traffic", log_y=True)


def cache_chart(pool: ResolvedPool) -> str:  # noqa: ARG001
    """Return the chart of the prefix cache hit rate by cache size, for generated conversations."""
    workload = conversations(
        num_sessions=200,
        arrivals=SteadyArrivals(1.0),
        turns=FixedLengths(6),
        user_tokens=FixedLengths(200),
        output=FixedLengths(200),
        think_time=ThinkTime(mean_s=30.0),
        system_prompt_tokens=500,
        seed=0,
    )
    curve = reuse_curve(workload, 16, as_engine=True)
    sizes = POWERS_OF_TWO[11:]
    lines = {"LRU": [(size, 100 * curve.token_hit_fraction(size // 16)) for size in sizes]}
    return line_chart("Conversations of six turns", lines, x_label="cache, tokens", y_label="% hit")


def batching_chart(pool: ResolvedPool) -> str:  # noqa: ARG001
    """Return the chart of how many times fewer decode steps continuous batching takes than static batching, by batch
    size, with one line for each distribution of output lengths."""
    uniform = np.arange(1, 400)
    batches = POWERS_OF_TWO[:9]
    lines = {
        "exponential": [(b, exponential_slot_gain(b)) for b in batches],
        "uniform": [(b, slot_gain(uniform, b)) for b in batches],
        "equal": [(b, 1.0) for b in batches],
    }
    return line_chart("Continuous vs. static batching", lines, x_label="batch", y_label="times fewer steps")


def scaling_chart(pool: ResolvedPool) -> str:
    """Return the chart of TPOT speed-up and efficiency by tensor-parallel size."""
    curve = scaling_curve(pool, input_len=1024, output_len=256, concurrency=32)
    fitting = [layout for layout in curve if layout.speedup is not None]
    if not fitting:
        raise InvalidInput(f"{pool.model.name} does not fit on up to 8 {pool.profile.name}")
    lines = {
        "speed-up of TPOT": list(map(attrgetter("num_gpus", "speedup"), fitting)),
        "efficiency": list(map(attrgetter("num_gpus", "efficiency"), fitting)),
    }
    title = f"{pool.model.name} on {pool.profile.name}, 32 in flight"
    return line_chart(title, lines, x_label="GPUs", y_label="relative to the fewest GPUs")


def engines_chart(pool: ResolvedPool) -> str:
    """Return the chart of decode step time by batch size, one line for each engine."""
    names = ("vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "hf-transformers")
    gpu = pool.pool.gpu
    return _decode_steps(pool, {name: resolve(pool.model, Pool(gpu=gpu, engine=name)) for name in names})


CHARTS: dict[str, Callable[[ResolvedPool], str]] = {
    "quantization": quantization_chart,
    "speculative-decoding": speculation_chart,
    "kv-cache": kv_chart,
    "flash-attention": attention_chart,
    "prefix-caching": cache_chart,
    "batching": batching_chart,
    "parallelism": scaling_chart,
    "engines": engines_chart,
}


def write_charts(pool: ResolvedPool, folder: str | Path) -> tuple[Path, ...]:
    """Write every chart as an SVG file into `folder`, created if missing. Raises InvalidInput on failure."""
    written = []
    for name, chart in CHARTS.items():
        path = Path(folder) / f"{name}.svg"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
        write_file(path, chart(pool))
        written.append(path)
    return tuple(written)
