"""Every verb's JSON is what its schema says: real answers are validated, and a broken one is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from quick_fleets import quick_fleet
from schema_checks import check_answer, validator

import capacity
from capacity.planning.sweeps.sweep_spec import SweepSpec
from capacity.report import tables as report
from capacity.report.schemas import json_schema, schema_names

POOL = {"gpu": "h100", "input_len": 200, "output_len": 20}
LOAD = {**POOL, "request_rate": 8.0, "num_prompts": 60}
MODEL = "llama-3.1-8b"
SIDE = {
    "model": MODEL,
    "traffic": {"input_len": 200, "output_len": 20, "request_rate": 8.0, "num_prompts": 60},
    "cost": {"price": "2.5"},
}


def _plan(**changed: Any) -> Any:
    asked = {
        "gpus": "h100", "tensor_parallel_sizes": "1", "quantizations": "default", "kv_cache_dtypes": "auto",
        "max_num_batched_tokens": "default", "replications": 1, "price": "h100=2.5", "input_len": 200,
        "output_len": 20, "num_prompts": 60, "request_rate": 8.0, "slo": "ttft:p95:500ms tpot:p95:40ms",
    }  # fmt: skip
    return capacity.plan(MODEL, **(asked | changed))


def _diff() -> Any:
    sides = [{**SIDE, "pools": [{"gpu": gpu}]} for gpu in ("h100", "h200")]
    return capacity.diff(*sides)


ANSWERS: dict[str, Callable[[], Any]] = {
    "fit": lambda: capacity.fit(MODEL, gpu="h100"),
    "fit-comparison": lambda: capacity.compare_fits(MODEL, gpus=["h100", "t4", "l40"], max_model_len=4096),
    "engine-comparison": lambda: capacity.compare_engines(MODEL, **POOL, concurrency=4, engines=["vllm", "tgi"]),
    "gpu-support": lambda: capacity.gpu_support(gpus=["h100", "tpu-v5e"]),
    "estimate": lambda: capacity.estimate(MODEL, **POOL, concurrency=4, price="2.5"),
    "explain": lambda: capacity.explain(MODEL, **POOL, batch_size=4),
    "simulation": lambda: capacity.simulate(MODEL, **LOAD),
    "plan": _plan,
    "plan, unmet": lambda: _plan(slo="ttft:p95:1ms"),
    "plan, all at once": lambda: _plan(request_rate="inf", slo="ttft:p95:60s"),
    "fleet": lambda: quick_fleet(split_at=(500,), peak_to_mean=1.5),
    "fleet, unmet": lambda: quick_fleet(split_at=(500,), slo="ttft:p95:1ms"),
    "cost": lambda: capacity.cost(MODEL, **LOAD, price="2.5"),
    "cost, all that can be asked": lambda: capacity.cost(
        MODEL, **LOAD, price_tier="on-demand", requests_per_user_hour=10, api_input_price=0.2, api_output_price=0.6,
        interruptions_per_hour=0.1, documents=1000, deadline_hours=2, co2_g_per_kwh=300,
    ),
    "curve": lambda: capacity.curve(MODEL, **POOL, num_prompts=60, rates=[2, 8]),
    "curve, with a day": lambda: capacity.curve(
        MODEL, **POOL, num_prompts=400, slo="ttft:p95:200ms", rates=[2, 8], peak_rate=40.0, price="2",
        requests_per_user_hour=5,
    ),
    "tornado": lambda: capacity.tornado(MODEL, **LOAD, price="2.5"),
    "advise": lambda: capacity.advise(MODEL, **LOAD, price="2.5"),
    "stack": lambda: capacity.stack(MODEL, **LOAD, price="2.5"),
    "diff": _diff,
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_real_answer_is_what_its_schema_says(name: str) -> None:
    answer = ANSWERS[name]()
    verb = name.partition(",")[0]
    check_answer(json.loads(report.render(answer, "json")), verb, removed=4)


def test_a_sweep(tmp_path: Path) -> None:
    fields = {
        "schema": "capacity/sweep/v1", "question": "fit", "fixed": {"model": MODEL},
        "vary": {"gpu": ["h100", "l4"], "max_model_len": [1024, 131072]},
    }  # fmt: skip
    validator("sweep-file").validate(fields)
    swept = capacity.sweep(SweepSpec(**fields), tmp_path / "s.db")
    validator("sweep").validate(json.loads(report.render(swept, "json")))
    with pytest.raises(jsonschema.ValidationError):
        validator("sweep-file").validate(fields | {"axes": "diagonal"})


@pytest.mark.parametrize("name", schema_names())
def test_every_schema_is_one(name: str) -> None:
    assert validator(name)


def test_what_a_record_writes_beside_its_fields_is_in_its_schema() -> None:
    """Properties that `to_dict` adds, however deep, are declared once and stand in both."""
    written, kinds = _plan().to_dict(), json_schema("plan")["$defs"]
    for part, kind in ((written["counts"], "SearchCounts"), (written["ranked"][0], "Ranked")):
        assert set(part) == set(kinds[kind]["properties"]) == set(kinds[kind]["required"])
    assert {"simulated_fraction"} < set(written["counts"])
    assert {"label", "pools", "tokens_per_s_per_gpu"} < set(written["ranked"][0])
    pair = {**SIDE, "pools": [{"gpu": "h100"}]}, {**SIDE, "pools": [{"gpu": "h200"}]}
    compared, kinds = capacity.diff(*pair, replications=2).to_dict(), json_schema("diff")["$defs"]
    for part, kind in (
        (compared["differences"][0], "Difference"),
        (compared["replicated"][0], "PairedMetric"),
    ):
        assert isinstance(part["significant"], bool)
        assert set(part) == set(kinds[kind]["properties"])
