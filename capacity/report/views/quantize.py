"""The view of `quantize`: memory, latency, cost, kernels and published quality of each quantization method."""

from collections.abc import Iterator, Sequence

from capacity.report.display import phrase, with_relative_interval
from capacity.report.views import units
from capacity.report.views.units import Unit, join_names, mark_unless, time_with_interval
from capacity.report.views.view import Bars, Block, Column, Fact, Table, View, headline
from capacity.techniques.quantize import Quantizations, QuantizedOption, Quantizing

SHORT_NOTE_LENGTH = 40  # characters of a note that may be repeated
TTFT, TPOT_ALONE, TPOT_IN_BATCH = map(time_with_interval, ("ttft_s", "tpot_small_s", "tpot_large_s"))
BITS = Unit(3)


def quantize_view(answer: Quantizing, *, every: bool = False) -> View:
    """Return the view of `quantize`. Its chart shows the methods that the engine loads; `every` adds all others."""
    return View(headline(answer), _blocks(answer, every))


def quantize_facts(row: QuantizedOption) -> list[Fact]:
    """Return the facts of one quantization method."""
    usd = row.usd_per_million_tokens
    bits = phrase("{:.3g} bits each", row.bits_per_weight)
    price = usd and with_relative_interval(usd, TPOT_IN_BATCH(row))
    return [
        Fact("Weights", row.weights_bytes, units.MEMORY, bits),
        Fact("TPOT alone", TPOT_ALONE(row), units.LATENCY, "a batch of 1"),
        Fact("TPOT in a batch", TPOT_IN_BATCH(row), units.LATENCY, f"of {row.large_batch}"),
        Fact("TTFT", TTFT(row), units.LATENCY),
        Fact("Most requests", row.max_batch, note="at once"),
        Fact("$ per 1M tokens", price, units.USD_PER_MILLION, "input and output, at full load"),
    ]


def _blocks(answer: Quantizing, every: bool) -> Iterator[Block]:
    rows = answer.rows
    yield _chart(answer, every)
    columns = [
        Column("method", mark_unless("method", "engine_loads", " †")),
        Column("bits", "bits_per_weight", BITS),
        Column("GB", "weights_bytes", Unit(2, 1e-9)),
        Column("compute", mark_unless("compute", "native", " *"), units.TEXT),
        Column("max batch", "max_batch", units.COUNT),
        Column("TTFT {time}", "ttft_s", units.MS_1),
        Column("TPOT {time} b=1", "tpot_small_s", units.MS),
        Column(f"b={answer.large_batch}", "tpot_large_s", units.MS),
        Column("pays below", _break_even_batch_text, units.TEXT),
        Column("$/1M tokens", "usd_per_million_tokens", units.USD_3, optional=True),
    ]
    title = f"{answer.input_len:,} tokens in, {answer.output_len:,} out; * dequantized to 16 bit on this GPU"
    if not all(row.engine_loads for row in rows):
        title += f"; † not loaded by {answer.engine}"
    yield Table(title, rows, columns)
    kernels = [
        Column("method", "method"),
        Column("kernel", "kernel", units.TEXT),
        Column("% of roofline", "kernel_roof_fraction", units.PERCENT_0),
        Column("native from", _capability_text, units.TEXT),
        Column("calibration", "calibration"),
        Column("GPU-hours", "gpu_hours_to_quantize", units.TIMES),
    ]
    yield Table("Kernels and calibration", rows, kernels)
    quality = [
        Column("method", "method"),
        Column("published quality", join_names("quality", "none published", "; ")),
        Column("note", lambda row: _note_text(row, rows)),
    ]
    yield Table("Published quality: 16 bit -> quantized", [r for r in rows if r.quality or r.note], quality)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        yield f"{', '.join(row.method for row in rows if row.reason == reason)}: {reason}"


def _chart(answer: Quantizing, every: bool) -> Bars:
    """Return the chart of TPOT by quantization method, with a batch of 1 and with a large batch."""
    run = [row for row in answer.rows if row.tpot_small_s is not None and (every or row.engine_loads)]
    fastest = min(run, key=lambda row: row.tpot_large_s or float("inf"), default=None)
    words = phrase("{.method} is the fastest in a batch", fastest) or "no format runs on this GPU"
    return Bars(
        name="quantization",
        title="Time per output token, by format",
        alt=f"{len(run)} of {len(answer.rows)} formats on {answer.gpu.count} x {answer.gpu.name}: {words}.",
        data={
            "a batch of 1": {row.method: TPOT_ALONE(row) for row in run},
            f"a batch of {answer.large_batch}": {row.method: TPOT_IN_BATCH(row) for row in run},
        },
        unit=units.MS,
        axis="TPOT, {time}",
        labels="method",
    )


def _note_text(row: QuantizedOption, rows: Sequence[QuantizedOption]) -> str:
    """Return a method's note; if an earlier method has the same long note, a reference to that method."""
    first = next(each for each in rows if each.note == row.note)
    return row.note if first is row or len(row.note) < SHORT_NOTE_LENGTH else f"see {first.method}"


def _capability_text(row: QuantizedOption) -> str:
    """Return the lowest CUDA compute capability that multiplies natively in the format: `sm_89`, or `any`."""
    return f"sm_{row.min_compute_capability * 10:.0f}" if row.min_compute_capability else "any"


def _break_even_batch_text(row: QuantizedOption) -> str:
    """Return the batch size from which a decode step is no faster than at 16 bit."""
    if row.tpot_small_s is None or row.kind not in ("weight-only", "weights and activations"):
        return "-"
    return "any" if row.pays_below_batch is None else f"b={row.pays_below_batch:,}"


def quantizations_view(answer: Quantizations) -> View:
    """Return the view of `quantize --list`."""
    columns = [
        Column("-q", "name"),
        Column("also", join_names("also", "-", " "), units.TEXT),
        Column("bits", "bits_per_weight", BITS),
        Column("kernel", "kernel", units.TEXT),
        Column("note", lambda row: row.remark or "-"),
    ]
    title = "Values of --quantization, for all commands; bits: mean per weight of Llama-3.1-8B's matrices"
    return View("", [Table(title, answer.rows, columns)])
