"""The scheduler of a vLLM on this machine: a stand-in on disk everywhere, real vLLMs where CAPACITY_VLLM names some.

CAPACITY_VLLM: folders of unpacked wheels or checkouts, or Pythons that have vLLM, separated as in PATH.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from library import SHARED
from reference_schedules import (
    NAMED,
    POLICIES,
    RELEASES,
    differs,
    library_lines,
    lines,
    release_lines,
)
from scenario_lines import requests, scenario
from stand_in_vllm import SCHEDULER, write_stand_in

import capacity
from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup
from capacity.simulator.installed_vllm.policy import use_installed
from capacity.simulator.installed_vllm.process import find_process
from capacity.simulator.scenarios import schedule_scenario
from capacity.step import AffineStepTimes

REAL = [path for path in os.environ.get("CAPACITY_VLLM", "").split(os.pathsep) if path]
QUESTION: dict[str, Any] = {
    "gpu": "h100",
    "engine": "vllm@0.33",
    "input_len": 128,
    "output_len": 16,
    "request_rate": 20,
    "num_prompts": 30,
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_stand_in(tmp_path_factory.mktemp("stand-in")))


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_schedule_is_the_one_that_vllm_decides(stand_in: str) -> None:
    """The stand-in does not split prompts: b waits, although 2 tokens of the budget are free."""
    asked = scenario(max_num_batched_tokens=12, requests=requests(("a", 0, 10, 2), ("b", 0, 6, 2)))
    answer = schedule_scenario(asked, scheduler=stand_in)
    assert answer["engine"] == f"capacity with vLLM 0.33.0 ({stand_in})"
    rows = [(step[2], step[4], step[5]) for step in answer["steps"]]
    assert rows == [
        ([["a", 10, 0, 0]], [], 9),
        ([["a", 1, 10, 0], ["b", 6, 0, 0]], ["a"], 10),
        ([["b", 1, 6, 0]], ["b"], 12),
    ]
    assert schedule_scenario(asked)["steps"] != answer["steps"]


def test_simulation_equals_ours_where_the_rules_are_equal(stand_in: str) -> None:
    ours = capacity.simulate("llama-3.1-8b", **QUESTION, async_scheduling=False)
    theirs = capacity.simulate("llama-3.1-8b", **QUESTION, async_scheduling=False, scheduler=stand_in)
    assert theirs.run.summary == ours.run.summary
    assert theirs.verdict == ours.verdict
    assert f"Scheduled by vLLM 0.33.0 ({stand_in}); step times" in " ".join(theirs.warnings)


def test_requests_of_clients_that_left_are_aborted(stand_in: str) -> None:
    question = {**QUESTION, "request_rate": 2000, "request_timeout_s": 0.05, "async_scheduling": False}
    answer = capacity.simulate("llama-3.1-8b", **question, scheduler=stand_in)
    assert answer.run.summary == capacity.simulate("llama-3.1-8b", **question).run.summary
    assert answer.run.summary.completed < 30


def test_one_process_serves_all_engines_and_forgets_those_that_ended(stand_in: str) -> None:
    process = find_process(stand_in)
    schedule_scenario(scenario(), scheduler=stand_in)
    gc.collect()
    assert find_process(stand_in) is process
    assert process.closed
    schedule_scenario(scenario(), scheduler=stand_in)
    assert len(process.closed) <= 1


def test_untested_release_is_named(tmp_path: Path) -> None:
    answer = schedule_scenario(scenario(), scheduler=str(write_stand_in(tmp_path, "1.2.0")))
    assert "vLLM 1.2.0" in answer["engine"]
    assert "only 0.16 to 0.33 were tested" in answer["engine"]


def test_release_that_is_too_old_is_rejected(tmp_path: Path) -> None:
    folder = write_stand_in(tmp_path, "0.15.1")
    text = refusal(lambda: schedule_scenario(scenario(), scheduler=str(folder)))
    assert text.endswith("has vLLM 0.15.1: 0.16 or newer is needed")


def test_environment_without_vllm_is_rejected() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError:
        text = refusal(lambda: schedule_scenario(scenario(), scheduler="installed"))
        assert "has no vLLM; install it, or name a folder or a Python that has it" in text
    else:
        pytest.skip("vLLM is installed here")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("scheduler", "import nonesuch.part", "vLLM needs the package nonesuch"),
        (
            "scheduler",
            "raise RuntimeError('first\\nsecond')",
            "failed: RuntimeError: first second (scheduler.py",
        ),
        ("scheduler", "import os; os._exit(3)", "ended unexpectedly: vLLM talks"),
        (
            "scheduler",
            SCHEDULER.replace("budget, rows, new =", "assert 1 > 2; budget, rows, new ="),
            "AssertionError (",
        ),
        ("config", "class SchedulerConfig: ...", "failed: TypeError"),
        ("request", "", "failed: AttributeError: module 'vllm.v1.request' has no attribute 'Request'"),
    ],
)
def test_failure_of_vllm_is_one_line(tmp_path: Path, file: str, text: str, said: str) -> None:
    folder = write_stand_in(tmp_path, **{file: text})
    assert said in refusal(lambda: schedule_scenario(scenario(), scheduler=str(folder)))


def test_place_without_vllm_is_rejected(tmp_path: Path) -> None:
    for place, said in {
        str(tmp_path): "is not in this folder",
        str(tmp_path / "nothing"): "no such folder or Python",
        "/bin/false": "ended unexpectedly",
    }.items():
        assert said in refusal(lambda: schedule_scenario(scenario(), scheduler=place))  # noqa: B023


def test_setting_that_this_vllm_lacks_is_rejected(stand_in: str) -> None:
    text = refusal(lambda: schedule_scenario(scenario(watermark=0.1), scheduler=stand_in))
    assert "--watermark has no effect under vLLM 0.33.0" in text
    assert "has no setting watermark: leave --watermark out" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "sglang"}, "the engine's scheduler sglang"),
        ({"replicas": 2, "prefill_replicas": 1}, "a pool of prefill or decode engines"),
        ({"kv_offloading_size": 8}, "KV offloading"),
        ({"engine_loop": "core"}, "the compiled engines cannot run this"),
        ({"max_loras": 2}, "LoRA adapters"),
        (
            {"speculator": "ngram", "pipeline_parallel_size": 2, "async_scheduling": False},
            "draft tokens with pipeline stages",
        ),
    ],
)
def test_feature_that_it_does_not_cover_is_rejected(
    stand_in: str, changes: dict[str, Any], said: str
) -> None:
    question = {**QUESTION, **changes}
    assert said in refusal(lambda: capacity.simulate("llama-3.1-8b", **question, scheduler=stand_in))


def test_lockstep_ranks_are_rejected(stand_in: str) -> None:
    setup = EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=8, data_parallel_size=2)
    assert "ranks that run in lockstep" in refusal(lambda: use_installed(setup, stand_in))


def test_two_schedulers_are_rejected(stand_in: str) -> None:
    for changes in ({"engine": "vllm@0.30"}, {"engine_loop": "core"}):
        refusal(lambda: schedule_scenario(scenario(), scheduler=stand_in, **changes))  # noqa: B023


def release_of(source: str) -> str:
    """The release in `RELEASES` whose generation a vLLM belongs to."""
    found = find_process(source).version_pair
    if found >= (0, 33):
        return "0.33"
    return next(name for name in reversed(RELEASES) if tuple(map(int, name.split("."))) >= found)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="needs a vLLM in CAPACITY_VLLM")
@pytest.mark.parametrize("source", REAL)
@pytest.mark.parametrize("engine", ["v1", "v1async"])
def test_real_vllm_decides_as_recorded(engine: str, source: str) -> None:
    release = release_of(source)
    known = {line["scenario"]["name"]: line for line in lines(NAMED / f"{engine}_named.jsonl.gz")}
    references = list(release_lines(NAMED / f"{engine}_releases.jsonl.gz", known, release))
    if release == "0.33":
        references += known.values()
    if SHARED is not None:
        oracle = SHARED / "oracle"
        whole = (
            lines(oracle / f"{engine}.jsonl.gz")
            if release == "0.33"
            else library_lines(oracle, engine, release)
        )
        references += list(whole)[:100]
    lacks = {"max_num_active_seqs", "watermark", "prefill_schedule_interval"} - find_process(source).settings
    for line in references:
        asked = {name: value for name, value in line["scenario"].items() if name not in lacks}
        answer = schedule_scenario(asked, POLICIES[engine], scheduler=source)
        assert differs(answer, line) is None, line["scenario"]["name"]


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="needs a vLLM in CAPACITY_VLLM")
@pytest.mark.parametrize("source", REAL)
def test_simulation_with_real_vllm_equals_ours(source: str) -> None:
    question = {**QUESTION, "engine": f"vllm@{release_of(source)}"}
    ours = capacity.simulate("llama-3.1-8b", **question)
    assert capacity.simulate("llama-3.1-8b", **question, scheduler=source).run.summary == ours.run.summary
