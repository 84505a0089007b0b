"""A long compiled run shows how far it is, and stops soon after Ctrl-C with what was simulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_runs import needs_core
from library import heed_interrupts
from slowness import cpu_slowness, slowness

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.core import engines, fleet
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload

pytestmark = needs_core

POLICIES = ("vllm-v1-async", "vllm-v0", "sglang", "tgi", "static")
WITHIN_S = 0.2  # on a machine with nothing else to do
UNDER_LOAD_S = 0.5


def requests(count: int) -> Workload:
    return Workload(
        arrival_s=np.arange(count) * 1e-3,
        prompt_tokens=np.full(count, 200),
        output_tokens=np.full(count, 400),
    )


def busy(policy: str) -> EngineSetup:
    """A thousand run together, all the time."""
    limits = SchedulerLimits(max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=4000)
    return EngineSetup(
        step_times=AffineStepTimes(0.01, 1e-5), num_blocks=80_000, policy=policy, limits=limits
    )


LONG_RUN = """
import sys, time
import test_interrupts as t
def shown(done, total):
    if not said:
        said.append(done)
        print("running", flush=True)
said = []
run = t.simulate(
    t.requests(400_000), [t.busy(sys.argv[1])] * int(sys.argv[2]), engine_loop="core", progress=shown,
    keep_interrupted=True,
)
print(run.status, run.summary.completed, time.monotonic())
"""


@pytest.mark.ci
@pytest.mark.parametrize(("policy", "replicas"), [("vllm-v1-async", 3), ("sglang", 1)])
def test_ctrl_c_ends_a_long_run(policy: str, replicas: int) -> None:
    """Fed to one engine, and routed; within half a second, the summary of what was simulated included."""
    tests = Path(__file__).parents[2]
    paths = [str(Path(__file__).parent), str(tests), os.environ.get("PYTHONPATH", "")]
    child = subprocess.Popen(
        [sys.executable, "-c", LONG_RUN, policy, str(replicas)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    sent_s = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert not child.returncode, err
    status, completed, ended_s = out.split()
    assert status == "interrupted"
    assert 0 < int(completed) < 400_000
    assert float(ended_s) - sent_s < UNDER_LOAD_S * max(slowness(), 1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_call_into_the_core_takes_long(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them Python heeds an interrupt: a fifth of what it may wait, by the processor's clock."""
    took_s: list[float] = []
    take_turn = fleet.Fleet.take_turn

    def timed(*arguments: Any, **keywords: Any) -> Any:
        began_s = time.process_time()
        answer = take_turn(*arguments, **keywords)
        took_s.append(time.process_time() - began_s)
        return answer

    monkeypatch.setattr(fleet.Fleet, "take_turn", timed)
    run = simulate(requests(20_000), busy(policy), engine_loop="core")
    assert run.status == "complete"
    assert max(took_s) < WITHIN_S * max(cpu_slowness(), 1.0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_progress_is_shown_some_two_hundred_times(replicas: int) -> None:
    reports: list[tuple[int, int]] = []
    count = 20_000
    together = requests(count)  # they end in waves: with answers of all lengths, one after the other
    workload = replace(together, output_tokens=100 + np.arange(count) * 7 % 601)
    simulate(
        workload,
        [busy("vllm-v1-async")] * replicas,
        engine_loop="core",
        progress=lambda done, total: reports.append((done, total)),
    )
    assert 50 <= len(reports) <= 201
    assert reports == sorted(reports)
    assert reports[-1] == (count, count)
    assert engines.MIN_STEPS_PER_CALL < fleet.STEPS_PER_CALL
