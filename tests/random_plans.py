"""Random questions to the planner, small enough to be answered by simulating every deployment of their spaces."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

MODELS = {
    "llama-3.1-8b": (1, 2, 4),
    "qwen2.5-14b": (1, 2),
    "mixtral-8x7b": (2, 4),
    "gpt-oss-20b": (1, 2),
    "gpt-oss-120b": (1, 2, 4),
}  # each with tensor-parallel sizes that may hold it
GPUS = ("a100", "h100", "h200", "b200", "l40s")
SLOS = (
    "ttft:p{p}:{ttft}ms tpot:p{p}:{tpot}ms",
    "e2el:p{p}:{e2el}ms",
    "ttft:p{p}:{ttft}ms itl:p99:{tpot}ms",
    "ttft:{ttft} tpot:{tpot}",
)


@dataclass(frozen=True)
class Question:
    """What `plan` is asked: a model, service levels, a space and the traffic."""

    model: str
    slo: str
    space: dict[str, Any]
    traffic: dict[str, Any]


def question(seed: int) -> Question:
    """The question of a seed."""
    draw = random.Random(seed)
    model = draw.choice(sorted(MODELS))
    tpot = draw.choice((12, 16, 25, 40))
    output = draw.choice((20, 60, 120))
    ttft = draw.choice((200, 400, 800, 1500))
    slo = draw.choice(SLOS).format(
        p=draw.choice((90, 95, 99)), ttft=ttft, tpot=tpot, e2el=ttft + tpot * output
    )
    serving = draw.choice(("aggregated", "aggregated", "aggregated,disaggregated"))
    space = {
        "gpus": ",".join(draw.sample(GPUS, draw.choice((1, 2, 3)))),
        "tensor_parallel_sizes": tuple(draw.sample(MODELS[model], min(2, len(MODELS[model])))),
        "data_parallel_sizes": draw.choice(((1,), (1, 2))),
        "expert_parallel": draw.choice(((False,), (False, True))),
        "quantizations": draw.choice(((None, "fp8", "int4"), (None,), (None, "fp8"))),
        "kv_cache_dtypes": draw.choice((("auto",), ("auto", "fp8"))),
        "max_num_batched_tokens": draw.choice(((None,), (None, 512))),
        "max_num_seqs": draw.choice(((None,), (None, 16))),
        "speculators": draw.choice(("none", "none", "none,ngram")),
        "num_speculative_tokens": (3,),
        "serving": serving,
        "routers": draw.choice(((), ("round-robin", "least-outstanding"))),
        "objective": draw.choice(("cost", "cost", "gpus", "energy")),
        "confidence": draw.choice((0.5, 0.9)),
        "max_gpus": 8 if "dis" in serving else 12,
    }
    traffic = {
        "request_rate": draw.choice((8.0, 30.0, 90.0, 200.0)),
        "burstiness": draw.choice((0.3, 1.0)),
        "input_len": draw.choice((100, 700, 2000)),
        "output_len": output,
        "random_range_ratio": draw.choice((0.0, 0.5)),
        "random_prefix_len": draw.choice((0, 0, 500)),
        "num_prompts": 100,
        "replications": draw.choice((1, 2)),
    }
    return Question(model, slo, space, traffic)
