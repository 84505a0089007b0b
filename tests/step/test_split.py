"""More ranks, longer steps: said with its numbers where it is so, and only there."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import capacity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import prefill_shape

SAID = re.compile(r"a prefill of ([\d,]+) tokens takes longer with tensor parallelism (\d+) than (\d+)")
GPUS = tuple(row["name"] for row in capacity.gpus())
MODELS = tuple(row["name"] for row in capacity.models())
PROMPTS = (16, 64, 128, 500, 1000, 3000, 8000)


def said(answer: Any) -> list[str]:
    return [warning for warning in answer.to_dict()["warnings"] if SAID.match(warning)]


def pairs(seed: int, count: int) -> list[tuple[Any, Any, str]]:
    """Answers over n and over 2n ranks, of questions that both can be asked."""
    rng = random.Random(seed)
    found: list[tuple[Any, Any, str]] = []
    while len(found) < count:
        model, ranks = rng.choice(MODELS), rng.choice((1, 1, 2, 4))
        asked: dict[str, Any] = {"gpu": rng.choice(GPUS), "input_len": rng.choice(PROMPTS), "output_len": 2}
        asked["quantization"] = rng.choice((None, None, "fp8", "awq"))
        if rng.random() < 0.2:
            asked["request_rate"] = rng.choice((0.1, 1.0))
        else:
            asked["batch_size"] = rng.choice((1, 2, 4, 8, 32))
        try:
            one, two = (
                capacity.estimate(model, tensor_parallel_size=size, **asked) for size in (ranks, 2 * ranks)
            )
        except CapacityError:
            continue
        found.append((one, two, f"{model} over {ranks} and {2 * ranks}: {asked}"))
    return found


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 60), *(pytest.param(n, 400, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
def test_twice_the_ranks_are_not_slower_or_it_is_said_why(seed: int, count: int) -> None:
    slower = 0
    for one, two, asked in pairs(seed, count):
        if one.ttft_s is None or two.ttft_s is None or two.ttft_s.value <= 1.001 * one.ttft_s.value:
            continue
        slower += 1
        assert said(two), f"{asked}: {one.ttft_s.value:.4f} s, {two.ttft_s.value:.4f} s, and nothing is said"
    assert slower > count // 20  # there is something to say


def test_the_numbers_are_the_step_models() -> None:
    pool = Pool(gpu="h100", tensor_parallel_size=2)
    split, whole = resolve("qwen2.5-0.5b", pool), resolve("qwen2.5-0.5b", Pool(gpu="h100"))
    (note,) = split.split_notes(1000, 4)
    assert SAID.match(note).groups() == ("4,000", "2", "1")  # type: ignore[union-attr]
    shape = prefill_shape(4, 1000)
    for pooled in (split, whole):
        assert f"{pooled.step_model.step_seconds(shape) * 1e3:.1f} ms" in note
    assert "all-reduce +" in note


def test_nothing_is_said_of_one_rank_and_of_what_gains() -> None:
    assert resolve("qwen2.5-0.5b", Pool(gpu="h100")).split_notes(1000) == ()
    assert resolve("llama-3.1-70b", Pool(gpu="h100", tensor_parallel_size=8)).split_notes(8000) == ()


def test_every_verb_says_it() -> None:
    pool = {"gpu": "h100", "tensor_parallel_size": 2}
    load = {**pool, "input_len": 1000, "output_len": 4, "request_rate": 2.0, "num_prompts": 20}
    name = "qwen2.5-0.5b"
    batch = {**pool, "input_len": 1000, "output_len": 4, "batch_size": 4}
    answers = (
        capacity.estimate(name, **batch),
        capacity.explain(name, **batch),
        capacity.simulate(name, **load),
        capacity.cost(name, **load, price="2"),
        capacity.curve(
            name,
            **{key: value for key, value in load.items() if key != "request_rate"},
            rates=(2.0,),
            replications=1,
        ),
    )
    for answer in answers:
        assert len(said(answer)) == 1, type(answer).__name__


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_same_chip_with_more_memory_is_not_slower_than_is_known(engine: str) -> None:
    """H200 is H100 with faster memory. Where kernels were measured on both, the two fits differ by their errors:
    the intervals of the two answers tell no difference then."""
    rng, asked = random.Random(5), 0
    while asked < 40:
        question = {
            "engine": engine,
            "input_len": rng.choice(PROMPTS),
            "output_len": 50,
            "batch_size": rng.choice((1, 2, 8, 32)),
            "tensor_parallel_size": rng.choice((1, 2, 8)),
            "max_num_batched_tokens": 8192,
            "quantization": rng.choice((None, "fp8", "awq")),
        }
        model = rng.choice(MODELS)
        try:
            first, second = (capacity.estimate(model, gpu=gpu, **question) for gpu in ("h100", "h200"))
        except CapacityError:
            continue
        asked += 1
        for name in ("ttft_s", "tpot_s"):
            own, other = getattr(first, name), getattr(second, name)
            if other.value > 1.001 * own.value:
                assert other.low < own.value < other.high, (model, question, name)
                assert other.value < 1.1 * own.value, (model, question, name)
