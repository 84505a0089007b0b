"""An engine whose capacity is known by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.capacity_probe import Capacity, probe_capacity
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.verdict import Verdict, judge
from capacity.step import AffineStepTimes
from capacity.workload import LognormalLengths, SteadyArrivals, Workload, synthetic

STEPS = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-8)


PROMPT = LognormalLengths(100, 0.5, highest_tokens=1500)


OUTPUT = LognormalLengths(20, 0.5, highest_tokens=600)


@dataclass(frozen=True)
class Machine:
    """An engine and the lengths of its requests."""

    blocks: int = 2000
    seqs: int = 32
    budget: int = 512
    prompt: LognormalLengths = PROMPT
    output: LognormalLengths = OUTPUT
    policy: str = "vllm-v1"

    @classmethod
    def random(cls, rng: np.random.Generator) -> Machine:
        def lengths(means: list[int], highest: int) -> LognormalLengths:
            return LognormalLengths(int(rng.choice(means)), float(rng.choice([0.0, 0.5, 1.0])), 1, highest)

        return cls(
            blocks=int(rng.choice([300, 600, 2000])),
            seqs=int(rng.choice([4, 8, 32, 128])),
            budget=int(rng.choice([256, 512, 2048])),
            prompt=lengths([30, 100, 300], 1500),
            output=lengths([1, 10, 60], 600),
            policy=str(rng.choice(["vllm-v1", "vllm-v1-async"])),
        )

    def requests(self, rate: float, count: int, seed: int = 0, burstiness: float = 1.0) -> Workload:
        return synthetic(
            num_requests=count,
            arrivals=SteadyArrivals(rate, burstiness),
            prompt=self.prompt,
            output=self.output,
            seed=seed,
        )

    def run(self, workload: Workload) -> SimulationResult:
        limits = SchedulerLimits(
            max_num_seqs=self.seqs, max_num_batched_tokens=self.budget, max_model_len=2200
        )
        return simulate(
            workload, EngineSetup(step_times=STEPS, num_blocks=self.blocks, policy=self.policy, limits=limits)
        )

    def verdict(self, workload: Workload) -> Verdict:
        return judge(self.run(workload).records, workload, capacity=self.capacity(workload, probe_capacity))

    def capacity(self, workload: Workload, probe: Callable[..., Capacity | None]) -> Capacity | None:
        in_flight = min(self.seqs, self.blocks * 16 / (self.prompt.mean_tokens + self.output.mean_tokens))
        return probe(workload, lambda w: self.run(w).records, in_flight=in_flight)


MACHINE = Machine()
