"""The load of a measured run: its requests as the files and the user's options describe them."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.answers.engine_setup import make_workload, requests_of
from capacity.base.errors import InvalidInput
from capacity.base.keywords import split
from capacity.deployment import Pool, Traffic, build
from capacity.workload import Workload
from capacity.workload.synthetic import add_prefix
from capacity_validate.benchmark_results import MeasuredRun

TRAFFIC_FIELDS = (
    "input_len",
    "output_len",
    "request_rate",
    "concurrency",
    "random_range_ratio",
    "burstiness",
    "client_latency_s",
    "seed",
)
UNKNOWN_LOAD = (
    "the file does not fully describe the load (lengths of requests, or how the rate varies), so the intervals also "
    "contain the predictions for lognormal lengths or the rate of a usual day's peak"
)
MIN_PREFIX_HIT_RATE = 0.01  # below, prompts share only a few tokens of their template
MAX_PREFIX_HIT_RATE = 0.99  # at least one token of a prompt is computed


def split_options(verb: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into `Pool` fields, and `Traffic` fields that a file may lack. Raises InvalidInput for others."""
    pool_fields, traffic_fields = split(options, Pool, Traffic)
    build(Traffic, traffic_fields)  # reject a bad value even if the files do not need it
    unknown = [name for name in traffic_fields if name not in TRAFFIC_FIELDS]
    if unknown:
        raise InvalidInput(f"{verb} does not take {unknown[0]!r}, because it replays the load in the files")
    return pool_fields, traffic_fields


def rebuild_workload(run: MeasuredRun, traffic: dict[str, Any]) -> tuple[Workload, str]:
    """Return a run's requests, and a text on how they were rebuilt. Raises InvalidInput if a value is missing."""
    workload, how = _rebuild_requests(run, traffic)
    workload, client = replace(workload, offline=run.in_process), client_traffic(run, traffic)
    if "client_latency_s" not in client.model_fields_set:
        return requests_of(client, workload), how
    return replace(workload, client_latency_s=client.client_latency_s), how


def client_traffic(run: MeasuredRun, traffic: dict[str, Any]) -> Traffic:
    """Return a `Traffic` that has only the client's latency: the user's value, else the tool's, else the default."""
    away_s = traffic.get("client_latency_s", 0.0 if run.in_process else run.client_latency_s)
    return Traffic() if away_s is None else build(Traffic, {"client_latency_s": away_s})


def _rebuild_requests(run: MeasuredRun, traffic: dict[str, Any]) -> tuple[Workload, str]:
    concurrency = traffic.get("concurrency", run.concurrency)
    if concurrency != run.concurrency:
        run = replace(run, concurrency=concurrency)
    exact = run.workload()
    if exact is not None:
        return exact, "replayed request by request"
    rate = traffic.get("request_rate", run.request_rate)
    if run.requests is not None and (rate is not None or concurrency is not None):
        resampled = _resample_arrivals(run, rate, concurrency, traffic)
        return _share_prefix(resampled, run.prefix_hit_rate), "measured lengths, resampled arrivals"
    means = {"input_len": run.mean_prompt_tokens, "output_len": run.mean_output_tokens}
    lengths = {name: max(1, round(mean)) for name, mean in means.items() if mean and name not in traffic}
    if run.requests is None:
        _require_lengths(run, traffic.keys() | lengths)
    if rate is None and concurrency is None:
        copied = " (`cp -p` keeps a scrape's time)" if run.tool.endswith("metrics") else ""
        raise InvalidInput(
            f"{run.path} does not record how requests arrived: give --request-rate or --concurrency{copied}"
        )
    fields = {"request_rate": rate if rate is not None else math.inf, "burstiness": run.burstiness}
    if "length_distribution" not in traffic:  # identical lengths: the default of vllm bench serve
        fields["random_range_ratio"] = run.range_ratio or 0.0
    fields |= {**lengths, **traffic}
    fields |= {"num_prompts": run.num_requests or concurrency or 1}
    if concurrency is not None:
        fields["concurrency"] = concurrency
    workload = _share_prefix(make_workload(build(Traffic, fields)), run.prefix_hit_rate)
    how = "mean lengths in the file" if lengths else "lengths"
    return workload, f"{how} and arrivals resampled from the benchmark's settings"


def _require_lengths(run: MeasuredRun, known: Collection[str]) -> None:
    """Raise InvalidInput if neither the run nor the user gives the lengths of prompts and outputs."""
    flags = {"input_len": "--input-len", "output_len": "--output-len"}
    lacking = [flag for name, flag in flags.items() if name not in known]
    if lacking:
        raise InvalidInput(
            f"{run.path} does not contain the lengths of its requests: give {' and '.join(lacking)} as in the "
            "benchmark (and --random-range-ratio if it was used)"
        )


def alternative_workload(run: MeasuredRun, traffic: dict[str, Any]) -> Workload | None:
    """Return a second possible workload of a run that does not list its requests; None if the workload is known.

    If only mean lengths are known, the main workload has identical lengths and the alternative lognormal lengths. If
    the request rate is a mean over hours, the alternative has the rate of a usual day's peak.
    """
    options = dict(traffic)
    if run.requests is None and run.range_ratio is None and "random_range_ratio" not in traffic:
        options["length_distribution"] = "lognormal"
    if (
        run.rate_varies
        and run.request_rate is not None
        and not {"request_rate", "concurrency"} & traffic.keys()
    ):
        options["request_rate"] = run.request_rate * Traffic().day_peak_to_mean
    return None if options == traffic or run.workload() is not None else rebuild_workload(run, options)[0]


def _share_prefix(workload: Workload, rate: float | None) -> Workload:
    """Return the requests with a shared prefix, so that the fraction `rate` of the prompt tokens hits the prefix
    cache."""
    if rate is None or rate < MIN_PREFIX_HIT_RATE or workload.content is not None:
        return workload
    shared = math.ceil(min(rate, MAX_PREFIX_HIT_RATE) * float(workload.prompt_tokens.mean()))
    own = np.maximum(workload.prompt_tokens - shared, 1)
    content = add_prefix(np.zeros(len(own), dtype=np.int64), shared, own, 1)
    return replace(workload, prompt_tokens=own + shared, content=content)


def _resample_arrivals(
    run: MeasuredRun, rate: float | None, concurrency: int | None, traffic: dict[str, Any]
) -> Workload:
    assert run.requests is not None
    fields = {
        "input_len": 1,
        "output_len": 1,
        "num_prompts": len(run.requests.prompt_tokens),
        "request_rate": math.inf if rate is None else rate,
        "burstiness": traffic.get("burstiness", run.burstiness),
        "seed": traffic.get("seed", 0),
    }
    drawn = make_workload(build(Traffic, fields))
    return Workload(
        arrival_s=drawn.arrival_s,
        prompt_tokens=run.requests.prompt_tokens,  # type: ignore[arg-type]
        output_tokens=run.requests.output_tokens,  # type: ignore[arg-type]
        concurrency=concurrency,
        name=f"{run.tool} run",
        source=run.path,
        notices=run.notices,
    )
