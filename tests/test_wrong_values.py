"""Every parameter of every public function, with values of a wrong kind: an answer, or one line of our own."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from long_forms import mostly_slow

import capacity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Service, Traffic

SHARED = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
LENGTHS = {"input_len": 40, "output_len": 4}
LOAD = {**LENGTHS, "request_rate": 2, "num_prompts": 4}
POOL = {"gpu": "h100"}
PRESET = json.loads((Path(capacity.__file__).parent / "model/presets/llama-3.2-1b.json").read_text())
SMALL, SLO = "llama-3.2-1b", "ttft:p95:900ms"
SERVED = {
    "model": "llama-3.1-8b",
    "pools": [{"gpu": "h100"}],
    "traffic": {"input_len": 1024, "output_len": 256, "request_rate": 4.0},
}
BASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {  # a call of each function that is answered
    "add_gpu": (("x9",), {"like": "b200", "memory_gb": 192, "hbm_tb_s": 8, "bf16_tflops": 2500, "profiles": "."}),
    "add_model": (("config.json",), {"name": "mine"}),
    "advise": ((SMALL,), {**POOL, **LOAD}),
    "compare_engines": ((SMALL,), {**LENGTHS, "concurrency": 2, "gpu": "h100", "engines": ("vllm",)}),
    "compare_fits": ((SMALL,), {"gpus": ("h100",)}),
    "gpu_support": ((), {"gpus": ("h100",)}),
    "sweep_results": (("results.csv",), {}),
    "attention_traffic": ((SMALL,), {**POOL, "contexts": (4096,)}),
    "beam_search": ((SMALL,), {**POOL, "beam_widths": (2,)}),
    "cache_curve": (("trace.jsonl",), {"capacities_tokens": (1024,)}),
    "compare_gpus": ((SMALL,), {**LENGTHS, "batch_size": 2, "gpus": ("h100",)}),
    "compare_batching": ((SMALL,), {**POOL, **LOAD}),
    "cascade": ((SMALL,), {**POOL, **LOAD, "price": "2", "small": SMALL, "escalation_rate": 0.5}),
    "cost": ((SMALL,), {**POOL, **LOAD, "price": "2"}),
    "curve": ((SMALL,), {**POOL, **LENGTHS, "num_prompts": 4, "slo": SLO, "rates": (1.0,)}),
    "diff": (("one.toml", "two.toml"), {}),
    "compare_deployments": (([SERVED, SERVED],), {"slo": "ttft:p95:500ms"}),
    "engine_table": ((), {}),
    "engine_setup": ((SMALL,), POOL),
    "estimate": ((SMALL,), {**POOL, **LENGTHS, "batch_size": 2}),
    "explain": ((SMALL,), {**POOL, **LENGTHS, "batch_size": 2}),
    "fit": ((SMALL,), POOL),
    "frontier": ((SMALL,), {**LENGTHS, "gpus": ("h100",), "loads": (1,)}),
    "from_launch": (("vllm serve meta-llama/Llama-3.2-1B",), POOL),
    "from_vllm": (("vllm serve meta-llama/Llama-3.2-1B",), POOL),
    "gpus": ((), {}),
    "grid": (("estimate", {"batch_size": (1, 2)}), {"model": SMALL, **POOL, **LENGTHS}),
    "kv": (((SMALL,),), {"contexts": (4096,)}),
    "load_sweep": ((SMALL,), {**POOL, **LENGTHS, "loads": (1,)}),
    "models": ((), {}),
    "plan": ((SMALL,), {**LOAD, "price": "2", "gpus": ("h100",), "max_gpus": 1, "slo": SLO, "time_limit_s": 1.0}),
    "fleet": ((SMALL,), {**LOAD, "price": "2", "gpus": ("h100",), "max_gpus": 1, "slo": SLO, "time_limit_s": 1.0}),
    "quantize": ((SMALL,), {**POOL, "methods": ("fp8-tensor",)}),
    "scale": ((SMALL,), {**POOL, "most_gpus": 2}),
    "simulate": ((SMALL,), {**POOL, **LOAD}),
    "speculate": ((SMALL,), {**POOL, "batches": (1,)}),
    "plan_hall": (
        ([{"model": SMALL, "slo": "ttft:p95:9s", "request_rate": 4, "input_len": 64, "output_len": 8}],),
        {"power_budget": "10kW", "gpus": "l4", "power_cap": (None,)},
    ),
    "stack": ((SMALL,), {**POOL, **LOAD, "order": ("bf16",)}),
    "sweep": (("sweep.toml", "store.sqlite"), {}),
    "tornado": ((SMALL,), {**POOL, **LOAD}),
    "use_currency": (("EUR",), {}),
}  # fmt: skip
ELSEWHERE = {"calibrate", "compare", "suggest_runs", "watch"}  # tests/validate
WRONG: tuple[Any, ...] = (
    "", "x", "\0", "ü" * 400, "nan", -1, 0, 10**29, -(10**29), math.nan, math.inf, -math.inf, 1e308, True, None, 1j,
    b"x", [], {}, (), [None], ["x", 3], {"a": 1}, object(), sorted, np.arange(3), np.float64("nan"), np.array([[1.0]]),
    Path("x\0y"),
)  # fmt: skip
SLOW = {  # or whose flags are those of a quick one: estimate, fit and simulate
    "cascade",
    "compare_gpus",
    "cost",
    "explain",
    "quantize",
    "scale",
    "speculate",
    "plan",
    "fleet",
    "sweep",
    "tornado",
    "advise",
    "stack",
    "diff",
    "curve",
    "compare_batching",
    "load_sweep",
    "frontier",
    "compare_engines",
    "plan_hall",
}


def calls() -> Iterator[tuple[str, str]]:
    for name in capacity.__all__:
        function = getattr(capacity, name)
        if inspect.isfunction(function) and name not in ELSEWHERE:
            for parameter in inspect.signature(function).parameters:
                yield name, parameter


def test_every_function_has_a_base() -> None:
    assert {name for name, _ in calls()} <= set(BASES)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "kept"))
    Path("config.json").write_text(json.dumps(PRESET["config"]))
    Path("results.csv").write_text("batch_size,status\n1,done\n")
    deployment = f'schema = "capacity/deployment/v1"\nmodel = "{SMALL}"\n[[pools]]\ngpu = "h100"\n'
    traffic = "[traffic]\ninput_len = 40\noutput_len = 4\nrequest_rate = 2\nnum_prompts = 4\n"
    for name, more in (("one.toml", ""), ("two.toml", "max_num_seqs = 9\n")):
        Path(name).write_text(deployment + more + traffic)
    Path("trace.jsonl").write_text(SHARED)
    lengths = "input_len = 40\noutput_len = 4\n"
    Path("sweep.toml").write_text(
        f'schema = "capacity/sweep/v1"\nquestion = "estimate"\n[fixed]\nmodel = "{SMALL}"\n'
        f'gpu = "h100"\n{lengths}[vary]\nbatch_size = [1, 2]\n'
    )


def called(name: str, parameter: str, value: Any) -> None:
    positional, keywords = BASES[name]
    names = list(inspect.signature(getattr(capacity, name)).parameters)
    arguments = dict(zip(names, positional, strict=False)) | keywords | {parameter: value}
    getattr(capacity, name)(**arguments)


def faults(name: str, parameter: str, values: tuple[Any, ...] = WRONG) -> list[str]:
    """What was raised that is not our own, or takes more than a line."""
    found = []
    for value in values:
        try:
            called(name, parameter, value)
        except CapacityError as error:
            text = str(error)
            if len(text) > 600 or "\n" in text:
                found.append(f"{name}({parameter}={value!r:.40}): {len(text)} characters: {text[:80]!r}")
        except Exception as error:
            if parameter in ("progress", "observer") and callable(value):
                continue  # its own error
            found.append(f"{name}({parameter}={value!r:.40}): {type(error).__name__}: {error!s:.90}")
    return found


@pytest.mark.parametrize("name", sorted(BASES))
def test_the_base_itself_is_answered(name: str) -> None:
    positional, keywords = BASES[name]
    assert getattr(capacity, name)(*positional, **keywords) is not None


SPECS = {name for spec in (Pool, Traffic, Service) for name in spec.model_fields}  # checked alike for all


def own_parameters(name: str) -> list[str]:
    """Of functions that take long, those that no quicker one has too."""
    return [each for of, each in calls() if of == name and not (name in SLOW and each in SPECS)]


@pytest.mark.ci
@pytest.mark.parametrize("name", mostly_slow(sorted(BASES), sorted({*BASES} - {"fleet", "plan_hall"})))
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_wrong_value_is_refused_in_one_line(name: str, every: int) -> None:
    """Every sixth value, from another on for each parameter, or all of them (of slow functions every fourth)."""
    values = WRONG[:: 4 if name in SLOW and every == 1 else 1]
    parameters = enumerate(own_parameters(name))
    assert [
        fault for at, each in parameters for fault in faults(name, each, values[at % every :: every])
    ] == []


def test_what_is_missing_and_what_is_unknown_is_said() -> None:
    with pytest.raises(CapacityError, match="missing a required argument: 'model'"):
        capacity.estimate()  # type: ignore[call-arg]
    with pytest.raises(CapacityError, match="did you mean 'batch_size'"):
        capacity.estimate(SMALL, gpu="h100", input_len=5, batch_sise=2)
    with pytest.raises(CapacityError, match=r"workers is 1.5: it must be a whole number"):
        capacity.plan(SMALL, workers=1.5)  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match=r"slo is 3: it must be a sequence \(Sequence\[str\]\) or text"):
        capacity.curve(SMALL, slo=3)  # type: ignore[arg-type]
