"""Results of `vllm bench serve` and its older forks, and of `sglang.bench_serving`: one JSON object a run."""

from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity_validate.benchmark_results.measured_run import (
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    count,
    flat_latencies,
    lists,
    mean,
    number,
    rate,
    summarise_ms,
)
from capacity_validate.server_log import LoggedSettings, ServerLog, sglang_settings


def _vllm(path: Path, document: Document) -> MeasuredRun:
    """`vllm bench serve` 0.33, and older forks: no `failed`, `request_goodput:` with its colon, no `e2el`."""
    latencies = flat_latencies(document, {metric: metric for metric in METRICS})
    requests, notices = _vllm_requests(document)
    detailed = _detailed_latencies(document)
    latencies = {
        **latencies,
        **{k: v for k, v in detailed.items() if k not in latencies or len(latencies[k]) < len(v)},
    }
    completed = count(document.get("completed")) or 0
    total = count(document.get("num_prompts")) or completed
    failed = document.get("failed")
    return MeasuredRun(
        tool="vllm bench serve",
        path=str(path),
        model=document.get("model_id"),
        completed=completed,
        failed=int(failed) if isinstance(failed, int) else max(0, total - completed),
        duration_s=number(document.get("duration")),
        request_throughput=number(document.get("request_throughput")),
        output_throughput=number(document.get("output_throughput")),
        latencies_ms=latencies,
        requests=requests,
        request_rate=rate(document.get("request_rate")),
        burstiness=number(document.get("burstiness")) or 1.0,
        concurrency=count(document.get("max_concurrency")),
        num_requests=total,
        mean_prompt_tokens=mean(document.get("total_input_tokens"), completed),
        mean_output_tokens=mean(document.get("total_output_tokens"), completed),
        accepted_length=number(document.get("spec_decode_acceptance_length")),
        notices=notices,
    )


def _vllm_requests(document: Document) -> tuple[RequestColumns | None, tuple[str, ...]]:
    columns = lists(document, "input_lens", "output_lens")
    if columns is None or isinstance(columns[0][0], str):
        return None, ()
    prompts, outputs = columns
    good = [i for i, tokens in enumerate(outputs) if tokens]
    starts = lists(document, "input_lens", "start_times")
    queued = lists(document, "input_lens", "queue_times")
    start_s = [float(starts[1][i]) for i in good] if starts else None
    scheduled_s = (
        [float(starts[1][i]) - float(queued[1][i]) for i in good]
        if starts is not None and queued is not None
        else None
    )
    order = sorted(range(len(good)), key=lambda i: start_s[i]) if start_s else list(range(len(good)))
    lost = len(outputs) - len(good)
    notices = (f"{lost} failed requests are left out of the replay",) if lost else ()
    return (
        RequestColumns(
            prompt_tokens=[int(prompts[good[i]]) for i in order],
            output_tokens=[int(outputs[good[i]]) for i in order],
            start_s=[start_s[i] for i in order] if start_s else None,
            scheduled_s=[scheduled_s[i] for i in order] if scheduled_s else None,
        ),
        notices,
    )


def _detailed_latencies(document: Document) -> dict[str, dict[str, float]]:
    """From per-request arrays: E2E from `latencies`, or as TTFT plus the gaps, where no summary was asked for."""
    columns = lists(document, "ttfts", "output_lens", "itls")
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


VLLM = ResultFormat.of_objects(
    "vllm bench serve",
    read=_vllm,
    recognises=lambda document: {"total_output_tokens", "duration"} <= document.keys(),
)


_KEYS = ("mean_e2e_latency_ms", "input_throughput", "sharegpt_output_len")


def _sglang(path: Path, document: Document) -> MeasuredRun:
    """`sglang.bench_serving` lines: no start times, Poisson gaps only."""
    completed = count(document.get("completed")) or 0
    columns = lists(document, "input_lens", "output_lens")
    requests = None
    notices: tuple[str, ...] = ()
    if columns is not None:
        pairs = [(int(p), int(o)) for p, o in zip(*columns, strict=True) if o]
        requests = RequestColumns(prompt_tokens=[p for p, _ in pairs], output_tokens=[o for _, o in pairs])
        notices = ("SGLang does not record start times: arrivals are drawn anew from the request rate",)
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}
    accepted = number(document.get("accept_length"))
    errors = document.get("errors")
    lost = sum(bool(error) for error in errors) if isinstance(errors, list) else 0
    sent = count(document.get("num_prompts")) or completed
    server = document.get("server_info")
    facts = server if isinstance(server, dict) else {}
    model = facts.get("model_path")
    return MeasuredRun(
        tool="sglang.bench_serving",
        path=str(path),
        model=model if isinstance(model, str) else None,
        completed=completed,
        failed=max(lost, sent - completed, 0),
        duration_s=number(document.get("duration")),
        request_throughput=number(document.get("request_throughput")),
        output_throughput=number(document.get("output_throughput")),
        latencies_ms=flat_latencies(document, names),
        requests=requests,
        request_rate=rate(document.get("request_rate")),
        concurrency=count(document.get("max_concurrency")),
        num_requests=completed,
        mean_prompt_tokens=mean(document.get("total_input_tokens"), completed),
        mean_output_tokens=mean(document.get("total_output_tokens"), completed),
        accepted_length=accepted if accepted and accepted > 1.0 else None,
        server=_server(path, facts) if facts else None,
        notices=notices,
    )


def _server(path: Path, facts: Document) -> ServerLog:
    """Of `server_info`, the answer of /get_server_info: the server's arguments, and what its scheduler holds."""
    states = facts.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    memory = state.get("memory_usage")
    held = memory.get("token_capacity") if isinstance(memory, dict) else None
    return ServerLog(
        path=str(path),
        kv_tokens=count(facts.get("max_total_num_tokens")) or count(held),
        max_num_batched_tokens=count(facts.get("chunked_prefill_size")),
        max_num_seqs=count(facts.get("max_running_requests")),
        tensor_parallel_size=count(facts.get("tp_size")),
        launch=_launch(facts),
    )


def _launch(facts: Document) -> LoggedSettings:
    """The server's arguments; none where one of them is no value that SGLang takes."""
    try:
        return sglang_settings(facts, facts.get("version"))
    except InvalidInput:
        return LoggedSettings(engine="sglang")


SGLANG = ResultFormat.of_objects(
    "SGLang", read=_sglang, recognises=lambda document: any(key in document for key in _KEYS)
)
