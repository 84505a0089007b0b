"""What holds for every deployment that anybody asks about: random models, GPUs, formats and loads, through the verbs.

Seeds are drawn; ten times as many with `HYPOTHESIS_PROFILE=nightly`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import capacity
from capacity.answers.records import Estimate, Quantity
from capacity.hardware import bundled_directory, load_profile

MODELS = (
    *("llama-3.2-1b", "llama-3.1-8b", "qwen3-32b", "llama-3.1-70b", "gemma-3-12b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite"),
)
GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "l40s-48gb", "mi300x-192gb")
SEEDS = st.integers(0, 1 << 32)
SLACK = 1 - 1e-9


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A pool that some user has, which may not fit or not be possible."""
    pool: dict[str, Any] = {
        "gpu": rng.choice(GPUS),
        "engine": rng.choice(["vllm", "vllm@0.6", "sglang", "tensorrt-llm", "tgi"]),
        "tensor_parallel_size": rng.choice([1, 1, 2, 4]),
        "max_model_len": rng.choice([2048, 8192]),
    }
    if rng.random() < 0.4:
        pool["quantization"] = rng.choice(["fp8", "awq", "int8"])
    return rng.choice(MODELS), pool


def asked(model: str, **fields: Any) -> Estimate:
    try:
        return capacity.estimate(model, **fields)
    except capacity.CapacityError:
        assume(False)
        raise


def quantities(estimate: Estimate) -> list[Quantity]:
    named = (estimate.ttft_s, estimate.tpot_s, estimate.e2e_s, estimate.requests_per_s)
    return [quantity for quantity in named if quantity is not None]


@settings(max_examples=examples(15))
@given(seed=SEEDS)
def test_more_to_do_takes_longer_and_intervals_hold_their_value(seed: int) -> None:
    rng = random.Random(seed)
    model, pool = drawn(rng)
    lengths = {"input_len": rng.randint(1, 1000), "output_len": rng.randint(2, 500)}
    batch = rng.choice([1, 4, 16, 64])
    base = asked(model, **pool, **lengths, batch_size=batch)
    for quantity in quantities(base):
        assert 0 < quantity.low <= quantity.value <= quantity.high < np.inf
    longer = asked(model, **pool, **{**lengths, "input_len": lengths["input_len"] + 300}, batch_size=batch)
    assert base.ttft_s is not None
    assert longer.ttft_s is not None
    assert base.ttft_s.value * SLACK <= longer.ttft_s.value
    wider = asked(model, **pool, **lengths, batch_size=batch + rng.randint(1, 16))
    assert base.tpot_s is not None
    assert wider.tpot_s is not None
    assert base.tpot_s.value * SLACK <= wider.tpot_s.value
    assert base == asked(model, **pool, **lengths, batch_size=batch)


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `memory`, `flops` and `link`: every GPU with half as much again of it."""
    folder = tmp_path_factory.mktemp("profiles")
    for gpu in GPUS:
        text = (bundled_directory() / f"{gpu}.toml").read_text()
        for what in ("memory", "flops", "link"):
            (folder / what).mkdir(exist_ok=True)
            (folder / what / f"{gpu}.toml").write_text(_with_more(text, what))
            own, more = load_profile(gpu), load_profile(gpu, [folder / what])
            grown = [
                more.hbm_bytes_per_s / own.hbm_bytes_per_s,
                more.dense_flops_per_s["bf16"] / own.dense_flops_per_s["bf16"],
                more.scale_up.bytes_per_s / own.scale_up.bytes_per_s,
            ]
            assert grown == [1.5 if what == each else 1.0 for each in ("memory", "flops", "link")]
    return folder


def _with_more(text: str, what: str) -> str:
    lines, table = [], ""
    for line in text.splitlines():
        name = line.partition("=")[0].strip()
        if line.startswith("["):
            table = line.strip("[] ")
        grown = {
            "memory": name == "hbm_bytes_per_s",
            "flops": table == "facts.dense_flops_per_s" and bool(name) and "value" in line,
            "link": table == "facts.scale_up" and name == "bytes_per_s",
        }[what]
        if grown:
            head, _, rest = line.partition("value = ")
            number = rest.split(",")[0].split(" }")[0]
            line = f"{head}value = {float(number) * 1.5!r}{rest[len(number) :]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


@settings(max_examples=examples(20))
@given(seed=SEEDS, what=st.sampled_from(["memory", "flops", "link"]))
def test_a_faster_roof_is_never_slower(improved: Path, seed: int, what: str) -> None:
    rng = random.Random(seed)
    model, pool = drawn(rng)
    load = {
        "input_len": rng.randint(1, 1500),
        "output_len": rng.randint(2, 300),
        "batch_size": rng.choice([1, 8, 48]),
    }
    less = asked(model, **pool, **load)
    more = capacity.estimate(model, **pool, **load, profiles=str(improved / what))
    for before, after in zip(quantities(less)[:3], quantities(more)[:3], strict=True):
        assert after.value * SLACK <= before.value, what


@settings(max_examples=examples(15))
@given(seed=SEEDS)
def test_a_simulation_loses_no_time_and_no_token_and_comes_out_alike(seed: int) -> None:
    rng = random.Random(seed)
    model, pool = drawn(rng)
    if rng.random() < 0.4:
        pool["num_gpu_blocks_override"] = rng.choice([140, 200, 600])
    load = {
        "input_len": rng.randint(1, 600),
        "output_len": rng.randint(1, 120),
        "request_rate": rng.choice([0.5, 5.0, 50.0]),
        "num_prompts": rng.randint(2, 60),
        "random_range_ratio": rng.choice([0.0, 0.5]),
        "seed": rng.randint(0, 1000),
    }
    try:
        once = capacity.simulate(model, **pool, **load)
        again = capacity.simulate(model, **pool, **load)
    except capacity.CapacityError:
        assume(False)
        raise
    said = once.to_dict()
    assert said == again.to_dict()
    records = once.run.records
    done = records.completed
    assert done.sum() + once.run.rejected == load["num_prompts"]
    assert said["total_output_tokens"] == records.output_tokens[done].sum()
    assert said["completed"] == pytest.approx(said["request_throughput"] * said["duration"], rel=1e-9)
    assert (records.arrival_ps[done] <= records.first_scheduled_ps[done]).all()
    assert (records.first_scheduled_ps[done] < records.first_token_ps[done]).all()
    assert (records.first_token_ps[done] <= records.finish_ps[done]).all()
    assert sum(said["time_parts"]["mean_ms"].values()) == pytest.approx(said["mean_e2el_ms"], rel=1e-9)
