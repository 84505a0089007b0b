"""Both engines do the same, bit for bit: random deployments over every policy, pool, router and option they have."""

from __future__ import annotations

import pytest
from core_runs import needs_core
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from long_forms import mostly_slow
from random_deployments import POLICIES, ROUTERS, differing, random_deployment

pytestmark = needs_core

SHORT, LONG, CHUNK = 150, 10_000, 500
FIRST_LONG = 100_000


@pytest.mark.parametrize("first", mostly_slow(range(0, SHORT, 30), [0, 90]))
def test_the_same_deployment_does_the_same(first: int) -> None:
    assert {seed: found for seed in range(first, first + 30) if (found := differing(seed))} == {}


@pytest.mark.parametrize("seed", mostly_slow([50306, 51049], [51049]))
def test_a_stall_comes_after_as_many_preemptions(seed: int) -> None:
    """What ends a run in which requests preempt each other without end is counted from the last token alike."""
    assert differing(seed) == []


@given(st.integers(SHORT, FIRST_LONG - 1))
@settings(max_examples=examples(20))
def test_any_deployment_does_the_same(seed: int) -> None:
    assert differing(seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST_LONG, FIRST_LONG + LONG, CHUNK))
def test_thousands_of_deployments_do_the_same(first: int) -> None:
    assert {seed: found for seed in range(first, first + CHUNK) if (found := differing(seed))} == {}


def test_the_deployments_have_everything() -> None:
    """Each policy, router and kind of surroundings stands in the short form, most of them often."""
    seen: set[str] = set()
    for seed in range(SHORT):
        workload, setups, keywords = random_deployment(seed)
        setup = setups[0]
        seen |= {setup.policy, setup.role, str(keywords.get("router")), *keywords, *setup.policy_options}
        traits = {
            "content": workload.content is not None,
            "images": workload.images is not None and bool(workload.images.any()),
            "audio": workload.audio_tokens is not None and bool(workload.audio_tokens.any()),
            "sessions": workload.after_request is not None,
            "closed loop": workload.concurrency is not None,
            "max_tokens": workload.max_tokens is not None,
            "windows": setup.kv_windows != (None,),
            "contiguous": setup.kv_contiguous_tokens is not None,
            "drafts": setup.speculation is not None,
            "ranks": setup.data_parallel_size > 1,
            "ranks behind a router": setup.data_parallel_size > 1 and len(setups) > 1,
            "stages": setup.limits.pipeline_stages > 1,
            "priority": setup.limits.priority,
            "noise": setup.noise is not None,
            "launch lag": setup.launch_lag > 0,
            "windows below": "offload" in setup.policy_options and setup.kv_windows != (None,),
            "hundreds": len(workload) >= 200,
            "real times": type(setup.step_times).__name__ == "StepModel",
        }
        seen |= {name for name, there in traits.items() if there}
    wanted = {
        *POLICIES,
        *ROUTERS,
        "prefill",
        "session-sticky",
        "timeout_s",
        "failures",
        "scaling",
        "frontend",
        "cascade",
        "within-ttft",
    }
    wanted |= {
        "queue_limit",
        "outstanding_limit",
        "link",
        "decode_scaling",
        "offload",
        "preemption_mode",
        *traits,
    }
    assert wanted - seen == set()
