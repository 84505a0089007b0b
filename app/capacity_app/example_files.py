"""Files to give to pages that ask for some, as their pictures show them: a benchmark, a trace, a sweep."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SWEEP = """schema = "capacity/sweep/v1"
question = "estimate"
[fixed]
model = "llama-3.1-8b"
input_len = 1024
output_len = 256
[vary]
gpu = ["l40s", "a100", "h100", "h200"]
batch_size = [1, 4, 16, 64, 128]
"""


@cache
def example_benchmark() -> Path:
    """A result file as `vllm bench serve` writes it, for the picture alone: of no server, but of
    a simulated H100 with PCIe, which the page holds against one with NVLink."""
    import capacity

    load: dict[str, Any] = {"input_len": 1024, "output_len": 128, "request_rate": 4.0, "num_prompts": 100}
    run = capacity.simulate("llama-3.1-8b", gpu="h100-pcie-80gb", **load)
    records, values = run.run.records, run.to_dict()
    tpot_s = records.latency_s("tpot")
    result = {name: value for name, value in values.items() if name.endswith(("_ms", "_throughput"))} | {
        "backend": "vllm",
        "endpoint_type": "openai",
        "model_id": "llama-3.1-8b",
        "num_prompts": len(records),
        "completed": len(records),
        "request_rate": 4.0,
        "total_input_tokens": int(records.prompt_tokens.sum()),
        "total_output_tokens": int(records.output_tokens.sum()),
        "duration": values["duration"],
        "input_lens": records.prompt_tokens.tolist(),
        "output_lens": records.output_tokens.tolist(),
        "start_times": [record.arrival_s for record in records],
        "ttfts": records.latency_s("ttft").tolist(),
        "itls": [[s] * (n - 1) for s, n in zip(tpot_s.tolist(), records.output_tokens.tolist(), strict=True)],
    }
    path = _folder() / "result.json"
    path.write_text(json.dumps(result))
    return path


@cache
def example_trace() -> Path:
    """Conversations over one system prompt, each turn with all before it."""
    from capacity.workload import LognormalLengths, SteadyArrivals, conversations, write_timed_trace
    from capacity.workload.synthetic import ThinkTime

    workload = conversations(
        num_sessions=600,
        arrivals=SteadyArrivals(1.0),
        turns=LognormalLengths(4, 0.5),
        user_tokens=LognormalLengths(600, 0.8),
        output=LognormalLengths(200, 0.6),
        think_time=ThinkTime(60.0),
        system_prompt_tokens=512,
    )
    path = _folder() / "conversations.jsonl"
    write_timed_trace(workload, path)
    return path


@cache
def example_sweep() -> Path:
    """What `capacity sweep --export` writes of a batch on several GPUs."""
    import capacity

    folder = _folder()
    spec, rows = folder / "sweep.toml", folder / "rows.csv"
    spec.write_text(SWEEP)
    capacity.sweep(spec, folder / "points.sqlite", export_to=rows)
    return rows


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="capacity-example-"))
