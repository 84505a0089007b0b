"""Read kernel times that other tools measured, as measurement files of `capacity validate`.

Supported are AIConfigurator's perf files (ai-dynamo/aiconfigurator, collector/helper.py `log_perf`, 2025 to 2026;
times in ms; NCCL message sizes in elements), output of nccl-tests, JSON of nvbench, and traces (`kernel_trace`). Only
kernels that the harness times in the same way become cases: matrix multiplications without quantization of
activations, attention without a cached prefix or window, experts on one GPU with equal load, and all-reduce and
all-gather by NCCL.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.external_files import parse_json, read_bytes
from capacity_validate.benchmark_results.client_results import is_nvbench
from capacity_validate.benchmark_results.measured_run import explain_structure, value_at
from capacity_validate.cases import (
    SCHEMA,
    UNKNOWN_GPU,
    Case,
    MeasuredCase,
    Measurements,
    make_case,
    read_measurements,
)
from capacity_validate.kernel_trace import KernelTrace, is_nsys_table, is_trace, read_nsys_table, read_trace
from capacity_validate.timing import summarise_samples

MAX_KERNEL_S = 1e6
_SIXTEEN_BIT = ("bfloat16", "float16", "half")
_EQUAL_LOAD = ("", "balanced", "uniform")
_MLA = {"latent": 512, "rope": 64, "nope": 128}  # DeepSeek-V3, the only model that AIConfigurator measures
_MPI = r"^(?:\[[\d,]+\]<stdout>: ?)?"  # mpirun --tag-output
_NCCL_HEADER = re.compile(_MPI + r"#\s+size\s+count\s+type\s", re.MULTILINE)
_NCCL_ROW = re.compile(  # size, time out of place and in place (us)
    _MPI + r"\s*(\d+)\s+\d+\s+\w+\s+\S+\s+-?\d+\s+([\d.]+)\s+\S+\s+\S+\s+\S+(?:\s+([\d.]+))?", re.MULTILINE
)
_NCCL_RANK = re.compile(_MPI + r"#\s+Rank\s+\d+ .*?\[\S+\] (.+?)\s*$", re.MULTILINE)
_NCCL_GPUS = re.compile(r"nThread (\d+) nGpus (\d+)")
_NCCL_TEST = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv)_perf\b")
_NVBENCH_TIME = "nv/cold/time/gpu/mean"
_NVBENCH_TYPES = {"f16": "bf16", "bf16": "bf16", "half": "bf16", "f32": "fp32"}


def is_kernel_file(text: str) -> bool:
    """Return whether a text contains kernel times: a measurement file, or one of another tool."""
    return f'"{SCHEMA}"' in text[:2000] or any(recognises(text) for _, recognises, _ in _FORMATS)


def read_kernel_file(path: str | Path) -> Measurements:
    """Read a measurement file, or the kernel times of another tool. Raises MalformedFile, also if it has no usable
    case."""
    text = str(read_bytes(path, "a benchmark result"), "utf-8-sig", errors="replace")
    if f'"{SCHEMA}"' in text[:2000]:
        return read_measurements(path)
    tool, _, read = next((form for form in _FORMATS if form[1](text)), _FORMATS[-1])
    with explain_structure(path, f"a file of {tool}"):
        return read(path, text)


def _trace_measurements(path: str | Path, trace: KernelTrace) -> Measurements:
    if not trace.cases:
        raise MalformedFile(
            path,
            f"contains no kernel with its shape, so nothing can be calibrated on it ({trace.summary}); record it with "
            "record_shapes=True and without CUDA graphs, or give a benchmark result",
        )
    return _measurements(path, trace.cases, device=trace.device, notices=(trace.summary,))


def _measurements(
    path: str | Path,
    cases: Sequence[MeasuredCase],
    *,
    device: str | None,
    engine: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    problem: str = "contains no kernel of a kind that models run",
) -> Measurements:
    if not cases:
        raise MalformedFile(path, problem)
    return Measurements(
        path=str(path),
        environment={"device": device or UNKNOWN_GPU, "kind": "cuda", **(engine or {})},
        profile="",
        cases=tuple({case.case.id: case for case in cases}.values()),
        notices=tuple(notices),
    )


def _make_timed_case(case: Case, seconds: float, repetitions: int = 1) -> MeasuredCase:
    if not 0 < seconds < MAX_KERNEL_S:
        raise ValueError(f"a kernel time is {seconds:g} s: must be above 0 and below {MAX_KERNEL_S:g} s")
    timing = replace(summarise_samples([seconds], "graph"), repetitions=max(repetitions, 1))
    return MeasuredCase(case=case, status="ok", timing=timing)


# AIConfigurator
def _is_perf_table(text: str) -> bool:
    columns = text[:2000].partition("\n")[0].strip().split(",")
    return "latency" in columns and "op_name" in columns


def _read_perf_table(path: str | Path, text: str) -> Measurements:
    rows = list(csv.DictReader(io.StringIO(text)))
    cases, left_out = [], 0
    for row in rows:
        case = _perf_case({name: value or "" for name, value in row.items() if name})
        seconds = float(row["latency"]) * 1e-3
        if case is None or not seconds > 0:
            left_out += 1
        else:
            cases.append(_make_timed_case(case, seconds))
    first = rows[0] if rows else {}
    engine = {
        "engine": str(first.get("framework", "")).lower(),
        "engine_version": str(first.get("version", "")),
    }
    notice = f"{path}: {left_out:,} rows belong to kernels that the harness times differently, or not at all"
    return _measurements(
        path,
        cases,
        device=first.get("device"),
        engine=engine,
        notices=(notice,) if left_out else (),
        problem=f"contains no row that can be calibrated on: {left_out:,} rows belong to kernels that the harness "
        "times differently (with quantization, a window or unequal experts), or not at all",
    )


def _perf_case(row: Mapping[str, str]) -> Case | None:
    """Return the case in a row of a perf file; None if the harness times this kernel differently, or not at all."""
    name = row["op_name"]

    def number(column: str) -> int:
        return int(float(row[column]))

    if "gemm_dtype" in row:
        if row["gemm_dtype"] not in _SIXTEEN_BIT:
            return None
        return make_case("gemm", "bf16", m=number("m"), n=number("n"), k=number("k"))
    if "attn_dtype" in row:
        return _attention_case(row, number)
    if "mla_dtype" in row:
        if name not in ("generation_mla", "mla_generation") or row["kv_cache_dtype"] not in _SIXTEEN_BIT:
            return None
        context = number("isl") + number("step")
        sizes = {"heads": number("num_heads"), "batch": number("batch_size"), "context": context}
        return make_case("mla_decode", "bf16", variant="", **sizes, **_MLA)
    if "moe_dtype" in row:
        equal = row.get("distribution", "") in _EQUAL_LOAD
        if row["moe_dtype"] not in _SIXTEEN_BIT or number("moe_ep_size") != 1 or not equal:
            return None
        return make_case(
            "moe",
            "bf16",
            variant="grouped",
            tokens=number("num_tokens"),
            hidden=number("hidden_size"),
            intermediate=number("inter_size") // number("moe_tp_size"),
            top_k=number("topk"),
            experts=number("num_experts"),
        )
    if "nccl_dtype" in row:
        width = {"half": 2, "int8": 1}.get(row["nccl_dtype"])
        if width is None:
            return None
        return _collective_case(name, number("num_gpus"), width * number("message_size"))
    return None


def _attention_case(row: Mapping[str, str], number: Any) -> Case | None:
    is_16_bit = row["kv_cache_dtype"] in _SIXTEEN_BIT
    if row["attn_dtype"] not in _SIXTEEN_BIT or int(float(row.get("window_size") or 0)) > 0:
        return None
    heads = number("num_heads")
    shape = {
        "heads": heads,
        "kv_heads": number("num_key_value_heads") or heads,
        "head_dim": number("head_dim"),
        "batch": number("batch_size"),
    }
    if row["op_name"] == "generation_attention":
        context = number("isl") + number("step")
        kernel = "bf16" if is_16_bit else "fp8"
        return make_case("decode_attention", kernel, variant="paged", context=context, **shape)
    if row["op_name"] == "context_attention" and is_16_bit and number("step") == 0:
        return make_case("prefill_attention", "bf16", variant="flash", tokens=number("isl"), **shape)
    return None


def _collective_case(name: str, ranks: int, total_bytes: int) -> Case | None:
    """Return the case of a collective; None if the harness does not time it. `total_bytes`: the message size that
    nccl-tests prints, for an all-gather the sum over all ranks."""
    if name not in ("all_reduce", "all_gather") or ranks < 2:
        return None
    size = total_bytes if name == "all_reduce" else total_bytes // ranks
    return make_case("collective", "nccl", variant=name, ranks=ranks, bytes=size) if size else None


# nccl-tests
def _read_nccl_tests(path: str | Path, text: str) -> Measurements:
    named = _NCCL_TEST.search(text) or _NCCL_TEST.search(Path(path).name)
    if named is None:
        raise MalformedFile(
            path,
            "does not name the program of nccl-tests that wrote it: keep the line with the command (all_reduce_perf "
            "...), or name the file all_reduce_perf.txt",
        )
    devices = _NCCL_RANK.findall(text)
    per_process = _NCCL_GPUS.search(text)
    ranks = len(devices) or (int(per_process[1]) * int(per_process[2]) if per_process else 0)
    cases = []
    for size, out_of_place_us, in_place_us in _NCCL_ROW.findall(text):
        case = _collective_case(named[1], ranks, int(size))
        seconds = float(in_place_us or out_of_place_us) * 1e-6
        if case is not None and seconds > 0:
            cases.append(_make_timed_case(case, seconds))
    return _measurements(
        path,
        cases,
        device=devices[0] if devices else None,
        problem=f"contains no all-reduce or all-gather of two or more GPUs ({named[0]}, {ranks} ranks)",
    )


# nvbench
def _read_nvbench(path: str | Path, document: Any) -> Measurements:
    if not isinstance(document, dict) or not is_nvbench(document):
        raise MalformedFile(path, "contains no kernel times")
    cases = [
        case
        for benchmark in document["benchmarks"]
        for state in (benchmark.get("states") or ())
        if isinstance(state, dict) and (case := _nvbench_case(state)) is not None
    ]
    names = [
        str(benchmark.get("name")) for benchmark in document["benchmarks"] if isinstance(benchmark, dict)
    ]
    devices = document.get("devices")
    return _measurements(
        path,
        cases,
        device=value_at(devices[0], "name") if isinstance(devices, list) and devices else None,
        problem="contains no matrix multiplication (axes M, N and K, and a type F16, BF16 or F32), only "
        f"{', '.join(names)[:200]}",
    )


def _nvbench_case(state: Mapping[str, Any]) -> MeasuredCase | None:
    axes = {
        str(axis.get("name", "")).partition("{")[0].lower(): axis.get("value")
        for axis in state.get("axis_values") or ()
        if isinstance(axis, dict)
    }
    summaries = {str(value_at(summary, "tag")): summary for summary in state.get("summaries") or ()}
    seconds = _nvbench_value(summaries.get(_NVBENCH_TIME))
    samples = _nvbench_value(summaries.get("nv/cold/sample_size"))
    kernel = next(
        (_NVBENCH_TYPES[str(v).lower()] for v in axes.values() if str(v).lower() in _NVBENCH_TYPES), None
    )
    try:
        sizes = {name: int(str(axes[name])) for name in ("m", "n", "k")}
    except (KeyError, ValueError):
        return None
    if state.get("is_skipped") or kernel is None or not seconds or min(sizes.values()) < 1:
        return None
    return _make_timed_case(make_case("gemm", kernel, variant="", **sizes), seconds, int(samples or 1))


def _nvbench_value(summary: object) -> float | None:
    values = [entry["value"] for entry in value_at(summary, "data") or () if entry.get("name") == "value"]
    return float(values[0]) if values and values[0] is not None else None


_FORMATS: tuple[
    tuple[str, Callable[[str], object], Callable[[str | Path, str], Measurements]], ...
] = (  # tools, how their files are recognised, and their readers
    ("the torch profiler", is_trace, lambda path, text: _trace_measurements(path, read_trace(path, text))),
    ("nsys stats", is_nsys_table, lambda path, text: _trace_measurements(path, read_nsys_table(path, text))),
    ("nccl-tests", lambda text: _NCCL_HEADER.search(text[:100_000]), _read_nccl_tests),
    ("AIConfigurator", _is_perf_table, _read_perf_table),
    (
        "nvbench",
        lambda text: text.lstrip()[:1] == "{" and f'"{_NVBENCH_TIME}"' in text,
        lambda path, text: _read_nvbench(path, parse_json(text, path)),
    ),
)
