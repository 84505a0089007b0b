"""What benchmarks/simulation_speed.py simulates: deployments, requests and loads, by the section they stand in."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capacity.answers.deployment_run import kv_link
from capacity.answers.engine_setup import setup_of
from capacity.deployment import Pool, Service, build
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.capacity_probe import probe_capacity
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.workload import LognormalLengths, SharedPrefixes, SteadyArrivals, Workload, diurnal, synthetic

MODEL, GPU = "llama-3.1-8b", "a100-sxm-80gb"
LOW, MIDDLE, HIGH = 0.3, 0.6, 0.9  # of capacity
PROBED_REQUESTS = 1500
QUICKER = 4  # times fewer requests in the short form

FAILURES = Failures(mean_time_between_failures_s=600, recovery_s=60)
SCALING = Autoscaling(max_replicas=8, target_requests=40, startup_s=30, scale_down_delay_s=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Lognormal lengths with these means; `shared` puts one of so many prompts before each, of Zipf popularity."""

    prompt: int = 1012
    output: int = 255
    cv: float = 1.3
    shared: SharedPrefixes | None = None
    waves: bool = False  # the rate swings to 1.6 times its mean and back, every 20 minutes

    def drawn(self, count: int, requests_per_s: float) -> Workload:
        steady = SteadyArrivals(requests_per_s)
        return synthetic(
            num_requests=count,
            arrivals=diurnal(requests_per_s, peak_to_mean=1.6, period_s=1200.0) if self.waves else steady,
            prompt=LognormalLengths(mean_tokens=self.prompt, cv=self.cv),
            output=LognormalLengths(mean_tokens=self.output, cv=self.cv),
            shared_prefixes=self.shared,
            seed=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: `count` requests at `load`, a fraction of what the deployment can serve of them.

    `keywords` are those of `simulate` and change the capacity; `disturbed` are those that come on top (failures, say).
    `prefill` of the `replicas` prefill, the others decode.
    """

    section: str
    name: str
    count: int
    model: str = MODEL
    pool: Mapping[str, Any] = field(default_factory=dict)
    requests: Requests = Requests()
    load: float = MIDDLE
    replicas: int = 1
    prefill: int = 0
    keywords: Mapping[str, Any] = field(default_factory=dict)
    disturbed: Mapping[str, Any] = field(default_factory=dict)
    verdict: bool = False  # what the verdict and its intervals cost on top is measured too

    @property
    def key(self) -> tuple[str, str]:
        return self.section, self.name

    @property
    def resolved(self) -> ResolvedPool:
        return _resolved(self.model, tuple(sorted(self.pool.items())))

    @property
    def setups(self) -> list[EngineSetup]:
        setup = _setup(self.model, tuple(sorted(self.pool.items())))
        if not self.prefill:
            return [setup] * self.replicas
        prefill, decode = (replace(setup, role=role) for role in ("prefill", "decode"))
        return [prefill] * self.prefill + [decode] * (self.replicas - self.prefill)

    @property
    def surroundings(self) -> dict[str, Any]:
        """Keywords of `simulate`, without what disturbs."""
        link = {"link": kv_link([self.resolved], Service())} if self.prefill else {}
        return {**self.keywords, **link}

    def run(self, workload: Workload) -> SimulationResult:
        """The run, its summary made."""
        run = simulate(workload, self.setups, **{**self.surroundings, **self.disturbed})
        assert run.summary.completed
        return run

    def requests_per_s(self) -> float:
        """What the load comes to: a fraction of the rate at which a backlog of these requests is worked off."""
        sample = replace(self.requests, waves=False).drawn(PROBED_REQUESTS, 1.0)
        setups = self.setups
        tokens = float((sample.prompt_tokens + sample.output_tokens).mean())
        fitting = sum(
            setup.data_parallel_size
            * min(setup.limits.max_num_seqs, setup.num_blocks * setup.block_size / tokens)
            for setup in setups
        )
        capacity = probe_capacity(
            sample, lambda backlog: simulate(backlog, setups, **self.surroundings).records, in_flight=fitting
        )
        assert capacity is not None, f"{self.key}: no backlog forms"
        return self.load * capacity.requests_per_s

    def workload(self, count: int | None = None) -> Workload:
        return self.requests.drawn(count or self.count, self.requests_per_s())

    @property
    def quick_count(self) -> int:
        """Requests in the short form."""
        return max(self.count // QUICKER, 200)


@functools.cache
def _resolved(model: str, fields: tuple[tuple[str, Any], ...]) -> ResolvedPool:
    return resolve(model, build(Pool, {"gpu": GPU, **dict(fields)}, flags=True))


@functools.cache
def _setup(model: str, fields: tuple[tuple[str, Any], ...]) -> EngineSetup:
    return setup_of(_resolved(model, fields))


HALF_SHARED = Requests(prompt=500, shared=SharedPrefixes(512, 1000, 1.0))
SPILLING = Requests(prompt=212, shared=SharedPrefixes(800, 2000))
AWARE = {"router": "prefix-aware"}
V1 = "vLLM V1, one engine"
ENGINES = "Other engines"
ABILITIES = "Drafts, stages, offload"
WINDOWS = "Windows of attention"
RANKS = "DeepSeek-V3 on 8 data-parallel ranks, H200"
FLEETS = "Replicas apart, failing and scaled"
READABLE = "The Python engines, each step an event"
CONTEXT = "By context length, vLLM V1"
LOADS = "By load, vLLM V1"
REPLICAS = "By replicas behind a prefix-aware router"
DEEPSEEK = {"gpu": "h200", "data_parallel_size": 8, "enable_expert_parallel": True}


def _v1() -> list[Case]:
    names = {LOW: "low load", MIDDLE: "middle", HIGH: "near saturation"}
    cases = [
        Case(section=V1, name=name, count=100_000, load=load, verdict=True) for load, name in names.items()
    ]
    synchronous = {"async_scheduling": False}
    return [*cases, Case(section=V1, name="synchronous, middle", count=100_000, pool=synchronous)]


def _engines() -> list[Case]:
    engines = {
        "SGLang": "sglang",
        "TensorRT-LLM": "tensorrt-llm",
        "TGI": "tgi",
        "vLLM V0": "vllm@0.6",
    }
    return [
        Case(section=ENGINES, name=name, count=30_000, pool={"engine": engine}, verdict=name == "SGLang")
        for name, engine in engines.items()
    ]


def _abilities() -> list[Case]:
    pools: dict[str, tuple[str, dict[str, Any], Requests]] = {
        "EAGLE-3": (MODEL, {"speculator": "eagle3"}, Requests()),
        "n-gram": (MODEL, {"speculator": "ngram"}, Requests()),
        "4 pipeline stages, 70B on H100": (
            "llama-3.1-70b",
            {"gpu": "h100", "pipeline_parallel_size": 4},
            Requests(),
        ),
        "offload, chunks of 1 block": (MODEL, {"kv_offloading_size": 64}, SPILLING),
        "offload, chunks of 16 blocks": (
            MODEL,
            {"kv_offloading_size": 64, "kv_offloading_backend": "lmcache"},
            SPILLING,
        ),
    }
    return [
        Case(section=ABILITIES, name=name, count=30_000, model=model, pool=pool, requests=requests)
        for name, (model, pool, requests) in pools.items()
    ]


def _fleets() -> list[Case]:
    def fleet(name: str, replicas: int, **more: Any) -> Case:
        return Case(
            section=FLEETS,
            name=name,
            count=50_000,
            replicas=replicas,
            **{"requests": HALF_SHARED, "keywords": AWARE, **more},
        )

    return [
        fleet("2 prefill, 2 decode", 4, prefill=2, requests=Requests(), keywords={}),
        fleet("8, failures", 8, disturbed={"failures": FAILURES}),
        fleet(
            "4 to 8, autoscaling",
            4,
            requests=replace(HALF_SHARED, waves=True),
            disturbed={"scaling": SCALING},
        ),
    ]


def _by_context() -> list[Case]:
    lengths = (128, 32), (512, 128), (1012, 255), (4000, 500), (16_000, 500), (60_000, 500)
    return [
        Case(
            section=CONTEXT,
            name=f"{prompt:,} / {output}",
            count=30_000 if prompt < 10_000 else 5_000,
            requests=Requests(prompt=prompt, output=output, cv=0.3),
        )
        for prompt, output in lengths
    ]


def cases() -> Sequence[Case]:
    """Every row, section by section."""
    by_load = [
        Case(section=LOADS, name=f"{load:.0%} of capacity", count=50_000, load=load)
        for load in (0.1, 0.3, 0.5, 0.7, 0.9, 1.1)
    ]
    by_replicas = [
        Case(
            section=REPLICAS,
            name=f"{replicas}",
            count=50_000,
            replicas=replicas,
            requests=HALF_SHARED,
            keywords=AWARE,
        )
        for replicas in (1, 2, 4, 8, 16, 64)
    ]
    windows = ("gemma-3-12b", "gpt-oss-20b", "mistral-7b")
    return (
        *_v1(),
        *_engines(),
        *_abilities(),
        Case(
            section=RANKS,
            name="expert parallel",
            count=10_000,
            model="deepseek-v3",
            pool=DEEPSEEK,
            verdict=True,
        ),
        *(Case(section=WINDOWS, name=model, count=30_000, model=model) for model in windows),
        *_fleets(),
        Case(section=READABLE, name=MODEL, count=2_000, disturbed={"engine_loop": "events"}),
        *_by_context(),
        *by_load,
        *by_replicas,
    )
