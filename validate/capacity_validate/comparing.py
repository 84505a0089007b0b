"""`capacity compare`: compare a server's benchmark with the simulator, metric by metric, with likely causes of gaps."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capacity.answers.deployment_run import verdict_on
from capacity.answers.engine_setup import engine_frontend
from capacity.answers.interval_parts import Z_90
from capacity.answers.records import Quantity
from capacity.answers.run_intervals import latency_intervals, rate_intervals, run_bands
from capacity.base.checked import validate_arguments
from capacity.base.data_files import read_data
from capacity.base.errors import InvalidInput
from capacity.base.flags import with_flags
from capacity.base.latency_metrics import METRICS
from capacity.deployment import Service, Traffic
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import FrontendTimes, SimulationResult
from capacity.workload import Workload
from capacity_validate.benchmark_results import STATISTICS, MeasuredRun
from capacity_validate.comparison import Comparison, MetricRow, Overheads, RunComparison
from capacity_validate.evidence import Evidence, read_evidence
from capacity_validate.rebuilt_load import (
    UNKNOWN_LOAD,
    alternative_workload,
    client_traffic,
    rebuild_workload,
    split_options,
)
from capacity_validate.replaying import replay, replay_metrics, run_frontend
from capacity_validate.server_log import ServerLog, read_server_log
from capacity_validate.server_settings import resolve_server

BISECTIONS = 12
THROUGHPUTS = ("request_throughput", "output_throughput")


@validate_arguments
@with_flags
def compare(
    results: Sequence[str | Path],
    *,
    model: str | None = None,
    server_log: str | Path | None = None,
    fit_overheads: bool = False,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Comparison:
    """Simulate the workload of benchmark result files, and compare measured with predicted metrics.

    `options` are those of `simulate` (`gpu`, `tensor_parallel_size`, ..., and `input_len`, `output_len`,
    `request_rate`, `concurrency`, `random_range_ratio` for values that a file lacks). `server_log` provides launch
    settings that `options` omit, and its KV cache size replaces the estimate. `fit_overheads` estimates
    the server's additional time per step and per request from half of the runs (1st, 3rd, ...), and adds it to all
    predictions. Raises InvalidInput if a file lacks a required value, or if `options`, the log and the files contradict
    each other; MalformedFile if a file cannot be read.
    """
    evidence = _read_runs(results)
    runs = evidence.runs
    pool_fields, traffic_fields = split_options("compare", options)
    log = evidence.server
    if server_log is not None:
        given = read_server_log(server_log)
        log = given if log is None else given.completed_by(log)
    planned, resolved = resolve_server(
        evidence, model, pool_fields, log, profiles=profiles, download=download
    )
    workloads = [rebuild_workload(run, traffic_fields) for run in runs]
    overheads = _fit_overheads(resolved, runs, workloads) if fit_overheads else None
    return Comparison(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        num_gpus=resolved.pool.num_gpus,
        engine=resolved.engine.label,
        basis=resolved.step_model.basis if overheads is None else "fitted to some of these runs",
        kv_capacity_tokens=resolved.memory.kv_capacity_tokens,
        kv_capacity_measured=log is not None and (log.kv_tokens or log.kv_blocks) is not None,
        runs=tuple(
            compare_run(resolved, run, workload, traffic_fields, overheads, log)
            for run, workload in zip(runs, workloads, strict=True)
        ),
        overheads=overheads,
        server_log=tuple(log.rows()) if log else (),
        memory=_memory_rows(planned, log),
    )


def _read_runs(results: Sequence[str | Path]) -> Evidence:
    """Read result files, logs and scrapes. Raises InvalidInput if they contain no benchmark run."""
    if not results:
        raise InvalidInput(
            "no result file: give the output of `vllm bench serve --save-result --save-detailed`"
        )
    evidence = read_evidence(results)
    if evidence.measurements:
        raise InvalidInput(
            f"{evidence.measurements[0]} contains times of kernels, not of requests: use `capacity calibrate`"
        )
    if not evidence.runs:
        raise InvalidInput(
            f"{evidence.sources[0]} contains no benchmark result: add one, or a scrape of the server's /metrics"
        )
    return evidence


def _frontend(resolved: ResolvedPool, request_s: float) -> FrontendTimes:
    return replace(engine_frontend(resolved), request_latency_s=request_s, response_latency_s=0.0)


def _fit_overheads(
    resolved: ResolvedPool, runs: Sequence[MeasuredRun], workloads: Sequence[tuple[Workload, str]]
) -> Overheads:
    """For the 1st, 3rd, ... run, fit the time per step to mean TPOT, then the time per request to mean TTFT. Return the
    median of each across these runs."""
    chosen = [i for i in range(0, len(runs), 2) if {"ttft", "tpot"} <= runs[i].latencies_ms.keys()]
    if not chosen:
        raise InvalidInput("--fit-overheads needs a run with TTFT and TPOT; none of the files has both")
    steps, requests = [], []
    for i in chosen:
        workload = workloads[i][0]
        step_s = _step_overhead(resolved, workload, runs[i].latencies_ms["tpot"]["mean"])
        bare = replay_metrics(resolved, workload, step_s=step_s, frontend=_frontend(resolved, 0.0))
        steps.append(step_s)
        requests.append(max(0.0, (runs[i].latencies_ms["ttft"]["mean"] - bare["mean_ttft_ms"]) / 1e3))
    return Overheads(
        step_s=sorted(steps)[len(steps) // 2],
        request_s=sorted(requests)[len(requests) // 2],
        fitted_to=tuple(runs[i].path for i in chosen),
    )


def _step_overhead(resolved: ResolvedPool, workload: Workload, tpot_ms: float) -> float:
    """Return the overhead (s per step) that raises predicted mean TPOT to `tpot_ms`; 0 if TPOT is already higher."""
    low, high = 0.0, tpot_ms / 1e3
    if (replay_metrics(resolved, workload).get("mean_tpot_ms") or math.inf) >= tpot_ms:
        return 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        predicted = replay_metrics(resolved, workload, step_s=middle).get("mean_tpot_ms") or math.inf
        low, high = (middle, high) if predicted < tpot_ms else (low, middle)
    return (low + high) / 2


def compare_run(
    resolved: ResolvedPool,
    run: MeasuredRun,
    workload: tuple[Workload, str],
    traffic: dict[str, Any],
    overheads: Overheads | None,
    log: ServerLog | None,
) -> RunComparison:
    """Compare a run's measured metrics with the prediction for `workload`, its requests and how they were rebuilt."""
    (requests, how), client = workload, client_traffic(run, traffic)
    frontend = run_frontend(resolved, run)
    if overheads is not None:
        frontend = _frontend(resolved, overheads.request_s)

    def simulate(load: Workload) -> tuple[SimulationResult, dict[str, Quantity]]:
        found = replay(
            resolved, load, step_s=0.0 if overheads is None else overheads.step_s, frontend=frontend
        )
        fitted = overheads is not None
        return found, _predict_with_intervals(resolved, run, load, client, found, fitted=fitted)

    result, known = simulate(requests)
    other = alternative_workload(run, traffic)
    if other is not None:
        known = _hull(known, simulate(other)[1])
    predicted = result.to_dict()
    rows = _metric_rows(run, known, predicted)
    notices = [*requests.notices, *run.notices, *([UNKNOWN_LOAD] if other is not None else [])]
    notices += _run_notices(run, result, overheads, log)
    return RunComparison(
        path=run.path,
        tool=run.tool,
        requests=len(requests),
        workload=how,
        metrics=tuple(rows),
        causes=tuple(
            likely_causes(
                run, rows, predicted, kv_known=log is not None, drafts=resolved.pool.speculator is not None
            )
        ),
        notices=tuple(dict.fromkeys(notices)),
    )


def _run_notices(
    run: MeasuredRun, result: SimulationResult, overheads: Overheads | None, log: ServerLog | None
) -> Iterator[str]:
    """Yield reasons why the prediction for a run may differ from its measurement."""
    if log is not None and log.prefix_hit_rate and run.prefix_hit_rate is None:
        yield (
            f"the log reports a prefix cache hit rate of {log.prefix_hit_rate:.0%}; the simulated prompts share no "
            "prefix"
        )
    if run.failed:
        yield f"{run.failed} requests failed at the server; they are not simulated"
    if result.status != "complete":
        yield f"the simulated engine stalled: {result.reason}"
    if overheads is not None and run.path in overheads.fitted_to:
        yield "the overheads were fitted to this run, so its errors do not show the accuracy of the model"


def _predict_with_intervals(
    resolved: ResolvedPool,
    run: MeasuredRun,
    requests: Workload,
    client: Traffic,
    result: SimulationResult,
    *,
    fitted: bool,
) -> dict[str, Quantity]:
    """Return predicted metrics by the benchmark's metric names, with the intervals of `simulate`.

    If overheads were `fitted`, ignore the engine's maximum throughput, because its computation omits overheads.
    """
    verdict = None if fitted else verdict_on(result, [resolved], Service(), requests)
    bands = run_bands(resolved, requests, result, verdict)
    if bands is None:
        return {}
    bands = replace(bands, as_found=True)
    if run.in_process:
        bands = replace(bands, seen=replace(bands.seen, server_s=0.0))
    percentiles = [int(name[1:]) for name in STATISTICS if name != "mean"]
    latencies = latency_intervals(
        bands, result, client, verdict, names=tuple(METRICS), percentiles=percentiles
    )
    return {**latencies, **rate_intervals(bands, requests, result, verdict)}


def _hull(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return the predictions `one`, with each interval widened to contain that of the same metric in `other`."""
    widened = dict(one)
    for name in one.keys() & other.keys():
        ends = [end for each in (one[name], other[name]) for end in (each.low, each.high) if end is not None]
        if len(ends) == 4:
            widened[name] = replace(one[name], low=min(ends), high=max(ends))
    return widened


def _metric_rows(
    run: MeasuredRun, known: Mapping[str, Quantity], predicted: Mapping[str, Any]
) -> list[MetricRow]:
    """Return a row per measured statistic; for ITL only the mean, because a client may receive several tokens at
    once."""
    measured = {
        f"{statistic}_{metric}_ms": value
        for metric in METRICS
        for statistic in (STATISTICS if metric != "itl" else ("mean",))
        if (value := run.latencies_ms.get(metric, {}).get(statistic)) is not None
    }
    measured |= {name: value for name in THROUGHPUTS if (value := getattr(run, name)) is not None}
    if run.duration_s is not None:
        measured["duration"] = run.duration_s
    rows = []
    for name, value in measured.items():
        found, shown = known.get(name), "duration_s" if name == "duration" else name
        ends = {} if found is None else _interval_ends(found, run.deviations.get(name, 0.0))
        bare = predicted.get(name) if found is None else found.value
        rows.append(MetricRow(name=shown, measured=value, predicted=bare, **ends))
    return rows


def _interval_ends(predicted: Quantity, deviation: float) -> dict[str, float | None]:
    """Return the ends of the interval, widened by the standard `deviation` of the measured value's logarithm."""
    low, high, value = predicted.low, predicted.high, predicted.value
    if not deviation or not low or not high or not value:
        return {"low": low, "high": high}
    down, up = (math.hypot(math.log(end / value), Z_90 * deviation) for end in (low, high))
    return {"low": value * math.exp(-down), "high": value * math.exp(up)}


def _memory_rows(planned: ResolvedPool, log: ServerLog | None) -> tuple[MetricRow, ...]:
    """Return rows that compare the memory in the server's log with the estimate for the same settings (GiB, tokens,
    blocks)."""
    if log is None:
        return ()
    plan = planned.memory
    gib = 2**30
    pairs = (
        ("weights_gib", log.weights_bytes, plan.weights_bytes / gib, gib),
        ("kv_cache_gib", log.kv_cache_bytes, plan.kv_cache_bytes / gib, gib),
        ("graphs_gib", log.graphs_bytes, plan.graph_bytes / gib, gib),
        ("kv_tokens", log.kv_tokens, float(plan.kv_capacity_tokens), 1),
        ("kv_blocks", log.kv_blocks, float(plan.kv_capacity_blocks), 1),
    )
    return tuple(
        MetricRow(name=name, measured=printed / unit, predicted=estimated)
        for name, printed, estimated, unit in pairs
        if printed is not None
    )


GOOD_ERROR = 0.10
LARGE_ERROR = 0.25
CAUSES: Mapping[str, str] = read_data(Path(__file__).with_name("causes.toml"))


def likely_causes(
    run: MeasuredRun,
    rows: Sequence[MetricRow],
    predicted: Mapping[str, Any],
    *,
    kv_known: bool,
    drafts: bool = False,
) -> list[str]:
    """Return likely causes of errors outside the intervals. `kv_known`: a server log was given; `drafts`: the
    simulation includes speculative decoding."""
    errors = {row.name: row.error for row in rows if not row.inside}
    measured = {row.name for row in rows if row.error is not None}
    ttft, tpot = errors.get("mean_ttft_ms"), errors.get("mean_tpot_ms")
    causes = []
    if run.accepted_length and not drafts:
        causes.append(CAUSES["speculation"].format(accepted=run.accepted_length))
    if tpot is not None and abs(tpot) > GOOD_ERROR:
        causes.append(CAUSES["slow_decode" if tpot < 0 else "fast_decode"].format(error=tpot))
    if ttft is not None and ttft < -LARGE_ERROR:
        causes.append(_slow_first_token(run, rows, predicted, kv_known=kv_known))
    if ttft is not None and ttft > LARGE_ERROR:
        causes.append(CAUSES["fast_prefill"].format(error=ttft))
    tail = errors.get("p99_ttft_ms")
    if tail is not None and "mean_ttft_ms" in measured and -tail > LARGE_ERROR >= abs(ttft or 0.0):
        causes.append(CAUSES["tail"])
    if not causes and {"mean_ttft_ms", "mean_tpot_ms"} <= measured:
        causes.append(CAUSES["not_found" if any(row.inside is False for row in rows) else "not_needed"])
    return causes


def _slow_first_token(
    run: MeasuredRun, rows: Sequence[MetricRow], predicted: Mapping[str, Any], *, kv_known: bool
) -> str:
    by_name = {row.name: row for row in rows}
    mean = by_name["mean_ttft_ms"]
    gap_ms = mean.measured - (mean.predicted or 0.0)
    median = by_name.get("p50_ttft_ms")
    if median is not None and median.predicted and median.measured - median.predicted < 0.5 * gap_ms:
        late_ms = median.measured - median.predicted
        return CAUSES["bursts"].format(gap=gap_ms, median=late_ms)
    waits = predicted.get("preemptions") == 0 and run.concurrency and not kv_known
    return CAUSES["queue" if waits else "every_request"].format(gap=gap_ms)
