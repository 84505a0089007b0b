"""Results of the engines' own benchmarks: vLLM, SGLang, llama.cpp and TensorRT-LLM.

`vllm bench serve`, its older forks, and `sglang.bench_serving` send requests over HTTP and write one JSON object per
run. The others run inside the engine's process, without HTTP and without a client: `llama-bench -o json` or `-o jsonl`
(llama.cpp, tools/llama-bench) times single prompts and single token sequences. A test with only `n_prompt` is a
prefill, so its time is a TTFT. A test with only `n_gen` decodes from an empty context, or from `n_depth` tokens, so its
time per token is a TPOT. `trtllm-bench throughput --report_json`: TensorRT-LLM, tensorrt_llm/bench/dataclasses/
reporting.py, `ReportUtility.get_statistics_dict`, 2026. `vllm bench throughput` and `vllm bench latency --output-json`:
vLLM 0.33, vllm/benchmarks/throughput.py and latency.py; neither file contains the workload.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.latency_metrics import METRICS
from capacity_validate.benchmark_results.measured_run import (
    TOOLS,
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    finite_statistics,
    flat_latencies,
    has_keys,
    measured_run,
    percentiles,
    request_lists,
    summarise_ms,
    to_count,
    to_number,
    value_at,
)
from capacity_validate.server_log import LoggedSettings, ServerLog, sglang_settings


def _mean_lengths(document: Document) -> dict[str, float | None]:
    completed = to_count(document.get("completed"))
    totals = {kind: to_number(document.get(f"total_{kind}_tokens")) for kind in ("input", "output")}
    means = {
        kind: total / completed if total is not None and completed else None for kind, total in totals.items()
    }
    return {"mean_prompt_tokens": means["input"], "mean_output_tokens": means["output"]}


def _read_vllm(path: Path, document: Document) -> MeasuredRun:
    """Read `vllm bench serve` 0.33 and older forks, which lack `failed` and `e2el` and write `request_goodput:`."""
    latencies = flat_latencies(document, {metric: metric for metric in METRICS})
    detailed = _detailed_latencies(document)
    latencies |= {metric: found for metric, found in detailed.items() if len(latencies[metric]) < len(found)}
    requests, notices = _vllm_requests(document)
    completed = to_count(document.get("completed")) or 0
    total = to_count(document.get("num_prompts")) or completed
    failed = document.get("failed")
    return measured_run(
        "vllm bench serve",
        path,
        document,
        **_mean_lengths(document),
        latencies=latencies,
        model=document.get("model_id"),
        failed=int(failed) if isinstance(failed, int) else max(0, total - completed),
        requests=requests,
        burstiness=to_number(document.get("burstiness")) or 1.0,
        num_requests=total,
        notices=notices,
    )


def _vllm_requests(document: Document) -> tuple[RequestColumns | None, tuple[str, ...]]:
    columns = request_lists(document, "input_lens", "output_lens")
    if columns is None or isinstance(columns[0][0], str):
        return None, ()
    prompts, outputs = columns
    good = [i for i, tokens in enumerate(outputs) if tokens]
    starts = request_lists(document, "input_lens", "start_times")
    queued = request_lists(document, "input_lens", "queue_times")
    start_s = scheduled_s = None
    if starts is not None:
        good.sort(key=lambda i: float(starts[1][i]))
        start_s = [float(starts[1][i]) for i in good]
        if queued is not None:
            scheduled_s = [start - float(queued[1][i]) for start, i in zip(start_s, good, strict=True)]
    lost = len(outputs) - len(good)
    return (
        RequestColumns(
            prompt_tokens=[int(prompts[i]) for i in good],
            output_tokens=[int(outputs[i]) for i in good],
            start_s=start_s or None,
            scheduled_s=scheduled_s or None,
        ),
        (f"{lost} failed requests are not simulated",) if lost else (),
    )


def _detailed_latencies(document: Document) -> dict[str, dict[str, float]]:
    """Return latency statistics from per-request arrays; E2E is `latencies`, or else TTFT plus the ITLs."""
    columns = request_lists(document, "ttfts", "output_lens", "itls")
    if columns is None or isinstance(columns[0][0], str):
        return {}
    ttfts, outputs, itls = columns
    good = [i for i, tokens in enumerate(outputs) if tokens]
    latencies = document.get("latencies")
    complete = isinstance(latencies, list) and len(latencies) == len(ttfts)
    e2e = [float(latencies[i]) if complete else float(ttfts[i]) + sum(itls[i]) for i in good]  # type: ignore[index]
    tpot = [
        (e - float(ttfts[i])) / (outputs[i] - 1) for e, i in zip(e2e, good, strict=True) if outputs[i] > 1
    ]
    gaps = [float(gap) for i in good for gap in itls[i]]
    samples = {"ttft": [float(ttfts[i]) for i in good], "tpot": tpot, "itl": gaps, "e2el": e2e}
    return {metric: summarise_ms(values) for metric, values in samples.items() if values}


VLLM = ResultFormat.of_objects("vllm bench serve", read=_read_vllm)


def _read_sglang(path: Path, document: Document) -> MeasuredRun:
    """Read one run of `sglang.bench_serving`. Its file has no start times; its client sends only Poisson arrivals."""
    columns = request_lists(document, "input_lens", "output_lens")
    requests = None
    if columns is not None:
        pairs = [(int(p), int(o)) for p, o in zip(*columns, strict=True) if o]
        requests = RequestColumns(prompt_tokens=[p for p, _ in pairs], output_tokens=[o for _, o in pairs])
    completed = to_count(document.get("completed")) or 0
    errors = document.get("errors")
    lost = sum(bool(error) for error in errors) if isinstance(errors, list) else 0
    accepted = to_number(document.get("accept_length"))
    server = document.get("server_info")
    ratio = to_number(document.get("random_range_ratio"))
    drawn = str(document.get("dataset_name", "")).startswith("random") and ratio is not None
    again = "SGLang does not record start times, so arrivals are resampled from the request rate"
    return measured_run(
        "sglang.bench_serving",
        path,
        document,
        **_mean_lengths(document),
        latencies=flat_latencies(document, TOOLS["sglang.bench_serving"]["latencies"]),
        failed=max(lost, (to_count(document.get("num_prompts")) or completed) - completed, 0),
        requests=requests,
        # uniform from ratio to 1 times the longest, of which the file has the mean
        range_ratio=(1 - ratio) / (1 + ratio) if drawn and ratio is not None and 0 <= ratio <= 1 else None,
        accepted_length=accepted if accepted and accepted > 1.0 else None,
        server=_read_server_info(path, server) if isinstance(server, dict) and server else None,
        notices=() if requests is None else (again,),
    )


def _read_server_info(path: Path, facts: Document) -> ServerLog:
    """Return server arguments and scheduler capacity from `server_info` (the response of /get_server_info)."""
    try:
        launch = sglang_settings(facts, facts.get("version"))
    except InvalidInput:  # an argument has a value that SGLang does not accept
        launch = LoggedSettings(engine="sglang")
    states = facts.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    return ServerLog(
        path=str(path),
        kv_tokens=to_count(facts.get("max_total_num_tokens"))
        or to_count(value_at(state, "memory_usage.token_capacity")),
        max_num_batched_tokens=to_count(facts.get("chunked_prefill_size")),
        max_num_seqs=to_count(facts.get("max_running_requests")),
        tensor_parallel_size=to_count(facts.get("tp_size")),
        launch=launch,
    )


SGLANG = ResultFormat.of_objects(
    "SGLang",
    read=_read_sglang,
    recognises=lambda document: (
        not document.keys().isdisjoint(("mean_e2e_latency_ms", "input_throughput", "sharegpt_output_len"))
    ),
)


def _read_llama_bench(path: Path, documents: Sequence[Any]) -> list[MeasuredRun]:
    entries = documents[0] if isinstance(documents[0], list) else documents
    runs = [run for entry in entries if (run := _read_test(path, entry)) is not None]
    if not runs:
        raise MalformedFile(path, "contains no test that times only prompts or only generated tokens")
    return runs


def _read_test(path: Path, entry: Document) -> MeasuredRun | None:
    """Return one llama-bench test as a run; None if it times prefill and decode together, or a prefill after a context
    of `n_depth` tokens."""
    prompt, generated = to_count(entry.get("n_prompt")), to_count(entry.get("n_gen"))
    depth, rate = to_count(entry.get("n_depth")), to_number(entry.get("avg_ts"))
    if rate is None or rate <= 0 or (prompt is None) == (generated is None) or (prompt and depth):
        return None
    if entry.get("n_gpu_layers") == 0:
        raise MalformedFile(
            path, "was run with n_gpu_layers 0, on the CPU, so it gives no information about a GPU"
        )
    seconds = prompt / rate if prompt else 1.0 / rate
    tokens = {"prompt_tokens": [prompt or depth or 1], "output_tokens": [(generated or 0) + 1]}
    return measured_run(
        "llama-bench",
        path,
        entry,
        latencies={"ttft" if prompt else "tpot": {"mean": seconds * 1e3}},
        completed=1,
        requests=RequestColumns(**tokens, start_s=[0.0]),
        concurrency=1,
        in_process=True,
        server=ServerLog(path=str(path), max_num_batched_tokens=to_count(entry.get("n_ubatch"))),
    )


def _read_trtllm_bench(path: Path, document: Document) -> MeasuredRun:
    """Read a trtllm-bench report with percentiles of its requests; TTFT and TPOT exist only with `--streaming`."""
    total_ms = to_number(value_at(document, "performance.total_latency_ms"))
    tokens, seqs = (
        to_count(value_at(document, f"world_info.{name}")) for name in ("max_num_tokens", "max_batch_size")
    )
    return measured_run(
        "trtllm-bench",
        path,
        document,
        latencies={
            metric: percentiles(
                {"average": value_at(document, mean), **(value_at(document, where) or {})}, mean="average"
            )
            for metric, (where, mean) in TOOLS["trtllm-bench"]["latencies"].items()
        },
        duration_s=None if total_ms is None else total_ms / 1e3,
        in_process=True,
        server=ServerLog(
            path=str(path),
            tensor_parallel_size=to_count(value_at(document, "world_info.tp_size")),
            max_num_batched_tokens=tokens,
            max_num_seqs=min(seqs, tokens) if seqs and tokens else seqs,
        ),
    )


def _read_latency(path: Path, document: Document) -> MeasuredRun:
    """Read the latency of one batch. The file lacks the batch size, so the user gives it as `--concurrency`."""
    values = {"mean": document["avg_latency"]} | {
        f"p{p}": value_at(document, f"percentiles.{p}") for p in (50, 90, 99)
    }
    return measured_run(
        "vllm bench latency",
        path,
        document,
        latencies={"e2el": finite_statistics(values, 1e3)},
        completed=0,
        in_process=True,
    )


LLAMA_BENCH = ResultFormat(
    tools=("llama-bench",),
    recognises=lambda documents: has_keys(documents, "n_prompt", "n_gen", "avg_ts"),
    read=_read_llama_bench,
)
TRTLLM_BENCH = ResultFormat.of_objects(
    "trtllm-bench",
    read=_read_trtllm_bench,
    recognises=lambda document: all(
        isinstance(document.get(key), dict) for key in ("request_info", "performance")
    ),
)
VLLM_OFFLINE = (
    ResultFormat.of_objects(  # all requests start at the same time; `total_num_tokens` includes prompt tokens
        "vllm bench throughput",
        read=partial(
            measured_run, "vllm bench throughput", latencies={}, request_rate=math.inf, in_process=True
        ),
    ),
    ResultFormat.of_objects("vllm bench latency", read=_read_latency),
)
