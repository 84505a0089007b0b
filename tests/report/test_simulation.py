"""A simulation as tables: what stands at the start, and levels that are met or not."""

from __future__ import annotations

from typing import Any

import capacity
from capacity.report.layout import printed
from capacity.report.simulation import PERCENTILES, latency_text, simulation_tables

LOAD: dict[str, Any] = {
    "gpu": "h100", "input_len": 200, "output_len": 20, "request_rate": 8.0, "num_prompts": 60, "seed": 3,
}  # fmt: skip


def text_of(**options: Any) -> str:
    return printed(simulation_tables(capacity.simulate("llama-3.1-8b", **LOAD, **options)))


def test_one_engine_is_its_gpus_and_several_are_counted() -> None:
    assert "on 1 x h100-sxm-80gb, " in text_of()
    several = text_of(replicas=3)
    assert "3 replicas of " in several
    assert "requests each" in several


def test_percentiles_of_a_latency_never_fall_by_rounding() -> None:
    """Each percentile has an interval of its own; p95 of this E2E was printed as 60,000 ms and p90 as 81,000 ms."""
    answer = capacity.simulate(
        "deepseek-r1", gpu="h200", tensor_parallel_size=8, engine="sglang@0.5.9", input_len=8192, output_len=1024,
        concurrency=64, num_prompts=128, max_model_len=10240,
    )  # fmt: skip
    values = answer.to_dict()
    for metric in ("ttft", "tpot", "e2el"):
        shown = [
            float(latency_text(answer, f"{p}_{metric}_ms", values[f"{p}_{metric}_ms"]).replace(",", ""))
            for p in PERCENTILES
        ]
        assert shown == sorted(shown), metric


def test_a_service_level_is_met_or_unmet() -> None:
    text = text_of(slo=("ttft:p95:10s", "tpot:p95:1ms"))
    lines = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.split()[-1:] != []}
    assert lines["ttft:p95:10s"] == "met"
    assert lines["tpot:p95:1ms"] == "unmet"


def test_a_rate_that_draining_makes_less_says_so() -> None:
    """Beside what arrives, the whole run's rate is less by its last requests' stay, in a run that keeps up."""
    load = {"gpu": "h100", "input_len": 300, "output_len": 400, "request_rate": 4.0, "num_prompts": 150}
    text = printed(simulation_tables(capacity.simulate("llama-3.1-8b", **load)))
    assert "its draining included; 4." in text
    busy = printed(
        simulation_tables(
            capacity.simulate("llama-3.1-8b", **(load | {"request_rate": 90.0, "num_prompts": 900}))
        )
    )
    assert "its draining included" not in busy
