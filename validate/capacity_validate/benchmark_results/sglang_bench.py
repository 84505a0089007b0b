"""Results of `sglang.bench_serving`: one JSON object a run."""

from pathlib import Path

from capacity.base.errors import InvalidInput
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
)
from capacity_validate.server_log import LoggedSettings, ServerLog, sglang_settings

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
