"""One answer, whichever verb is asked: the same load on the same engine has the same latencies in all of them.

Prompts are short, so that ten of two hundred questions are asked in seconds; with `--slow` all are asked, and
lengths are those of chats too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import capacity
from capacity.answers.engine_setup import make_workload
from capacity.answers.records import Estimate, Quantity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Traffic
from capacity.planning.plan import plan
from capacity.planning.variations.tornado import tornado
from capacity.pool.resolve import resolve
from capacity.techniques.batching import batching_comparison
from capacity.techniques.scaling import scaling_curve

Fields = dict[str, Any]

SHORT: Fields = {"input_len": 384, "output_len": 48}
LONG: Fields = {"input_len": 1500, "output_len": 300}
POOLS: tuple[tuple[str, Fields], ...] = (
    ("llama-3.1-8b", {"gpu": "h100"}),
    ("llama-3.1-8b", {"gpu": "l4", "max_model_len": 4096}),
    ("llama-3.1-8b", {"gpu": "a100", "quantization": "fp8"}),
    ("llama-3.1-8b", {"gpu": "mi300x"}),
    ("llama-3.1-8b", {"gpu": "h100", "pipeline_parallel_size": 2}),
    ("qwen3-32b", {"gpu": "h100", "tensor_parallel_size": 2}),
    ("llama-3.1-70b", {"gpu": "b200", "quantization": "fp8"}),
    ("gpt-oss-120b", {"gpu": "h200"}),
    ("qwen3-30b-a3b", {"gpu": "h100", "data_parallel_size": 2, "enable_expert_parallel": True}),
    ("deepseek-v3", {"gpu": "h200", "tensor_parallel_size": 8}),
    ("gemma-3-27b", {"gpu": "h200", "max_model_len": 8192}),
)
ENGINES = ("vllm", "vllm@0.6", "sglang", "tensorrt-llm")
CLOSED: tuple[Fields, ...] = (
    {"concurrency": 1},
    {"concurrency": 24},
    {"concurrency": 160, "random_range_ratio": 0.6},
    {"concurrency": 300},
)
OPEN = (0.3, 0.75)  # of what 48 requests in flight get


@dataclass(frozen=True)
class Question:
    """A load on an engine."""

    model: str
    pool: Fields
    load: Fields

    @property
    def keywords(self) -> Fields:
        return {**self.pool, **self.load}

    def __str__(self) -> str:
        return " ".join(str(value) for value in (self.model, *self.pool.values(), *self.load.values()))


def questions(lengths: Fields, every: int) -> Iterator[Question]:
    """Every load on every engine that runs it, rates among them as shares of what the engine serves.

    `every` 2: half of the loads on each pool and engine, the others on the next engine and on the next pool.
    """
    for number, (model, pool) in enumerate(POOLS):
        for turn, engine in enumerate(ENGINES, start=number):
            own = {**pool, "engine": engine}
            try:
                served = capacity.estimate(model, **own, **lengths, concurrency=48, random_range_ratio=0.6)
            except CapacityError:  # an engine without this format, or too little memory for its buffers
                continue
            rates = ({"request_rate": share * served.requests_per_s.value} for share in OPEN)
            loads = [*CLOSED, *rates][turn % every :: every]
            yield from (Question(model, own, {**lengths, **load}) for load in loads)


def within(value: float, quantity: Quantity | None) -> bool:
    """Whether a prediction's interval holds a value; an open end holds everything."""
    assert quantity is not None
    low = -math.inf if quantity.low is None else quantity.low
    return low <= value <= (math.inf if quantity.high is None else quantity.high)


def asked_of_simulate(question: Question, estimate: Estimate) -> list[str]:
    """What is wrong between `estimate` and `simulate`."""
    answer = capacity.simulate(question.model, **question.keywords)
    run, wrong = answer.to_dict(), []
    steady = run["evidence"]["steady"]
    exact = 1e-9 if estimate.whole_run is not None else 0.05  # by Little's law, where most of them only wait
    latencies = {"ttft": estimate.ttft_s, "tpot": estimate.tpot_s, "e2el": estimate.e2e_s}
    for name, quantity in latencies.items():
        mean_s = run[f"mean_{name}_ms"] / 1e3
        assert quantity is not None
        if not within(mean_s, quantity):
            wrong.append(f"mean {name} {mean_s} is outside {quantity}")
        if quantity.value * 1e3 != pytest.approx(steady[f"mean_{name}_ms"], rel=exact):
            wrong.append(f"steady {name} {steady[f'mean_{name}_ms']} ms is not {quantity}")
    whole = estimate.whole_run
    if whole is not None and whole.ttft_s * 1e3 != pytest.approx(run["mean_ttft_ms"], rel=1e-9):
        wrong.append(f"whole run: {run['mean_ttft_ms']} ms is not {estimate.whole_run}")
    for name in ("ttft", "tpot"):
        interval = run["prediction_intervals"][f"mean_{name}_ms"]
        quantity = latencies[name]
        assert quantity is not None
        if not interval["low"] <= quantity.value * 1e3 <= interval["high"]:
            wrong.append(f"{name} {quantity} is outside the run's {interval}")
    if estimate.verdict != run["verdict"]:
        wrong.append(f"{estimate.verdict_reason} and {run['verdict_reason']}")
    return wrong + little(question, estimate, run)


def little(question: Question, estimate: Estimate, run: Fields) -> list[str]:
    """Requests in flight = requests/s x E2E, of the answer and, counted, of the run's steady part and of all of it."""
    assert estimate.e2e_s is not None
    rate, wanted = estimate.requests_per_s.value, question.load.get("concurrency")
    in_flight = rate * estimate.e2e_s.value
    wrong = []
    if estimate.requests_in_flight != pytest.approx(in_flight, rel=1e-9):
        wrong.append(f"{estimate.requests_in_flight} in flight, not {in_flight}")
    if wanted is not None and in_flight != pytest.approx(wanted, rel=0.01):
        wrong.append(f"{in_flight} in flight of {wanted}")
    if wanted is None and rate != question.load["request_rate"]:
        wrong.append(f"{rate} requests/s of {question.load['request_rate']}")
    whole = run["request_throughput"] * run["mean_e2el_ms"] / 1e3
    if not 0.8 * in_flight <= whole <= 1.05 * in_flight:  # a tenth of it begins and a tenth of it ends
        wrong.append(f"{whole} in flight over the whole run, not {in_flight}")
    return wrong


def asked_of_others(question: Question, estimate: Estimate) -> list[str]:
    """What is wrong between `estimate` and `explain`, `diff`, `tornado`, `curve`, and `scale`."""
    assert estimate.e2e_s is not None
    assert estimate.ttft_s is not None
    model, keywords = question.model, question.keywords
    why, wrong = capacity.explain(model, **keywords), []
    if (why.ttft_s, why.tpot_s) != (estimate.ttft_s.value, estimate.tpot_s and estimate.tpot_s.value):
        wrong.append(f"explain: {why.ttft_s}, {why.tpot_s}")
    described = {"model": model, "pools": [question.pool], "traffic": question.load}
    baseline = capacity.diff(described, described).first_outcome
    varied = tornado(model, **keywords).base
    run = capacity.simulate(model, **keywords).to_dict()
    for name, outcome in (("diff", baseline), ("tornado", varied)):
        p95 = (outcome.ttft_p95_s, outcome.tpot_p95_s, outcome.e2e_p95_s)
        if p95 != pytest.approx([run[f"p95_{each}_ms"] / 1e3 for each in ("ttft", "tpot", "e2el")], rel=1e-9):
            wrong.append(f"{name}: {outcome}")
    if "request_rate" in question.load:
        rates = {"rates": [question.load["request_rate"]], "replications": 1}
        load = {name: value for name, value in keywords.items() if name != "request_rate"}
        (point,) = capacity.curve(model, **load, **rates).points
        if not within(point.mean_e2e_s, estimate.e2e_s):
            wrong.append(f"curve: {point}")
    elif "random_range_ratio" not in question.load and set(question.pool) == {"gpu", "engine"}:
        (row,) = scaling_curve(resolve(model, Pool(**question.pool)), **question.load, most_gpus=1)
        if row.ttft_s != pytest.approx(estimate.ttft_s.value, rel=1e-9):
            wrong.append(f"scale: {row}")
    return wrong


@pytest.mark.parametrize(
    ("lengths", "every"),
    [(SHORT, 20), *(pytest.param(lengths, 1, marks=pytest.mark.slow) for lengths in (SHORT, LONG))],
    ids=["short", "short, all", "long"],
)
def test_every_verb_says_the_same_of_the_same_question(lengths: Fields, every: int) -> None:
    """Over 200 questions, or ten of them, to `estimate` and `simulate`; every eleventh to the other verbs too."""
    asked, wrong = 0, {}
    for question in questions(lengths, every):
        estimate = capacity.estimate(question.model, **question.keywords)
        if estimate.ttft_s is None:
            wrong[str(question)] = [f"no steady state: {estimate.verdict_reason}"]
            continue
        problems = asked_of_simulate(question, estimate)
        if asked % 11 == 0:
            problems += asked_of_others(question, estimate)
        asked += 1
        if problems:
            wrong[str(question)] = problems
    assert wrong == {}
    assert asked >= 200 // every


@pytest.mark.parametrize("load", [{"concurrency": 16}, {"request_rate": 20.0}])
def test_ways_of_batching_hold_the_engines_own(load: Fields) -> None:
    """Continuous batching of chunked prompts is what vLLM does: the run of `simulate`, to rounding."""
    traffic, pool = Traffic(**SHORT, **load, num_prompts=300), Pool(gpu="h100", enable_prefix_caching=False)
    compared = batching_comparison(resolve("llama-3.1-8b", pool), make_workload(traffic), spread=False)
    (own,) = (option for option in compared.rows if option.name == "continuous, chunked prompts")
    run = capacity.simulate(
        "llama-3.1-8b", gpu="h100", enable_prefix_caching=False, **SHORT, **load, num_prompts=300
    ).to_dict()
    assert own.mean_ttft_s == pytest.approx(run["mean_ttft_ms"] / 1e3)
    assert own.mean_tpot_s == pytest.approx(run["mean_tpot_ms"] / 1e3)
    assert own.requests_per_s == pytest.approx(run["request_throughput"])


def test_a_row_of_a_plan_is_what_estimate_says_of_it() -> None:
    """Predicted at the plan's rate, on draws of its own; `estimate` of the row's pool holds it in its interval."""
    only: Fields = {"speculators": "none", "serving": "aggregated", "quantizations": (None,), "gpus": "h100"}
    formats: Fields = {
        "kv_cache_dtypes": ("auto",),
        "tensor_parallel_sizes": (1,),
        "data_parallel_sizes": (1,),
    }
    load: Fields = {**SHORT, "request_rate": 15.0}
    answer = plan(
        "llama-3.1-8b", **only, **formats, **load, num_prompts=400, slo="ttft:p95:500ms", objective="gpus"
    )
    first = answer.ranked[0]
    assert first.predicted is not None
    own = {name: getattr(first.pool, name) for name in first.pool.model_fields_set}
    estimate = capacity.estimate("llama-3.1-8b", **own, **load)
    assert within(first.predicted.mean_e2e_s, estimate.e2e_s)
    assert first.predicted.requests_per_s == pytest.approx(15.0, rel=0.05)
