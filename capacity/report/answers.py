"""What `fit`, `estimate` and `explain` answer, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.answers.records import (
    Attribution,
    Estimate,
    Fit,
    IntervalPart,
    LaunchSettings,
    OperatorTime,
    StartUp,
)
from capacity.report.display import (
    STANDARD,
    as_sure,
    bill_rows,
    number_text,
    rate_and_interval,
    seconds_and_interval,
    shown,
    time_and_interval,
    usd_and_interval,
    verdict_text,
)
from capacity.report.layout import Part, crossed, facts, grid, listed, notes
from capacity.report.replicas import replicas_text

BOUNDS = ("compute", "memory", "communication", "launch", "host")
Fact = tuple[str, str, str]


def _headline(answer: Fit) -> str:
    gpus = f"{answer.gpu.count} x {answer.gpu.name}" if answer.gpu.count > 1 else answer.gpu.name
    return (
        f"[bold]{answer.model.name}[/bold] ({answer.model.total_params / 1e9:.1f} B parameters, "
        f"{answer.weight_format} weights, {answer.kv_cache_dtype} KV cache) on [bold]{gpus}[/bold], {answer.engine}"
    )


def fit_tables(answer: Fit) -> list[Part]:
    """Whether it fits, and where the memory of one GPU goes."""
    return [f"{_headline(answer)}: {_fit_verdict(answer)}", _memory_table(answer), *notes(answer.warnings)]


def _fit_verdict(answer: Fit) -> str:
    if answer.fits:
        return "[green]fits[/green]"
    if answer.memory.kv_cache_bytes and answer.max_context_tokens:
        return (
            f"[red]does not fit[/red] with requests of {answer.max_model_len:,} tokens, "
            f"[green]fits up to {answer.max_context_tokens:,} tokens[/green]: {answer.reason}"
        )
    return f"[red]does not fit:[/red] {answer.reason}"


def _memory_table(answer: Fit) -> Part:
    memory, gib = answer.memory, STANDARD.memory_text
    rows = [
        ("engine sees", gib(memory.total_bytes), ""),
        ("may use", gib(memory.usable_bytes), f"{memory.usable_bytes / memory.total_bytes:.0%}"),
        ("weights", gib(memory.weights_bytes), ""),
        ("activations", gib(memory.activations_bytes), "peak of a full step"),
        ("overhead", gib(memory.overhead_bytes), "CUDA context, communication buffers, CUDA graphs"),
        *_kv_rows(answer),
        ("longest request", f"{answer.max_context_tokens:,} tokens", "that fits alone"),
        ("concurrency", f"{answer.max_concurrency:,.2f}", f"requests of {answer.max_model_len:,} tokens"),
    ]
    if not answer.fits and answer.max_context_tokens:
        rows.append(("", "", f"below 1: only a context of up to {answer.max_context_tokens:,} tokens fits"))
    if answer.smallest_tensor_parallel_size:
        rows.append(("smallest TP", str(answer.smallest_tensor_parallel_size), "that fits"))
    if answer.startup is not None:
        rows.append(_startup_row(answer.startup))
    return facts("Memory of one GPU", rows)


def _startup_row(startup: StartUp) -> Fact:
    total, weights = startup.total_s, startup.parts_s["weights"].value
    rate = f"{startup.weights_gb_per_s:.1f} GB/s per GPU"
    return (
        "start-up",
        STANDARD.time_text(total.value, total),
        f"{STANDARD.time_interval(total)} (90 %); weights {weights:,.0f} s at {rate}",
    )


def _kv_rows(answer: Fit) -> list[Fact]:
    """What is left for the KV cache, and how much that holds; of a model that keeps none, what is left free."""
    left = STANDARD.memory_text(answer.memory.kv_cache_bytes)
    kept = (
        answer.kv_bytes_per_token,
        answer.kv_window_bytes_per_token,
        answer.linear_state_bytes_per_request,
    )
    if not any(kept):
        return [("left", left, "no KV cache: a request ends with its prompt")]
    return [
        ("KV cache", left, f"{answer.kv_capacity_blocks:,} blocks of {answer.kv_block_tokens}"),
        ("KV per token", f"{answer.kv_bytes_per_token / 1024:,.1f} KiB", "whole model"),
        ("KV capacity", f"{answer.kv_capacity_tokens:,} tokens", ""),
    ]


def estimate_summary(answer: Estimate) -> list[Part]:
    """Latencies, throughput, bill and energy with their intervals, and what bounds the steps."""
    steps = f"prefill is {answer.bound.prefill} bound"
    if answer.bound.decode is not None:
        steps += f", decode {answer.bound.decode} bound"
    return [*_prediction(answer), f"{steps}; --detail has both steps by operator", *notes(answer.warnings)]


def estimate_sheet(answer: Estimate) -> list[Part]:
    """The same for a page, whose charts have the steps."""
    return [*_prediction(answer), *notes(answer.warnings)]


def estimate_tables(answer: Estimate) -> list[Part]:
    """The prediction, then a prefill and a decode step by operator."""
    intensity = answer.arithmetic_intensity
    ridge = f"FLOP/byte, ridge {intensity.ridge_flops_per_byte:,.0f}"
    prefill = f"A prefill step: {intensity.prefill_flops_per_byte:,.0f} {ridge}"
    tables = [*_prediction(answer), _step_table(prefill, answer.breakdown.prefill)]
    if intensity.decode_flops_per_byte is not None:
        drafted = "" if answer.tokens_per_step == 1 else f", {answer.tokens_per_step:.2f} tokens of a request"
        title = f"A decode step{drafted}: {intensity.decode_flops_per_byte:,.0f} {ridge}"
        tables.append(_step_table(title, answer.breakdown.decode))
    tables += _as_found(answer)
    return [*tables, *notes(answer.warnings)]


def _prediction(answer: Estimate) -> list[Part]:
    lengths = f"{answer.input_len:,} tokens in, {answer.output_len:,} out"
    return [
        f"{_headline(answer)}\n{_load(answer)}, {lengths}; basis: {answer.basis}\n{_launched(answer.launch)}",
        *_verdict(answer),
        facts(
            "Prediction" + (" (90 % interval)" if answer.ttft_s and answer.ttft_s.low is not None else ""),
            [*_prediction_rows(answer), *_cost_rows(answer), _energy_row(answer)],
        ),
    ]


def _launched(launch: LaunchSettings) -> str:
    return (
        f"launched with max_num_seqs {launch.max_num_seqs:,}, max_num_batched_tokens "
        f"{launch.max_num_batched_tokens:,}, gpu_memory_utilization {launch.gpu_memory_utilization:.3g}; clients "
        f"{launch.client_latency_s * 1e3:.3g} ms away"
    )


def _as_found(answer: Estimate) -> list[Part]:
    """The intervals of a server of which only the given settings are known."""
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E latency"}
    known = [(title, (answer.as_found or {}).get(name)) for name, title in names.items()]
    rows = [(title, *time_and_interval(each)) for title, each in known if each is not None]
    return [facts("A server with unknown settings and client (90 % interval)", rows)] if rows else []


def _load(answer: Estimate | Attribution) -> str:
    """How many requests there are, in words."""
    if answer.batch_size:
        return "1 request alone" if answer.batch_size == 1 else f"{answer.batch_size:,} requests together"
    if answer.concurrency and answer.request_rate:
        return f"{answer.request_rate:g} requests/s arrive, at most {answer.concurrency:,} in flight"
    if answer.concurrency:
        return f"{answer.concurrency:,} requests in flight, closed loop"
    return f"{answer.request_rate:g} requests/s arrive"


def _verdict(answer: Estimate) -> list[Part]:
    """Whether the load has a steady state, as `simulate` says it."""
    if answer.verdict is None:
        return []
    verdict = verdict_text(answer.verdict, answer.verdict_reason)
    if answer.replicas_needed is None:
        return [verdict]
    return [verdict, f"needed: {replicas_text(answer.replicas_needed)}"]


def _prediction_rows(answer: Estimate) -> list[Fact]:
    no_state = ("-", "no steady state")
    single = no_state if answer.ttft_s is None else ("-", "a single output token")
    per_user = answer.output_tokens_per_s_per_user
    return [
        ("TTFT", *(time_and_interval(answer.ttft_s) if answer.ttft_s else no_state)),
        *_ttft_parts_row(answer),
        ("TPOT", *(time_and_interval(answer.tpot_s) if answer.tpot_s else single)),
        ("E2E latency", *(seconds_and_interval(answer.e2e_s) if answer.e2e_s else no_state)),
        *((title, *time_and_interval(each)) for title, each in answer.further_latencies.items() if each),
        ("output tokens/s", *rate_and_interval(answer.output_tokens_per_s)),
        ("  per GPU", *rate_and_interval(answer.output_tokens_per_s_per_gpu)),
        ("  per user", *(rate_and_interval(per_user) if per_user else no_state)),
        ("requests/s", *_requests(answer)),
        *_in_flight_row(answer),
        ("KV capacity", f"{answer.kv_capacity_tokens:,} tokens", f"{answer.kv_cache_dtype}"),
    ]


def _ttft_parts_row(answer: Estimate) -> list[Fact]:
    parts = answer.ttft_parts_s
    if parts is None:
        return []
    shown_parts = (f"{name} {STANDARD.time_text(s, answer.ttft_s)}" for name, s in parts.items() if s)
    return [("  of it", "", ", ".join(shown_parts))]


def _requests(answer: Estimate) -> tuple[str, str]:
    """Requests per second, and whose number it is where it is no prediction."""
    value, interval = rate_and_interval(answer.requests_per_s)
    if answer.ttft_s is None or answer.requests_per_s.value < (answer.request_rate or 0.0):
        return value, "served at most"
    return value, interval or ("as they arrive" if answer.request_rate else "")


def _in_flight_row(answer: Estimate) -> list[Fact]:
    """Of a load: requests in the system, and what a benchmark of the run would print."""
    if answer.batch_size:
        return []
    in_flight = answer.requests_in_flight
    shown_in_flight = (
        "grows" if in_flight is None else number_text(in_flight, as_sure(in_flight, answer.e2e_s))
    )
    rows = [("requests in flight", shown_in_flight, "requests/s x E2E, waiting included")]
    run = answer.whole_run
    if run is not None and answer.ttft_s is not None:
        ttft = STANDARD.time_text(run.ttft_s, answer.ttft_s)
        rows.append(
            ("TTFT of a whole run", ttft, f"mean of {run.num_prompts:,} requests, the first included")
        )
    return rows


def _cost_rows(answer: Estimate) -> list[Fact]:
    cost = answer.cost
    if cost is None:
        return []
    input_usd, within = usd_and_interval(answer.usd_per_million_input_tokens)
    if answer.verdict == "overloaded":
        within = f"at full load, {cost.requests_per_s:,.2f} requests/s"
    return [
        *bill_rows(cost),
        ("  1M input tokens", input_usd, within),
        ("  1M output tokens", *usd_and_interval(answer.usd_per_million_output_tokens)),
        ("  request", f"${_request_usd(answer, cost.usd_per_request)}", ""),
    ]


def _request_usd(answer: Estimate, usd: float) -> str:
    return number_text(usd, as_sure(usd, answer.usd_per_million_output_tokens), digits=6)


def _energy_row(answer: Estimate) -> Fact:
    joules = answer.energy.joules_per_output_token
    shown_joules = number_text(joules, as_sure(joules, answer.output_tokens_per_s), digits=2)
    watts = f"{answer.energy.watts_per_gpu:,.0f} W per GPU, host and cooling included"
    return ("provisioned energy", f"{shown_joules} J/output token", watts)


def _step_table(title: str, operators: Sequence[OperatorTime]) -> Part:
    total = sum(op.seconds for op in operators)
    table = listed(
        title,
        operators,
        ("operator", "left", lambda op: op.name),
        ("ms", "right", lambda op: f"{op.seconds * 1e3:.3f}"),
        ("share", "right", lambda op: f"{op.seconds / total:.0%}"),
        ("GFLOP", "right", lambda op: f"{op.flops / 1e9:,.1f}"),
        ("MB", "right", lambda op: f"{op.bytes / 1e6:,.1f}"),
        ("bound", "left", lambda op: op.bound),
    )
    table.add_row("step", f"{total * 1e3:.3f}", "", "", "", "", style="bold")
    return table


def _explain_headline(answer: Attribution) -> str:
    return (
        f"[bold]{answer.model.name}[/bold] on [bold]{answer.gpu.count} x {answer.gpu.name}[/bold], {answer.engine}, "
        f"{_load(answer)}, {answer.input_len:,} tokens in, {answer.output_len:,} out"
    )


def interval_tables(answer: Attribution) -> list[Part]:
    """What each interval is made of, and what would narrow it; then the same of a server with unknown settings."""
    shown: list[Part] = [_explain_headline(answer)]
    for interval in answer.intervals:
        value, within = time_and_interval(interval.predicted_s)
        _, wider = time_and_interval(interval.as_found_s)
        shown.append(_parts_table(f"{interval.metric} {value}", within, interval.parts))
        shown += [f"it also holds {what}" for what in interval.holds]
        title = f"{interval.metric} {value} of a server with unknown settings and client"
        shown.append(_parts_table(title, wider, interval.as_found_parts))
    return [*shown, *notes(answer.warnings)]


def _parts_table(title: str, within: str, parts: Sequence[IntervalPart]) -> Part:
    return listed(
        f"{title}, 90 % interval {within}" if within else title,
        parts,
        ("part", "left", lambda part: part.name),
        ("alone", "right", lambda part: f"{part.low:+.0%} to {part.high:+.0%}"),
        ("of the variance", "right", lambda part: f"{part.variance_share:.0%}"),
        ("what it is", "left", lambda part: part.what),
        ("narrowed by", "left", lambda part: part.narrowed_by or ""),
    )


def explain_tables(answer: Attribution) -> list[Part]:
    """What bounds the steps, what faster hardware would change, and the steps."""
    headline = _explain_headline(answer)
    share = grid("Where the time goes", ("", "left"), ("prefill step", "right"), ("decode step", "right"))
    for bound in BOUNDS:
        decode = "-" if answer.decode is None else f"{getattr(answer.decode, bound):.0%}"
        share.add_row(bound, f"{getattr(answer.prefill, bound):.0%}", decode)
    helped = crossed(
        "What would help",
        ("TTFT", "TPOT", "$/token"),
        (
            (
                f"{response.change:+.0%} {response.resource}",
                (shown(each, "+z.1%") for each in (response.ttft, response.tpot, response.cost_per_token)),
            )
            for response in answer.responses
        ),
    )
    steps = [_step_table("A prefill step", answer.breakdown.prefill)]
    if answer.breakdown.decode:
        steps.append(_step_table("A decode step", answer.breakdown.decode))
    return [headline, share, helped, *steps, *notes(answer.warnings)]
