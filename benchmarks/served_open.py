"""Replay published open-loop serving runs: APEX with every arrival known, others with arrivals of known means.

    python benchmarks/served_open.py

APEX (vLLM 0.6, Llama-3.1-70B on H100) measures at the server and counts the first token in TPOT; runs whose trace is
not at hand are left out. IOG (vLLM 0.8.5, H100 PCIe) publishes mean lengths of its 200 ShareGPT prompts only: here
every request has them, which leaves the longest answers out. The inference-sim runs (vLLM V1, H100, inference-perf at
constant rates) cycle through some 45 prompts: all but the first of each are prefix hits.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from served_data import shared_folder
from served_rows import EngineChange, changed

from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.deployment.client_latency import USUAL_S
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import FrontendTimes, SimulationResult, simulate
from capacity.workload import Workload, random_requests
from capacity.workload.content import PromptContent

IOG_MODELS = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "qwen2.5-14b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "Qwen/QwQ-32B-Preview": "qwen2.5-32b",
}
IOG_PROMPTS = 200
IOG_MEMORY_UTILIZATION = 0.95  # inferred: at 0.9 the 70B model would not fit its two GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """One measured run and its prediction, means in seconds."""

    source: str
    label: str
    ttft_s: float
    tpot_s: float
    predicted_ttft_s: float
    predicted_tpot_s: float
    model: str
    resolved: ResolvedPool
    workload: Workload
    result: SimulationResult
    measured_ms: Mapping[str, float]  # all that its source gives, by metric
    e2e_s: float = math.nan  # where its source gives it
    predicted_e2e_s: float = math.nan

    def error(self, metric: str) -> float:
        """Predicted over measured, minus one."""
        return float(getattr(self, f"predicted_{metric}") / getattr(self, metric) - 1)


def apex_runs(folder: Path) -> Iterator[OpenRun]:
    """Whole-trace runs of one replica, their own arrivals; timed at the server."""
    import pandas as pd

    measured = folder / "reference" / "measured"
    table = pd.read_csv(measured / "apex_serving.csv.gz")
    traces = dict(list(pd.read_csv(measured / "apex_traces.csv.gz").groupby("trace")))
    table["trace"] = [re.match(r"trace (\S+?);", notes) for notes in table.notes]
    table = table[[match is not None for match in table.trace]]
    table["trace"] = [match.group(1) for match in table.trace]
    for (tensor_parallel, name), rows in table.groupby(["tp", "trace"]):
        values = dict(zip(rows.metric, rows.value, strict=True))
        if name not in traces or "ttft_mean_ms" not in values:
            continue
        workload = _apex_workload(traces[name], int(tensor_parallel), name)
        pool = Pool(gpu="h100-sxm-80gb", engine="vllm@0.6", tensor_parallel_size=int(tensor_parallel))
        resolved = resolve("llama-3.1-70b", pool.model_copy(update={"max_model_len": 8192}))
        result = simulate(workload, setup_of(resolved), frontend=FrontendTimes())
        records = result.records
        decode_s = (records.finish_ps - records.first_token_ps).sum() / 1e12
        yield OpenRun(
            source="apex",
            label=f"{name} tp{tensor_parallel}",
            ttft_s=values["ttft_mean_ms"] / 1e3,
            tpot_s=values["tpot_mean_ms"] / 1e3,
            predicted_ttft_s=float((records.first_token_ps - records.arrival_ps).mean()) / 1e12,
            predicted_tpot_s=decode_s / records.output_tokens.sum(),
            model="llama-3.1-70b",
            resolved=resolved,
            workload=workload,
            result=result,
            measured_ms=values,
        )


def _apex_workload(trace: Any, tensor_parallel: int, name: str) -> Workload:
    actual = f"actual_prompt_tokens_{tensor_parallel}TP"
    known = actual in trace and trace[actual].notna().all()
    prompt = trace[actual] if known else trace.context_tokens
    output = trace[actual.replace("prompt", "output")] if known else trace.generated_tokens
    return Workload(
        arrival_s=trace.arrival_s.to_numpy(),
        prompt_tokens=np.maximum(prompt.to_numpy(dtype=np.int64), 1),
        output_tokens=np.maximum(output.to_numpy(dtype=np.int64), 1),
        name=name,
    )


def iog_runs(folder: Path, *, change: EngineChange = lambda engine: engine) -> Iterator[OpenRun]:
    """Every model and rate on H100 PCIe."""
    import pandas as pd

    table = pd.read_csv(folder / "reference" / "measured" / "iog_h100_pcie.csv.gz")
    for (model, tensor_parallel, rate), rows in table.groupby(["model", "tp", "qps"]):
        values = dict(zip(rows.metric, rows.value, strict=True))
        pool = Pool(
            gpu="h100-pcie-80gb",
            engine="vllm@0.8",
            tensor_parallel_size=int(tensor_parallel),
            gpu_memory_utilization=IOG_MEMORY_UTILIZATION,
            max_num_seqs=256,
            max_model_len=4096,
        )
        workload = random_requests(
            num_requests=IOG_PROMPTS,
            input_len=round(rows.input_len.mean()),
            output_len=round(rows.output_len.mean()),
            request_rate_per_s=float(rate),
            burstiness=1.0,
            seed=0,
        )
        try:
            resolved = changed(resolve(IOG_MODELS.get(model, model), pool), change)
            run = simulate(workload, setup_of(resolved), frontend=engine_frontend(resolved))
            summary = run.summary.to_dict()
        except CapacityError as error:
            print(f"iog {model}: {error}", file=sys.stderr)
            continue
        yield OpenRun(
            source="iog",
            label=f"{model.split('/')[-1]} tp{tensor_parallel} {rate:g}/s",
            ttft_s=values["ttft_mean_ms"] / 1e3,
            tpot_s=values["tpot_mean_ms"] / 1e3,
            predicted_ttft_s=summary["mean_ttft_ms"] / 1e3,
            predicted_tpot_s=summary["mean_tpot_ms"] / 1e3,
            model=str(model).split("/")[-1],
            resolved=resolved,
            workload=workload,
            result=run,
            measured_ms=values,
        )


INFERENCE_SIM_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
}
INFERENCE_SIM_PROMPTS = 2000  # of 3,000 to 12,000 alike


def inference_sim_runs(
    folder: Path, *, client_latency_s: float = USUAL_S, change: EngineChange = lambda engine: engine
) -> Iterator[OpenRun]:
    """Every stage but those that were overloaded; medians of TTFT, and E2E's mean as if it were decode alone."""
    import pandas as pd

    table = pd.read_csv(folder / "reference" / "measured" / "blis_training_runs.csv.gz")
    stage = table.url.str.extract(r"(stage_\d)")[0].notna() & ~table.notes.str.contains("reasoning")
    for (model, _url), rows in table[stage].groupby(["model", "url"]):
        values = dict(zip(rows.metric, rows.value, strict=True))
        notes, first = rows.notes.iloc[0], rows.iloc[0]
        pool = Pool(
            gpu="h100-sxm-80gb",
            engine="vllm@0.15",
            tensor_parallel_size=int(first.tp),
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            max_model_len=4096,
        )
        prompts, outputs = (
            int(re.search(pattern, notes).group(1)) for pattern in (r"prompts=(\d+)", r"output_len=(\d+)")
        )
        count, prompt = INFERENCE_SIM_PROMPTS, round(first.input_len)
        workload = Workload(
            arrival_s=np.arange(count) / float(first.qps),
            prompt_tokens=np.full(count, prompt),
            output_tokens=np.full(count, outputs),
            content=PromptContent.from_segments([[(i % prompts, prompt)] for i in range(count)]),
            client_latency_s=client_latency_s,
        )
        resolved = changed(resolve(INFERENCE_SIM_MODELS[model], pool), change)
        run = simulate(workload, setup_of(resolved), frontend=engine_frontend(resolved))
        summary = run.summary.to_dict()
        ttft_s, predicted_ttft_s = values["ttft_median_ms"] / 1e3, summary["median_ttft_ms"] / 1e3
        decoded_s = (values["e2e_mean_ms"] - values["ttft_mean_ms"]) / 1e3
        yield OpenRun(
            source="inference-sim",
            label=f"{model.split('/')[-1]} tp{first.tp} {first.qps}/s",
            ttft_s=ttft_s,
            tpot_s=decoded_s / (outputs - 1),
            predicted_ttft_s=predicted_ttft_s,
            predicted_tpot_s=summary["mean_tpot_ms"] / 1e3,
            e2e_s=values["e2e_mean_ms"] / 1e3,
            predicted_e2e_s=summary["mean_e2el_ms"] / 1e3,
            model=str(model).split("/")[-1],
            resolved=resolved,
            workload=workload,
            result=run,
            measured_ms=values,
        )


def main() -> int:
    """Print every run, then median and 90th percentile of the errors by source."""
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    for runs in (apex_runs, iog_runs, inference_sim_runs):
        found = list(runs(folder))
        for run in found:
            print(
                f"{run.source} {run.label:44} TTFT {run.ttft_s * 1e3:7.1f} {run.error('ttft_s') * 100:+6.0f} %  "
                f"TPOT {run.tpot_s * 1e3:6.1f} {run.error('tpot_s') * 100:+6.0f} %"
            )
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            errors = [run.error(metric) for run in found if not math.isnan(run.error(metric))]
            if not errors:
                continue
            absolute = np.abs(errors)
            print(
                f"{runs.__name__} {metric} n {len(errors)} median {np.median(absolute) * 100:.1f} % "
                f"p90 {np.percentile(absolute, 90) * 100:.1f} % bias {np.median(errors) * 100:+.1f} %"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
