"""Results of `vllm bench serve`, its older forks, and `sglang.bench_serving`: one JSON object per run."""

from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity_validate.benchmark_results.measured_run import (
    TOOLS,
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    flat_latencies,
    measured_run,
    request_lists,
    summarise_ms,
    to_count,
    to_number,
    value_at,
)
from capacity_validate.server_log import LoggedSettings, ServerLog, sglang_settings


def _mean_lengths(document: Document) -> dict[str, float | None]:
    """Return the mean prompt and output tokens of the completed requests."""
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
