"""Own routers, policies, admission rules and observers with a real model, and the parts of its engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment.routers import RoundRobin
from capacity.deployment.routing import Prompt, Router
from capacity.simulator import Engine
from capacity.simulator import simulate as simulate_engines
from capacity.simulator.admission import Admission, Decision
from capacity.simulator.schedulers import Step
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.workload import LognormalLengths, SteadyArrivals, Workload, synthetic

MODEL: Any = {"model": "llama-3.1-8b", "gpu": "h100"}


class ToTheFirst(Router):
    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        return self.ready[0]


class AsTurns(RoundRobin):
    """The built-in router under another name."""


class AsVllm(VllmV1):
    """vLLM's own policy as a user's class."""


class Short(Admission):
    def at_router(self, prompt: Prompt, outstanding: Any) -> Decision:  # noqa: ARG002
        return "admit" if prompt.tokens < 500 else "refuse"


class Steps:
    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}

    def __call__(self, step: Step, engine: Engine) -> None:
        tokens = sum(row.tokens for row in step.rows)
        self.tokens[engine.number] = self.tokens.get(engine.number, 0) + tokens


@pytest.fixture(scope="module")
def requests() -> Workload:
    lengths = LognormalLengths(500, 0.8), LognormalLengths(60, 0.5)
    return synthetic(num_requests=60, arrivals=SteadyArrivals(20.0), prompt=lengths[0], output=lengths[1])


def test_own_router_decides(requests: Workload) -> None:
    answer = capacity.simulate(**MODEL, replicas=3, router=ToTheFirst, workload=requests)
    assert [replica.requests for replica in answer.run.replicas] == [len(requests), 0, 0]
    assert answer.run.router == "ToTheFirst"
    assert not any("Python" in note for note in answer.warnings)  # routers are outside the engines


def test_a_copy_of_a_router_or_policy_gives_the_run_of_the_original(requests: Workload) -> None:
    def records(**parts: Any) -> Any:
        answer = capacity.simulate(**MODEL, replicas=2, workload=requests, **parts)
        return answer, [(r.arrival_s, r.first_token_s, r.finish_s) for r in answer.run.records]

    _, original = records(router="round-robin", policy="vllm-v1")
    assert records(router=AsTurns, policy="vllm-v1")[1] == original
    answer, own = records(router="round-robin", policy=AsVllm)
    assert own == original
    notes = " ".join(answer.warnings)
    assert "Scheduled by AsVllm; step times, memory and defaults are those of vllm@0.33." in notes
    assert "Simulated in Python" in notes
    assert "AsVllm is a Python class" in notes


def test_own_admission_rule_and_observer_see_every_request_and_step(requests: Workload) -> None:
    steps = Steps()
    answer = capacity.simulate(
        **MODEL, replicas=2, workload=requests, admission=Short(), observer=steps, enable_prefix_caching=False
    )
    admitted = requests.prompt_tokens < 500
    assert answer.run.rejected == len(requests) - admitted.sum() > 0
    computed = requests.prompt_tokens[admitted].sum() + (requests.output_tokens[admitted] - 1).sum()
    assert sum(steps.tokens.values()) == computed
    assert sorted(steps.tokens) == [0, 1]
    assert any("an observer is set" in note for note in answer.warnings)


def test_engine_setup_gives_the_engine_that_simulate_uses(requests: Workload) -> None:
    engine = capacity.engine_setup("llama-3.1-8b", gpu="h100", replicas=2)
    at_server = replace(requests, client_latency_s=0.0)
    run = simulate_engines(
        at_server, [engine.setup] * engine.engines, router="round-robin", frontend=engine.frontend
    )
    answer = capacity.simulate(**MODEL, replicas=2, workload=at_server)
    assert run.summary.ttft_ms.percentiles == answer.run.summary.ttft_ms.percentiles
    assert engine.memory.kv_capacity_blocks == answer.kv_capacity_blocks
    assert engine.costs is engine.setup.step_times


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"router": int}, "router is a type: it must be text or a class like Router or None"),
        ({"router": "nope"}, "no router 'nope'"),
        (
            {"policy": int},
            "policy is <class 'int'>: it must be a name, or a class with the methods add, schedule",
        ),
        ({"policy": "nope"}, "no scheduling policy 'nope'.* Known: chunked"),
        ({"policy": AsVllm, "scheduler": "installed"}, "leave out one of them"),
        ({"policy": AsVllm, "speculator": "eagle3"}, r"drafts are not simulated .*\(scheduler AsVllm\)"),
        ({"policy": AsVllm, "engine_loop": "core"}, "the scheduling policy AsVllm is a Python class"),
        ({"observer": Steps}, "observer is the class Steps: pass an object of it"),
        ({"admission": Short}, "admission is a type: it must be Admission"),
    ],
)
def test_wrong_parts_are_one_line(parts: dict[str, Any], message: str, requests: Workload) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        capacity.simulate(**MODEL, replicas=2, workload=requests, **parts)
    assert "\n" not in str(error.value)
