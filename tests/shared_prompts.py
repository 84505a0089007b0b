"""Requests whose prompts share text."""

from __future__ import annotations

from capacity.answers.engine_setup import make_workload
from capacity.deployment import Traffic
from capacity.workload import Workload

PREFIXES = {"input_len": 300, "random_prefix_len": 300, "num_prefixes": 5}

TURNS = {"input_len": 200, "turns": "4"}


def requests(**traffic: object) -> Workload:
    asked = {"output_len": 40, "random_range_ratio": 0.0, "request_rate": 4.0, "num_prompts": 300, **traffic}
    return make_workload(Traffic(**asked))  # type: ignore[arg-type]
