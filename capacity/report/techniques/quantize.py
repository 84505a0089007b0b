"""Ways to quantize: memory, latency and cost, kernels, published quality."""

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
    from collections.abc import Sequence

    from capacity.techniques.quantize import QuantizationRow, Quantizations, QuantizedOption, Quantizing

SHORT = 40  # characters of a remark that may be said again


def quantize_parts(answer: Quantizing) -> list[Part]:
    columns: Columns[QuantizedOption] = [
        ("method", lambda row: row.method + ("" if row.engine_loads else " †")),
        ("bits", number("bits_per_weight", 1, 3)),
        ("GB", number("weights_bytes", 1e-9, 2)),
        ("compute", lambda row: row.compute + ("" if row.native else " *")),
        ("max batch", lambda row: f"{row.max_batch:,}"),
        ("TTFT ms", number("ttft_s", 1e3, 1)),
        ("TPOT ms b=1", number("tpot_small_s", 1e3)),
        (f"b={answer.large_batch}", number("tpot_large_s", 1e3)),
        ("pays below", _pays_below),
    ]
    if answer.price is not None:
        columns.append(("$/1M tokens", number("usd_per_million_tokens", 1, 3)))
    rows = answer.rows
    title = f"{answer.input_len:,} tokens in, {answer.output_len:,} out; * dequantized to 16 bit here"
    if not all(row.engine_loads for row in rows):
        title += f"; † not loaded by {answer.engine}"
    quality = table(
        "Quality, from 16 bit to quantized",
        [row for row in rows if row.quality or row.note],
        [
            ("method", text("method")),
            ("published quality", lambda row: "; ".join(row.quality) or "none published"),
            ("remark", lambda row: _remark(row, rows)),
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
            ("GPU-hours", number("gpu_hours_to_quantize", 1, 2)),
        ],
    )
    refused = [
        f"{', '.join(row.method for row in rows if row.reason == reason)}: {reason}"
        for reason in dict.fromkeys(row.reason for row in rows if row.reason)
    ]
    return [
        headline(answer),
        table(title, rows, columns),
        kernels,
        quality,
        *refused,
        *notes(answer.warnings),
    ]


def _remark(row: QuantizedOption, rows: Sequence[QuantizedOption]) -> str:
    """What is said of a method, once: of another of which it is said again, whose it is."""
    first = next(each for each in rows if each.note == row.note)
    return row.note if first is row or len(row.note) < SHORT else f"as {first.method}"


def _capability(row: QuantizedOption) -> str:
    """NVIDIA's compute capability that multiplies in the format."""
    return f"sm_{row.min_compute_capability * 10:.0f}" if row.min_compute_capability else "any"


def _pays_below(row: QuantizedOption) -> str:
    """The batch from which a decode step is no faster than at 16 bit."""
    if row.tpot_small_s is None or row.kind not in ("weight-only", "weights and activations"):
        return "-"
    return "any" if row.pays_below_batch is None else f"b={row.pays_below_batch:,}"


def quantizations_parts(answer: Quantizations) -> list[Part]:
    columns: Columns[QuantizationRow] = [
        ("-q", text("name")),
        ("also", lambda row: " ".join(row.also) or "-"),
        ("bits", number("bits_per_weight", 1, 3)),
        ("kernel", text("kernel")),
        ("remark", lambda row: row.remark or "-"),
    ]
    return [
        table(
            "Names of --quantization, in every verb; bits of the matrices of Llama-3.1-8B",
            answer.rows,
            columns,
        )
    ]
