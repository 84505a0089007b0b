"""Result files of servers that are the simulator with other constants: what was planted is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capacity_validate.replaying import replay_metrics

from capacity.answers.engine_setup import requests_of
from capacity.deployment import Pool, Traffic
from capacity.hardware.adjustment import NO_ADJUSTMENT
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import random_requests

MODEL, GPU, RANKS = "llama-3.1-70b", "h200", 4


def server(**planted: float) -> ResolvedPool:
    """A server whose constants are off by this much (`capacity.hardware.adjustment`)."""
    return resolve(MODEL, Pool(gpu=GPU, tensor_parallel_size=RANKS)).adjusted_by(
        NO_ADJUSTMENT.shift_means(planted)
    )


def result_file(path: Path, served: ResolvedPool, concurrency: int, **changes: Any) -> Path:
    """What `vllm bench serve --save-detailed` writes of a closed loop against it."""
    workload = requests_of(
        Traffic(),
        random_requests(
            num_requests=6 * concurrency,
            input_len=1000,
            output_len=100,
            range_ratio=0.2,
            request_rate_per_s=math.inf,
            concurrency=concurrency,
            seed=3,
        ),
    )
    metrics: Mapping[str, Any] = replay_metrics(served, workload)
    document = {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-70B-Instruct",
        "num_prompts": len(workload),
        "completed": len(workload),
        "failed": 0,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        **{name: value for name, value in metrics.items() if name.endswith("_ms")},
        **{
            name: float(metrics[name])
            for name in (
                "duration",
                "total_input_tokens",
                "total_output_tokens",
                "request_throughput",
                "output_throughput",
            )
        },
        "input_lens": [int(n) for n in workload.prompt_tokens],
        "output_lens": [int(n) for n in workload.output_tokens],
        **changes,
    }
    path.write_text(json.dumps(document))
    return path
