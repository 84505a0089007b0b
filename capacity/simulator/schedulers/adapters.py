"""Engines with LoRA adapters: a step computes with at most `max_loras` of them, and waits for those it has to load.

A waiting request whose adapter would be one too many in this step is passed over and keeps its place; those behind it
are tried. Adapters of the step's running requests count first. The least recently used adapter leaves its slot on the
GPU for one that is loaded, and host memory for one that is read from below; they are used in the order of the step's
rows (vLLM goes through a set of them). A load is synchronous: it holds the step. What the adapters' kernels take is
part of the step's time (`capacity.step.layers.adapters`).
Source: vLLM v1/core/sched/scheduler.py (`scheduled_loras`), lora/worker_manager.py and model_manager.py (LRU caches of
`max_cpu_loras` and `max_loras`), read 2026-11.

vLLM V0, SGLang and TensorRT-LLM count the adapters of all that runs, not those of the step alone, and pass over in the
same way (`AmongRunning`). Source: SGLang scheduler.py, get_new_batch_prefill ("skip it and continue"); vLLM 0.6
core/scheduler.py, `curr_loras`; TensorRT-LLM capacityScheduler.cpp, where lack of adapter pages ends no loop, that from
memory: assumed, 2026-11. Their adapters lie in host memory, and the least recently used leaves the GPU.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Step
from capacity.simulator.schedulers.sglang import Sglang
from capacity.simulator.schedulers.tensorrt_llm import TensorRtLlm
from capacity.simulator.schedulers.tgi import Tgi
from capacity.simulator.schedulers.vllm_v0 import VllmV0
from capacity.simulator.schedulers.vllm_v1 import VllmV1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlots:
    """Slots on the GPU, adapters that host memory holds (None: all there are), and what it takes to bring one up.

    `load_ps` from host memory to the GPU; `read_ps` before that, where host memory does not hold it.
    """

    max_loras: int
    max_cpu_loras: int | None = None
    load_ps: int = 0
    read_ps: int = 0

    def __post_init__(self) -> None:
        if self.max_loras < 1:
            raise InvalidInput(f"max_loras must be at least 1, not {self.max_loras}")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise InvalidInput(
                f"max_cpu_loras is {self.max_cpu_loras}: host memory must hold the {self.max_loras} adapters of the GPU"
            )
        if self.load_ps < 0 or self.read_ps < 0:
            raise InvalidInput("an adapter is not loaded in less than no time")


class LoadedAdapters:
    """The adapters by their last use: the first `max_loras` are on the GPU, those that follow in host memory alone."""

    def __init__(self, slots: AdapterSlots) -> None:
        self._slots = slots
        self._held = slots.max_loras if slots.max_cpu_loras is None else slots.max_cpu_loras
        self._recent: list[int] = []  # the last used first

    def use(self, adapter: int) -> int:
        """Have it on the GPU; returns how long that takes."""
        slots, recent = self._slots, self._recent
        place = recent.index(adapter) if adapter in recent else self._held
        if place < len(recent):
            del recent[place]
        recent.insert(0, adapter)
        del recent[self._held :]
        if place < slots.max_loras:
            return 0
        in_host_memory = place < self._held or slots.max_cpu_loras is None
        return slots.load_ps if in_host_memory else slots.load_ps + slots.read_ps


class AdapterV1(VllmV1):
    """`VllmV1` whose requests may each have an adapter; 0: none, the base model."""

    def __init__(
        self, limits: SchedulerLimits, pool: PagedPool, *, adapters: AdapterSlots, **options: Any
    ) -> None:
        super().__init__(limits, pool, **options)
        self.max_loras = adapters.max_loras
        self.loaded = LoadedAdapters(adapters)

    def schedule(self, now_ps: int = 0) -> Step:
        step = super().schedule(now_ps)
        for adapter in adapters_of(step.rows):
            step.held_ps += self.loaded.use(adapter)
        return step

    def passes_over(self, r: Sequence, rows: list[Row]) -> bool:
        """Return whether its adapter is one too many for this step."""
        scheduled = adapters_of(rows)
        return r.adapter not in (0, *scheduled) and len(scheduled) >= self.max_loras


class AmongRunning:
    """What makes a policy one with adapters, put before it: who waits is passed over while too many adapters run.

    They stand aside while the policy decides. That is the same as a check at each request of its queue: it starts
    requests in their order until one does not fit, so an adapter that counts for a request is one that starts, or
    nothing behind it starts either.
    """

    waiting: Any  # of the policy that it is put before
    running: Any

    def __init__(
        self, limits: SchedulerLimits, pool: PagedPool, *, adapters: AdapterSlots, **options: Any
    ) -> None:
        super().__init__(limits, pool, **options)  # type: ignore[call-arg]
        if limits.priority or options.get("recv_interval", 1) > 1 or options.get("order", "fcfs") != "fcfs":
            raise InvalidInput(
                "LoRA adapters are simulated for requests served as they come: leave out --scheduling-policy and "
                "--scheduler-recv-interval, or use --engine vllm"
            )
        self.max_loras = adapters.max_loras
        self.loaded = LoadedAdapters(adapters)

    def schedule(self, now_ps: int = 0) -> Step:
        queue = list(self.waiting)
        aside = self._one_too_many(queue)
        if aside:
            self.waiting = deque(r for r in queue if r.index not in aside)
        step: Step = super().schedule(now_ps)  # type: ignore[misc]
        if aside:
            self._put_back(queue, aside)
        for adapter in adapters_of(step.rows):
            step.held_ps += self.loaded.use(adapter)
        return step

    def _one_too_many(self, queue: list[Sequence]) -> set[int]:
        """Indices of the requests whose adapter has no slot beside those that run, and those before it."""
        taken = {r.adapter for r in self.running if r.adapter}
        aside = set()
        for r in queue:
            if not r.adapter or r.adapter in taken:
                continue
            if len(taken) < self.max_loras:
                taken.add(r.adapter)
            else:
                aside.add(r.index)
        return aside

    def _put_back(self, queue: list[Sequence], aside: set[int]) -> None:
        """Everyone at the old place; who was sent back in this step stands before them."""
        still = {r.index for r in self.waiting} | aside
        before = {r.index for r in queue}
        sent_back = [r for r in self.waiting if r.index not in before]
        self.waiting = deque([*sent_back, *(r for r in queue if r.index in still)])


class AdapterSglang(AmongRunning, Sglang):
    """`Sglang` with adapters: `max_loras` are its --max-loras-per-batch."""


class AdapterTensorRtLlm(AmongRunning, TensorRtLlm):
    """`TensorRtLlm` with adapters: `max_loras` are those that its device cache holds."""


class AdapterV0(AmongRunning, VllmV0):
    """`VllmV0` with adapters."""


class AdapterTgi(Tgi):
    """`Tgi` with adapters, all of which it loads at its start: none is waited for, and none is one too many."""

    def __init__(
        self, limits: SchedulerLimits, pool: PagedPool, *, adapters: AdapterSlots, **options: Any
    ) -> None:
        super().__init__(limits, pool, **options)
        self.max_loras = adapters.max_loras

    def add(self, sequence: Sequence) -> bool:
        if sequence.adapter > self.max_loras:
            raise InvalidInput(
                f"a request is for adapter {sequence.adapter}, and TGI loads all adapters at its start: --max-loras "
                f"{self.max_loras} must be all there are"
            )
        return super().add(sequence)


def adapters_of(rows: list[Row]) -> dict[int, None]:
    """The adapters of a step's rows, in their order."""
    return {row.sequence.adapter: None for row in rows if row.sequence.adapter}
