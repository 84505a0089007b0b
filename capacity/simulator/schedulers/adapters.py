"""Schedulers with LoRA adapters: a step uses at most `max_loras` adapters and waits until they are loaded.

vLLM V1 skips a waiting request if its adapter exceeds the limit of this step. The request keeps its place and the
requests behind it are tried. Adapters of running requests in the step count first. The GPU evicts the least recently
used adapter for one that it loads, and so does host memory for one that is read from storage. Adapters are used in the
order of the rows in the step (vLLM iterates over a set). A load is synchronous, so it delays the step. The time of the
adapter kernels is part of the step time (`capacity.step.layers.adapters`). Source: vLLM v1/core/sched/scheduler.py
(`scheduled_loras`), lora/worker_manager.py and model_manager.py (LRU caches of `max_cpu_loras` and `max_loras`), read
2026-11.

vLLM V0, SGLang and TensorRT-LLM count the adapters of all running requests, not only those of the step, and skip
requests in the same way (`AdapterMixin`). Source: SGLang scheduler.py, get_new_batch_prefill ("skip it and continue");
vLLM 0.6 core/scheduler.py, `curr_loras`; TensorRT-LLM capacityScheduler.cpp, whose loop goes on to the next request if
adapter pages are missing (from memory, assumed 2026-11). Their adapters are in host memory, and the GPU evicts the
least recently used one.
"""

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
    """Maximum numbers of adapters on the GPU and in host memory (`max_cpu_loras` None: all adapters), and load times.

    `load_ps` is the time from host memory to the GPU. `read_ps` is added if the adapter is not in host memory.
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
                f"max_cpu_loras must be at least max_loras ({self.max_loras}), not {self.max_cpu_loras}"
            )
        if self.load_ps < 0 or self.read_ps < 0:
            raise InvalidInput(
                f"load_ps and read_ps must be at least 0 ps, not {self.load_ps} and {self.read_ps}"
            )


class LoadedAdapters:
    """Loaded adapters ordered by last use: the first `max_loras` are on the GPU, the next ones only in host memory."""

    def __init__(self, slots: AdapterSlots) -> None:
        self._slots = slots
        self._held = slots.max_loras if slots.max_cpu_loras is None else slots.max_cpu_loras
        self._recent: list[int] = []  # most recently used first

    def load_adapter(self, adapter: int) -> int:
        """Load an adapter to the GPU if it is not there; return the load time (ps), 0 if it is on the GPU."""
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


class AdapterLoads:
    """Mixin that delays each step of a policy until its adapters are loaded; adapter 0 is the base model."""

    def __init__(
        self, limits: SchedulerLimits, pool: PagedPool, *, adapters: AdapterSlots, **options: Any
    ) -> None:
        super().__init__(limits, pool, **options)  # type: ignore[call-arg]
        self.max_loras = adapters.max_loras
        self.loaded = LoadedAdapters(adapters)

    def schedule(self, now_ps: int = 0) -> Step:
        step: Step = super().schedule(now_ps)  # type: ignore[misc]
        step.held_ps += sum(map(self.loaded.load_adapter, distinct_adapters(step.rows)))
        return step


class AdapterV1(AdapterLoads, VllmV1):
    """`VllmV1` with LoRA adapters."""

    def skips_request(self, r: Sequence, rows: list[Row]) -> bool:
        """Return whether the adapter of a request would exceed the limit of adapters in this step."""
        scheduled = distinct_adapters(rows)
        exceeds = r.adapter not in (0, *scheduled) and len(scheduled) >= self.max_loras
        return exceeds or super().skips_request(r, rows)


class AdapterMixin(AdapterLoads):
    """Mixin that adds adapters to a policy and skips waiting requests while too many adapters run.

    The skipped requests are removed from the queue before the policy decides. A check of each request when the policy
    tries it would give the same result. The policy starts requests in order until one does not fit, so either each
    earlier request whose adapter was counted starts in this step, or no later request starts.
    """

    waiting: Any  # attributes of the policy
    running: Any

    def __init__(self, limits: SchedulerLimits, pool: PagedPool, **options: Any) -> None:
        super().__init__(limits, pool, **options)
        if limits.priority or options.get("recv_interval", 1) > 1 or options.get("order", "fcfs") != "fcfs":
            raise InvalidInput(
                "LoRA adapters are simulated only in first come first served order: leave out "
                "--scheduling-policy and --scheduler-recv-interval, or use --engine vllm"
            )

    def schedule(self, now_ps: int = 0) -> Step:
        queue = list(self.waiting)
        aside = self._find_excess_requests(queue)
        if aside:
            self.waiting = deque(r for r in queue if r.index not in aside)
        step = super().schedule(now_ps)
        if aside:
            self._restore_queue(queue, aside)
        return step

    def _find_excess_requests(self, queue: list[Sequence]) -> set[int]:
        """Return the indices of waiting requests whose adapter gets no slot, because the adapters of running and
        earlier waiting requests take all slots."""
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

    def _restore_queue(self, queue: list[Sequence], aside: set[int]) -> None:
        """Put the skipped requests `aside` back into the queue in order, behind requests that this step preempted."""
        still = {r.index for r in self.waiting} | aside
        before = {r.index for r in queue}
        sent_back = [r for r in self.waiting if r.index not in before]
        self.waiting = deque([*sent_back, *(r for r in queue if r.index in still)])


class AdapterSglang(AdapterMixin, Sglang):
    """`Sglang` with adapters; `max_loras` is --max-loras-per-batch."""


class AdapterTensorRtLlm(AdapterMixin, TensorRtLlm):
    """`TensorRtLlm` with adapters; `max_loras` is the number of adapters that fit in its GPU cache."""


class AdapterV0(AdapterMixin, VllmV0):
    """`VllmV0` with LoRA adapters."""


class AdapterTgi(Tgi):
    """`Tgi` with adapters. It loads all adapters at its start, so no request waits for one."""

    def __init__(
        self, limits: SchedulerLimits, pool: PagedPool, *, adapters: AdapterSlots, **options: Any
    ) -> None:
        super().__init__(limits, pool, **options)
        self.max_loras = adapters.max_loras

    def add(self, sequence: Sequence) -> bool:
        if sequence.adapter > self.max_loras:
            raise InvalidInput(
                f"a request uses adapter {sequence.adapter}, but --max-loras is {self.max_loras}: TGI loads all "
                "adapters at its start, so set --max-loras to the number of adapters"
            )
        return super().add(sequence)


def distinct_adapters(rows: list[Row]) -> dict[int, None]:
    """Return the distinct adapters of a step's rows, in order."""
    return {row.sequence.adapter: None for row in rows if row.sequence.adapter}
