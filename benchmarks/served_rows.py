"""Replay published served measurements in closed loop, and say how far off TTFT and TPOT are, by group.

    python benchmarks/served_rows.py [--every 5] [--method formula|simulate] [--only trtllm]

The rows are read from the folder of reference data (CAPACITY_SHARED, or ../shared beside the checkout), never from
the project. `served_launches.toml` says how the servers were started.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from served_data import ServedRow, read_rows, shared_folder
from served_errors import Prediction, print_bands, print_table

from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment import Pool
from capacity.deployment.client_latency import CLIENTS, USUAL_S
from capacity.deployment.engines import EngineSpec
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import FrontendTimes, simulate
from capacity.step import PS_PER_S
from capacity.step.closed_form import closed_loop_times
from capacity.workload import random_requests

ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}
POLICY_OPTIONS = {
    "trtllm": ("asynchronous", "prompts_per_step", "batch_wait_steps", "batch_wait_tokens_fraction"),
    "sglang": ("max_prefill_tokens",),
}
PROMPTS_PER_CONCURRENCY = 10  # InferenceX's scripts; gap-analysis: inferred
LONG_RUN_TOKENS = 100_000  # concurrency x output: beyond, so many rounds stand for ten
LONG_RUN_ROUNDS = 4
LEAST_PROMPTS = 320  # small runs are repeated with other seeds up to this many


# launches


@lru_cache(maxsize=1)
def _launches() -> list[dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "served_launches.toml").read_text())["launch"]


def launch_settings(row: ServedRow) -> dict[str, Any]:
    """What is known of how the server of this row was started."""
    found: dict[str, Any] = {}
    for launch in _launches():
        if _matches(row, launch["match"]):
            found = {key: value for key, value in launch.items() if key != "match"} | found
    return found


def _matches(row: ServedRow, match: Mapping[str, Any]) -> bool:
    for key, wanted in match.items():
        if key == "tensor_parallel_below":
            holds = row.tensor_parallel < wanted
        elif key == "data_parallel_above":
            holds = row.data_parallel > wanted
        elif key == "concurrency_from":
            holds = row.concurrency >= wanted
        elif key == "version":
            holds = row.version.startswith(wanted) if wanted else row.version == ""
        else:
            holds = getattr(row, key) == wanted
        if not holds:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Server:
    """A row's server: one engine, of one or more data-parallel ranks."""

    resolved: ResolvedPool
    frontend: FrontendTimes
    first_message_tokens: int
    policy_options: dict[str, Any]
    prompt_wait_steps: int
    concurrency: int


def server_of(
    row: ServedRow, *, engine: str | None = None, launch: Mapping[str, Any] | None = None
) -> Server:
    """The server that this row describes, started as its campaign says or as `launch` does.

    Raises CapacityError where it cannot be (does not fit, unknown format).
    """
    launch = launch_settings(row) if launch is None else launch
    if not launch.get("reads_data_parallel", True):
        row = replace(row, tensor_parallel=row.tensor_parallel * row.data_parallel, data_parallel=1)
    row = replace(row, expert_parallel=launch.get("enable_expert_parallel", row.expert_parallel))
    concurrency = max(1, row.concurrency // row.data_parallel)  # of a rank
    model_len = row.input_len + row.output_len + launch.get("model_len_extra", 64)
    budget = launch.get("max_num_batched_tokens")
    budget = {"model length": model_len, "two prompts": 2 * row.input_len}.get(budget, budget)
    everybody = (
        row.concurrency if row.backend == "vllm" else concurrency
    )  # vLLM gives each rank the whole limit
    slots = {"concurrency": everybody, "concurrency - 1": concurrency - 1}.get(
        launch.get("max_num_seqs"), launch.get("max_num_seqs")
    )
    if budget is not None and slots is not None:
        budget = max(budget, slots)
    name = engine or launch.get("engine") or _engine_label(row)
    resolved = resolve(
        row.model,
        Pool(
            gpu=row.gpu,
            tensor_parallel_size=row.tensor_parallel,
            data_parallel_size=row.data_parallel,
            enable_expert_parallel=row.expert_parallel,
            quantization=row.quantization,
            kv_cache_dtype=launch.get("kv_cache_dtype", "auto"),
            moe_backend=launch.get("moe_backend", "auto"),
            gpu_memory_utilization=launch.get("gpu_memory_utilization"),
            engine=name,
            max_model_len=model_len,
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
            enable_prefix_caching=False,
            async_scheduling=launch.get("async_scheduling"),
            enforce_eager=launch.get("enforce_eager", False),
            max_cudagraph_capture_size=_number(launch.get("max_cudagraph_capture_size"), concurrency),
            cudagraph_padding=launch.get("cudagraph_padding"),
            scheduler_recv_interval=launch.get("scheduler_recv_interval", 1),
            api_server_count=launch.get("api_server_count", 1),
        ),
    )
    if "weight_kernels" in launch:
        own = resolved.engine.weight_kernels | launch["weight_kernels"]
        resolved = changed(resolved, lambda spec: spec.model_copy(update={"weight_kernels": own}))
    usual = engine_frontend(resolved)
    frontend = FrontendTimes(
        request_latency_s=usual.request_latency_s,
        response_latency_s=usual.response_latency_s,
        output_token_s=launch.get("output_token_s", usual.output_token_s),
        input_token_s=launch.get("input_token_s", usual.input_token_s),
        request_s=usual.request_s,
        # message boundaries matter only to the queue: neither TTFT nor TPOT sees them otherwise
        stream_interval=1 if launch.get("output_token_s") == 0 else launch.get("stream_interval", 1),
        processes=usual.processes,
    )
    options = {key: launch[key] for key in POLICY_OPTIONS.get(row.backend, ()) if key in launch}
    return Server(
        resolved=resolved,
        frontend=frontend,
        first_message_tokens=launch.get("first_message_tokens", 1),
        policy_options=options,
        prompt_wait_steps=launch.get("prompt_wait_steps", 0) if row.data_parallel > 1 else 0,
        concurrency=concurrency * row.data_parallel,
    )


def _number(given: int | str | None, concurrency: int) -> int | None:
    return concurrency if given == "concurrency" else given  # type: ignore[return-value]


def _engine_label(row: ServedRow) -> str:
    name = ENGINES[row.backend]
    listed = row.version and row.version[0].isdigit()
    return f"{name}@{row.version}" if listed else name


# predictions

EngineChange = Callable[[EngineSpec], EngineSpec]


def changed(resolved: ResolvedPool, change: EngineChange) -> ResolvedPool:
    """The same deployment with other constants of its engine."""
    return replace(resolved, engine=change(resolved.engine))


def by_formula(row: ServedRow) -> Prediction:
    """The closed loop's steady state: a check of step times, without queueing."""
    try:
        server = server_of(row)
        times = closed_loop_times(
            server.resolved.step_model,
            server.resolved.limits,
            server.concurrency,
            ranks=server.resolved.lockstep_ranks,
            input_len=max(1, round(row.input_len * row.length_scale)),
            output_len=max(2, round(row.output_len * row.length_scale)),
        )
    except CapacityError as error:
        return Prediction(row=row, problem=str(error))
    return Prediction(row=row, ttft_s=times.ttft_s, tpot_s=times.tpot_s)


def by_simulation(row: ServedRow, *, change: EngineChange | None = None) -> Prediction:
    """The row's own run: 10 prompts for each place in the loop, means over all requests."""
    try:
        server = server_of(row)
        if change is not None:
            server = replace(server, resolved=changed(server.resolved, change))
        return simulated(row, server)
    except CapacityError as error:
        return Prediction(row=row, problem=str(error))


def simulated(row: ServedRow, server: Server) -> Prediction:
    """The row's run on this server."""
    try:
        means = simulated_means(row, server)
    except CapacityError as error:
        return Prediction(row=row, problem=str(error))
    return Prediction(row=row, ttft_s=means.ttft_s, tpot_s=means.tpot_s)


@dataclass(frozen=True, kw_only=True)
class SimulatedMeans:
    """Means over all requests of a row's runs, in seconds; `waiting_s` of TTFT passes before the first schedule."""

    ttft_s: float
    tpot_s: float
    waiting_s: float


def simulated_means(
    row: ServedRow, server: Server, *, client_latency_s: float | None = None
) -> SimulatedMeans:
    """A row's runs on its server, seen by its campaign's client or by one that far away. Raises CapacityError."""
    rounds = PROMPTS_PER_CONCURRENCY
    if server.concurrency * row.output_len > LONG_RUN_TOKENS:
        rounds = LONG_RUN_ROUNDS
    num_prompts = rounds * server.concurrency
    means = []
    for seed in range(max(1, round(LEAST_PROMPTS / num_prompts))):
        workload = _workload(row, num_prompts, server.concurrency, seed)
        if client_latency_s is not None:
            workload = replace(workload, client_latency_s=client_latency_s)
        setup = setup_of(server.resolved)
        result = simulate(
            workload,
            replace(
                setup,
                policy_options={**setup.policy_options, **server.policy_options},
                prompt_wait_steps=server.prompt_wait_steps,
            ),
            frontend=server.frontend,
        )
        if result.status != "complete":
            raise InvalidInput(result.reason or result.status)
        records = result.records
        waited = float((records.first_scheduled_ps - records.arrival_ps).mean()) / PS_PER_S
        means.append((*_means(records, server.concurrency, rounds), waited))
    ttft, tpot, waiting = np.mean(means, axis=0)
    ttft += (server.first_message_tokens - 1) * tpot  # a client knows of messages
    return SimulatedMeans(ttft_s=float(ttft), tpot_s=float(tpot), waiting_s=float(waiting))


def _means(records: Any, concurrency: int, rounds: int) -> tuple[float, float]:
    """TTFT and TPOT over the whole run; of a shortened one, its middle stands for the rounds that are missing."""
    ttft = (records.first_token_ps - records.arrival_ps) / PS_PER_S
    tpot = (records.finish_ps - records.first_token_ps) / PS_PER_S / np.maximum(records.output_tokens - 1, 1)
    weights = np.ones(len(ttft))
    weights[concurrency:-concurrency] = (PROMPTS_PER_CONCURRENCY - 2) / (rounds - 2)
    return float(np.average(ttft, weights=weights)), float(np.average(tpot, weights=weights))


def _workload(row: ServedRow, num_prompts: int, concurrency: int, seed: int) -> Any:
    """Lengths fixed, or (InferenceX) uniform from 0.8 to 1.0 of the label: `length_scale` is their mean."""
    spread = (1 - row.length_scale) / row.length_scale
    drawn = random_requests(
        num_requests=num_prompts,
        input_len=round(row.input_len * row.length_scale),
        output_len=round(row.output_len * row.length_scale),
        request_rate_per_s=math.inf,
        burstiness=1.0,
        range_ratio=spread,
        concurrency=concurrency,
        seed=seed,
    )
    return replace(drawn, client_latency_s=client_seconds(row))


def client_seconds(row: ServedRow) -> float:
    """Return the client latency of the row's campaign, or the usual one where the campaign's is not known."""
    name = {"InferenceX": "inferencex"}.get(row.campaign, f"{row.backend}-{row.campaign}")
    return next((client.seconds for client in CLIENTS if client.name == name), USUAL_S)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--method", choices=("simulate", "formula"), default="simulate")
    parser.add_argument("--only", default="", help="only rows whose group contains this text")
    parser.add_argument("--class", dest="model_class", choices=("dense", "moe"), default=None)
    parser.add_argument("--most-tokens", type=int, default=None, help="leave out runs of more output tokens")
    parser.add_argument("--save", default=None, help="write the predictions to this CSV file")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    rows = read_rows(folder, dense=options.model_class != "moe", moe=options.model_class != "dense")
    rows = [row for row in rows if options.only in " ".join(row.group)]
    if options.most_tokens:
        rows = [
            r for r in rows if r.concurrency * r.output_len * PROMPTS_PER_CONCURRENCY <= options.most_tokens
        ]
    predict = by_simulation if options.method == "simulate" else by_formula
    begin = time.process_time()
    predictions = [predict(row) for row in rows[:: options.every]]
    print_table(predictions)
    print_bands(predictions)
    print(f"{len(predictions)} rows in {time.process_time() - begin:.0f} CPU s")
    if options.save:
        _save(predictions, Path(options.save))
    return 0


def _save(predictions: list[Prediction], path: Path) -> None:
    import dataclasses

    import pandas as pd

    pd.DataFrame(
        [
            {
                **dataclasses.asdict(p.row),
                "predicted_ttft_s": p.ttft_s,
                "predicted_tpot_s": p.tpot_s,
                "problem": p.problem,
            }
            for p in predictions
        ]
    ).to_csv(path, index=False)


if __name__ == "__main__":
    sys.exit(main())
