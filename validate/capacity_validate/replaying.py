"""Replaying what a benchmark sent: the server as described, the requests as measured, the simulator in its place."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capacity.answers.engine_setup import engine_frontend, engine_setup, make_workload, requests_of
from capacity.base.errors import InvalidInput
from capacity.base.keywords import split
from capacity.deployment import Pool, Traffic, build
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import FrontendTimes, SimulationResult, simulate
from capacity.step import DecodePiece, StepShape, StepTimes, picoseconds
from capacity.step.export import DelayedData
from capacity.workload import Workload
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


def split_options(verb: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the pool, and those of the traffic that a file may lack. Raises InvalidInput for others."""
    pool_fields, traffic_fields = split(options, Pool, Traffic)
    build(Traffic, traffic_fields)  # rejects a bad value, whether the files need it or not
    unknown = [name for name in traffic_fields if name not in TRAFFIC_FIELDS]
    if unknown:
        raise InvalidInput(f"{verb} takes no {unknown[0]!r}: it replays what the files say was sent")
    return pool_fields, traffic_fields


def workload_of(run: MeasuredRun, traffic: dict[str, Any]) -> tuple[Workload, str]:
    """The requests of a run, from as far as its client is, and how they were rebuilt. Raises as `_rebuilt`."""
    workload, how = _rebuilt(run, traffic)
    workload, client = replace(workload, offline=run.in_process), client_of(run, traffic)
    if "client_latency_s" not in client.model_fields_set:
        return requests_of(client, workload), how
    return replace(workload, client_latency_s=client.client_latency_s), how


def client_of(run: MeasuredRun, traffic: dict[str, Any]) -> Traffic:
    """How far a run's client is, as it was said or as its tool knows it; nothing said: as usual."""
    away_s = traffic.get("client_latency_s", 0.0 if run.in_process else run.client_latency_s)
    return Traffic() if away_s is None else build(Traffic, {"client_latency_s": away_s})


def _rebuilt(run: MeasuredRun, traffic: dict[str, Any]) -> tuple[Workload, str]:
    """The requests of a run, and how they were rebuilt. Raises InvalidInput naming what is missing."""
    concurrency = traffic.get("concurrency", run.concurrency)
    if concurrency != run.concurrency:
        run = replace(run, concurrency=concurrency)
    exact = run.workload()
    if exact is not None:
        return exact, "replayed request by request"
    rate = traffic.get("request_rate", run.request_rate)
    if run.requests is not None and (rate is not None or concurrency is not None):
        return _drawn_arrivals(run, rate, concurrency, traffic), "lengths as measured, arrivals drawn anew"
    lacking = [
        flag
        for flag, name in (("--input-len", "input_len"), ("--output-len", "output_len"))
        if name not in traffic
    ]
    if run.requests is None and lacking:
        means = [run.mean_prompt_tokens, run.mean_output_tokens]
        hint = "".join(
            f"; its mean {what} is {mean:.0f} tokens"
            for what, mean in zip(("prompt", "output"), means, strict=True)
            if mean
        )
        raise InvalidInput(
            f"{run.path} does not hold the lengths of its requests{hint}: give {' and '.join(lacking)} as the "
            "benchmark was run (with --random-range-ratio where it had one)"
            + (", or run it with --save-detailed" if run.tool == "vllm bench serve" else "")
        )
    if rate is None and concurrency is None:
        raise InvalidInput(
            f"{run.path} does not say how requests arrived: give --request-rate or --concurrency"
        )
    fields = {"request_rate": rate if rate is not None else math.inf, "burstiness": run.burstiness}
    fields |= {"random_range_ratio": 0.0, **traffic}  # equal lengths: vllm bench serve's default
    fields |= {"num_prompts": run.num_requests or concurrency or 1}
    if concurrency is not None:
        fields["concurrency"] = concurrency
    return make_workload(
        build(Traffic, fields)
    ), "lengths and arrivals drawn anew from the benchmark's settings"


def _drawn_arrivals(
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


# simulate


class _WithOverhead:
    """Step times with a constant added to every step."""

    def __init__(self, inner: StepTimes, step_s: float) -> None:
        self._inner = inner
        self._added_ps = picoseconds(step_s)

    def step_ps(self, shape: StepShape) -> int:
        return max(1, self._inner.step_ps(shape) + self._added_ps)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:
        piece = self._inner.decode_piece(shape)
        return None if piece is None else piece._replace(base_ps=piece.base_ps + self._added_ps)

    def step_data(self) -> DelayedData:
        return DelayedData(inner=self._inner, added_ps=self._added_ps)


def frontend_of(resolved: ResolvedPool, run: MeasuredRun) -> FrontendTimes:
    """What lies between client and engine: nothing where the requests were made beside the engine."""
    return FrontendTimes() if run.in_process else engine_frontend(resolved)


def replay(
    resolved: ResolvedPool, workload: Workload, *, step_s: float = 0.0, frontend: FrontendTimes | None = None
) -> SimulationResult:
    """The requests served by the pool's engine, `step_s` added to each of its steps."""
    times: StepTimes = resolved.step_model if not step_s else _WithOverhead(resolved.step_model, step_s)
    setup = replace(engine_setup(resolved), step_times=times)
    return simulate(workload, setup, frontend=frontend or engine_frontend(resolved))


def replayed(
    resolved: ResolvedPool, workload: Workload, *, step_s: float = 0.0, frontend: FrontendTimes | None = None
) -> dict[str, Any]:
    """The benchmark's own metrics of a simulated run, by its names; `status` and `reason` say how it ended."""
    result = replay(resolved, workload, step_s=step_s, frontend=frontend)
    return {**result.to_dict(), "status": result.status, "rejected": result.rejected}
