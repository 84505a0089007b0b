"""Timelines of GPU kernels: torch profiler and Kineto traces, and kernel tables of `nsys stats`.

A trace gives the time of each operator class (by kernel names), the GPU's idle share between kernels (the host was too
slow), and the share of the collectives' time that overlaps with other kernels. Matrix multiplications whose shapes the
trace contains (`record_shapes=True`, outside CUDA graphs) become measured cases. `nsys stats` has no shapes:
`cuda_gpu_trace` gives a timeline, `cuda_gpu_kern_sum` only totals.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.data_files import read_data
from capacity.base.errors import MalformedFile
from capacity.base.external_files import parse_json
from capacity.workload.columns import FloatArray
from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.timing import summarise_samples

CLASSES: Mapping[str, Sequence[str]] = read_data(Path(__file__).with_name("kernel_classes.toml"))
COLLECTIVES = "collectives"
MAX_MICROSECONDS = 1e18  # traces may count from 1970
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}  # places of the two matrices among the inputs
_TYPES = {"c10::BFloat16": "bf16", "c10::Half": "bf16", "float": "fp32"}
_KERNEL_SUM, _KERNEL_TIMELINE = "Total Time (ns)", "Start (ns)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrace:
    """Summary of the kernels of one GPU: seconds by operator class. A field is None if the file lacks its data.

    `idle`: share of the time from the first to the last kernel in which no kernel ran. `overlapped`: share of the
    collectives' time in which another kernel ran.
    """

    device: str | None
    seconds: Mapping[str, float]
    kernels: int
    idle: float | None = None
    overlapped: float | None = None
    cases: tuple[MeasuredCase, ...] = ()

    @property
    def summary(self) -> str:
        """Return one line with the operator classes' shares of GPU time, the idle share, and the overlap."""
        total = sum(self.seconds.values())
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = [f"{name} {seconds / total:.0%}" for name, seconds in ordered if seconds >= 0.005 * total]
        text = f"{self.kernels:,} kernels, {total:.3g} s of GPU time: {', '.join(parts)}"
        if self.idle is not None:
            text += f"; GPU idle {self.idle:.0%} of the time"
        if self.overlapped is not None:
            text += f"; {self.overlapped:.0%} of the collectives overlap with other kernels"
        return text


def kernel_class(name: str) -> str:
    """Return the operator class of a kernel, such as "attention", by its name; "other" if the name is unknown."""
    lower = name.lower()
    return next((found for found, parts in CLASSES.items() if any(part in lower for part in parts)), "other")


def is_trace(text: str) -> bool:
    """Return whether a text is a torch profiler trace, judged by its beginning."""
    return text.lstrip()[:1] == "{" and '"traceEvents"' in text[:200_000]


def is_nsys_table(text: str) -> bool:
    """Return whether a text contains a table of kernels by `nsys stats --format csv`."""
    return any(
        ",Name" in line and (_KERNEL_SUM in line or (_KERNEL_TIMELINE in line and "Duration (ns)" in line))
        for line in text[:20_000].splitlines()
    )


def read_trace(path: str | Path, text: str) -> KernelTrace:
    """Return the summary of the first GPU's kernels in a torch profiler trace. Raises MalformedFile."""
    document = parse_json(text, path)
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise MalformedFile(path, "traceEvents is not a list")
    usable = [e for e in events if isinstance(e, dict) and isinstance(e.get("args", {}), dict)]
    kernels = [e for e in usable if str(e.get("cat")).lower() == "kernel" and _number(e.get("dur")) > 0]
    if not kernels:
        raise MalformedFile(path, "contains no GPU kernels: record a trace with ProfilerActivity.CUDA")
    devices = sorted({_device_of(event) for event in kernels})
    kernels = [event for event in kernels if _device_of(event) == devices[0]]
    properties = document.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else {}
    name = first.get("name") if isinstance(first, dict) else None
    starts, spans = (np.array([_number(e.get(key)) * 1e-6 for e in kernels]) for key in ("ts", "dur"))
    return _timeline(
        [str(event.get("name")) for event in kernels],
        starts,
        spans,
        device=name if isinstance(name, str) else None,
        cases=tuple(_product_cases(usable, kernels)),
    )


def read_nsys_table(path: str | Path, text: str) -> KernelTrace:
    """Return the summary of the kernels in a table of `nsys stats`. Raises MalformedFile, ValueError and KeyError."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if is_nsys_table(line))
    rows = [row for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))) if row.get("Name")]
    if _KERNEL_TIMELINE in lines[start]:
        rows = [row for row in rows if row.get("GrdX")]  # the others are copies
        starts, spans = (
            np.array([float(row[key]) * 1e-9 for row in rows]) for key in ("Start (ns)", "Duration (ns)")
        )
        found = _timeline([row["Name"] for row in rows], starts, spans, device=rows[0].get("Device"))
    else:
        totals = [(row["Name"], float(row[_KERNEL_SUM]) * 1e-9, int(row["Instances"])) for row in rows]
        found = KernelTrace(
            device=None,
            seconds=_sum_by_class((name, seconds) for name, seconds, _ in totals),
            kernels=sum(count for _, _, count in totals),
        )
    if not sum(found.seconds.values()) > 0:
        raise MalformedFile(path, "contains no time of GPU kernels")
    return found


def _timeline(
    names: Sequence[str],
    starts: FloatArray,
    spans: FloatArray,
    *,
    device: str | None,
    cases: tuple[MeasuredCase, ...] = (),
) -> KernelTrace:
    classes = np.array([kernel_class(name) for name in names])
    wall = float((starts + spans).max() - starts.min())
    collective = classes == COLLECTIVES
    all_s, others_s = (
        _busy_seconds(starts[keep], spans[keep]) for keep in (np.full(len(names), True), ~collective)
    )
    own = _busy_seconds(starts[collective], spans[collective])
    return KernelTrace(
        device=device,
        seconds=_sum_by_class(zip(names, spans.tolist(), strict=True)),
        kernels=len(names),
        idle=1 - all_s / wall if wall > 0 else None,
        overlapped=(own + others_s - all_s) / own if own else None,
        cases=cases,
    )


def _sum_by_class(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in kernels:
        group = kernel_class(name)
        found[group] = found.get(group, 0.0) + seconds
    return found


def _busy_seconds(starts: FloatArray, spans: FloatArray) -> float:
    """Return the seconds in which at least one of the intervals is active."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts)
    begins, ends = starts[order], (starts + spans)[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate(([begins[0]], reached[:-1]))
    return float(np.maximum(ends - np.maximum(begins, before), 0.0).sum())


def _product_cases(
    events: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]]
) -> Iterator[MeasuredCase]:
    """Yield a case for each shape of a matrix multiplication, with the time of the kernels that it launched."""
    launched: dict[object, float] = {}
    for event in kernels:
        key = event.get("args", {}).get("External id")
        launched[key] = launched.get(key, 0.0) + _number(event.get("dur")) * 1e-6
    shapes: dict[tuple[str, int, int, int], list[float]] = {}
    for event in events:
        places, args = _PRODUCTS.get(str(event.get("name"))), event.get("args", {})
        seconds = launched.get(args.get("External id")) if "External id" in args else None
        if places is None or not seconds:
            continue
        dims, types = args.get("Input Dims") or (), args.get("Input type") or ()
        try:
            (m, k), (inner, n) = (dims[place] for place in places)
            kernel = _TYPES.get(types[places[0]])
        except (IndexError, TypeError, ValueError):
            continue
        if kernel is not None and k == inner:
            shapes.setdefault((kernel, m, n, k), []).append(seconds)
    for (kernel, m, n, k), samples in shapes.items():
        yield MeasuredCase(
            case=make_case("gemm", kernel, m=m, n=n, k=k),
            status="ok",
            timing=summarise_samples(samples, "graph"),  # a kernel's own time has no launch gaps
            flops=2.0 * m * n * k,
        )


def _device_of(event: Mapping[str, Any]) -> int:
    return int(_number(event.get("args", {}).get("device", event.get("pid"))))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_MICROSECONDS:
        return 0.0
    return float(value)
