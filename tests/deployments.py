"""Deployments and workloads that every shape of simulation is tried on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capacity.simulator import EngineSetup
from capacity.simulator.transfer import KvLink
from capacity.step import AffineStepTimes
from capacity.workload import random_requests

ENGINE = EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=40)


LINK = KvLink(bytes_per_token=1e3, bytes_per_s=1e9)


DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "an engine": {"setups": ENGINE},
    "data-parallel ranks": {"setups": replace(ENGINE, data_parallel_size=2)},
    "behind a queue limit": {"setups": ENGINE, "queue_limit": 10**6},
    "replicas": {"setups": [ENGINE] * 3, "router": "least-outstanding"},
    "disaggregated": {
        "setups": [replace(ENGINE, role="prefill"), replace(ENGINE, role="decode")],
        "link": LINK,
    },
}


WORKLOADS = {
    "open": random_requests(
        num_requests=401, input_len=30, output_len=20, request_rate_per_s=9.0, burstiness=1.0, seed=3
    ),
}


WORKLOADS["closed"] = WORKLOADS["open"].in_closed_loop(6)
