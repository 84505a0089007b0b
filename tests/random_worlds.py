"""Random fleets for `world_model`, and the same fleets as arguments of `simulate`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from world_model import Fleet

from capacity.deployment.routing import PoolLimits
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.transfer import KvLink
from capacity.step import AffineStepTimes
from capacity.workload import Workload

MS = 10**9  # picoseconds
ROUTERS = ("round-robin", "least-outstanding", "least-kv", "session-sticky")


class DrawnLifetimes(Failures):
    """Replica `number` fails after the lifetime of that number."""

    lifetimes: tuple[int, ...] = ()

    def lifetime_s(self, number: int) -> float:
        return self.lifetimes[number % len(self.lifetimes)] / 1000


def draw(seed: int) -> tuple[Fleet, dict[str, Any]]:
    """Draw a fleet; also return the keywords of its cascade, which the product draws from."""
    rng = random.Random(seed)
    kind = ("plain", "plain", "cascade", "link")[seed % 4]
    count = rng.randint(1, 60)
    gap = rng.choice((0, 5, 30, 100))
    arrival = sorted(rng.randint(0, gap * count) for _ in range(count))
    some = lambda *values: rng.choice((None, *values))  # noqa: E731
    pools = [0] * rng.randint(1, 5)
    if kind != "plain":
        pools += [1] * rng.randint(1, 4)
    if kind == "cascade" and rng.random() < 0.4:
        pools += [2] * rng.randint(1, 2)
    rng.shuffle(pools)
    n = max(pools) + 1
    fleet = Fleet(
        arrival=arrival,
        prompt=[rng.randint(1, 40) for _ in range(count)],
        output=[rng.randint(1, 12) for _ in range(count)],
        session=[rng.randint(0, 4) for _ in range(count)],
        concurrency=some(None, 1, 3, 10),
        pools=pools,
        base=[rng.randint(1, 20) for _ in range(n)],
        token=[rng.randint(0, 3) for _ in range(n)],
        router=rng.choice(ROUTERS),
        queue_limit=some(None, None, 1, 3) if kind == "plain" else None,
        outstanding_limit=some(None, 1, 2, 5),
        timeout=some(None, 50, 300, 1000),
    )
    if rng.random() < 0.5:
        fleet.after = [rng.randint(-1, r - 1) if r else -1 for r in range(count)]
        fleet.think = [rng.choice((0, 7, 50, 200)) if trigger >= 0 else 0 for trigger in fleet.after]
    if rng.random() < 0.4:
        fleet.lifetimes = [*(rng.randint(50, 3000) for _ in range(rng.randint(1, 6))), 20_000]
        fleet.recovery, fleet.restarts = rng.choice((0, 20, 500)), rng.random() < 0.6
    scaled = (0,) if kind == "plain" else range(n) if kind == "cascade" else rng.choice(((0,), (1,), (0, 1)))
    if rng.random() < 0.4:
        # startup, interval and delay of all pools are the same in the product
        plan = rng.choice((0, 13, 200)), rng.choice((10, 45, 150)), rng.choice((0, 40, 333))
        plans = {
            pool: (pools.count(pool) + rng.randint(0, 3), rng.choice((0.5, 1, 2.5)), *plan) for pool in scaled
        }
        if kind == "cascade":
            most, target = max(plans.values())[0], plans[0][1]
            plans = dict.fromkeys(plans, (most, target, *plan))
        fleet.scaling = plans
    more: dict[str, Any] = {}
    if kind == "cascade":
        fleet.by_answer, fleet.judge, fleet.lookup = (
            rng.random() < 0.6,
            rng.choice((0, 9, 60)),
            rng.choice((0, 4)),
        )
        more = {
            "rates": tuple(rng.random() for _ in range(n - 1)),
            "by_answer": fleet.by_answer,
            "judge_s": fleet.judge / 1000,
            "cache_hit_rate": rng.choice((0, 0.3)),
            "lookup_s": fleet.lookup / 1000,
        }
        fleet.final = Escalation(**more).final_pools(count, 0).tolist()
    if kind == "link":
        layers = rng.choice((0, 0, 2, 4))
        per_token, per_window_token = (
            layers * rng.randint(0, 1) or rng.randint(0, 1) * 4,
            4 * rng.randint(0, 1),
        )
        window, per_request, latency = rng.choice((0, 8)), rng.choice((0, 24)), rng.choice((0, 1, 10))
        fleet.link = (per_token, per_window_token, window, per_request, latency, layers)
    return fleet, more


def run_product(fleet: Fleet, cascade: dict[str, Any], engine_loop: str) -> SimulationResult:
    """Simulate the fleet with the package."""
    f = fleet
    workload = Workload(
        arrival_s=np.array(f.arrival) / 1000,
        prompt_tokens=f.prompt,
        output_tokens=f.output,
        session=f.session,
        after_request=f.after,
        think_s=None if f.think is None else np.array(f.think) / 1000,
        concurrency=f.concurrency,
    )  # fmt: skip
    failures = None
    if f.lifetimes:
        failures = DrawnLifetimes(
            mean_time_between_failures_s=1,
            recovery_s=f.recovery / 1000,
            requests="restart" if f.restarts else "fail",
        )
        object.__setattr__(failures, "lifetimes", tuple(f.lifetimes))
    roles = ("prefill", "decode") if f.link else ("both",) * 3
    setups = [
        EngineSetup(
            step_times=AffineStepTimes(f.base[pool] / 1000, f.token[pool] / 1000),
            num_blocks=10_000,
            policy="vllm-v1",
            limits=SchedulerLimits(max_num_seqs=1),
            enable_prefix_caching=False,
            role=roles[pool],
            takes=PoolLimits(pool=0 if f.link else pool),
        )
        for pool in f.pools
    ]
    plans = {
        pool: Autoscaling(
            max_replicas=most,
            target_requests=target,
            startup_s=startup / 1000,
            interval_s=interval / 1000,
            scale_down_delay_s=delay / 1000,
        )
        for pool, (most, target, startup, interval, delay) in f.scaling.items()
    }
    link = None
    if f.link:
        per_token, per_window_token, window, per_request, latency, layers = f.link
        link = KvLink(
            bytes_per_token=per_token * 500,
            bytes_per_s=500_000,
            latency_s=latency / 1000,
            window_bytes_per_token=per_window_token * 500,
            window_tokens=window,
            bytes_per_request=per_request * 500,
            layers=layers,
        )
    return simulate(
        workload,
        setups,
        router=None if f.final else f.router,
        queue_limit=f.queue_limit,
        outstanding_limit=f.outstanding_limit,
        timeout_s=None if f.timeout is None else f.timeout / 1000,
        failures=failures,
        scaling=plans.get(0),
        decode_scaling=plans.get(1) if f.link else None,
        link=link,
        cascade=Escalation(**cascade) if cascade else None,
        engine_loop=engine_loop,
    )
