"""Data-parallel attention: one scheduler per rank, and all ranks schedule every step at the same time.

Ranks that share experts cannot run a step alone, because each layer waits for all ranks. A step of the engine is one
step of every rank. Ranks without work run a dummy row. `JointStepTimes` gives the duration. Requests are assigned to
ranks on arrival and stay there. Sources: vLLM 0.33 v1/engine/core.py (DPEngineCoreProc) and core_client.py
(DPLBAsyncMPClient); SGLang 0.5.23 managers/data_parallel_controller.py; TensorRT-LLM _torch/pyexecutor (attention DP).
Not simulated: vLLM checks only every 32 steps whether all ranks are idle, so a request to an idle deployment may wait
for a dummy step.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from capacity.base.errors import InvalidInput, UnknownName
from capacity.simulator.kv_cache.offload import TierUse, sum_tier_use
from capacity.simulator.schedulers.policy import Policy
from capacity.simulator.schedulers.sequence import Sequence as Request
from capacity.simulator.schedulers.sequence import Step
from capacity.step import PS_PER_S

PUBLISHED_EVERY_PS = PS_PER_S // 10  # vLLM's coordinator publishes queue lengths every 100 ms
WAITING_WEIGHT = 4  # running requests that a waiting one counts as: core_client.py

Item = TypeVar("Item")
PUBLISHED_QUEUES = "published-queues"
Balance = Callable[[Request], int]


def published_queues(ranks: Sequence[Policy]) -> Balance:
    """Return vLLM's balancing method, which chooses the rank with the lowest 4 x waiting + running requests. Ranks
    publish these numbers every 100 ms; requests that were assigned since then count as waiting."""
    waiting, running = [0] * len(ranks), [0] * len(ranks)
    published_ps = -PUBLISHED_EVERY_PS

    def choose(request: Request) -> int:
        nonlocal published_ps
        if request.arrival - published_ps >= PUBLISHED_EVERY_PS:
            published_ps = request.arrival
            waiting[:] = [rank.num_waiting for rank in ranks]
            running[:] = [rank.num_running for rank in ranks]
        scores = [WAITING_WEIGHT * w + r for w, r in zip(waiting, running, strict=True)]
        chosen = scores.index(min(scores))
        waiting[chosen] += 1
        return chosen

    return choose


def round_robin(ranks: Sequence[Policy]) -> Balance:
    """Return SGLang's balancing method, which chooses the ranks in turn."""
    sent = 0

    def choose(request: Request) -> int:  # noqa: ARG001
        nonlocal sent
        sent += 1
        return (sent - 1) % len(ranks)

    return choose


def fewest_requests(ranks: Sequence[Policy]) -> Balance:
    """Return TensorRT-LLM's balancing method, which chooses the rank with the fewest requests."""

    def choose(request: Request) -> int:  # noqa: ARG001
        counts = [rank.unfinished for rank in ranks]
        return counts.index(min(counts))

    return choose


BALANCES: dict[str, Callable[[Sequence[Policy]], Balance]] = {
    PUBLISHED_QUEUES: published_queues,
    "round-robin": round_robin,
    "fewest-requests": fewest_requests,
}


class Lockstep(Policy):
    """Schedulers of all ranks as one policy; each of its steps has one part per rank.

    `prompt_wait_steps` is timeout_iters of TensorRT-LLM's attention_dp_config with enable_balance. If it is set,
    prompts start in the same step on all ranks: they wait while some rank has no prompt and all ranks have rows to
    generate, but at most this many steps.
    """

    def __init__(
        self,
        ranks: Sequence[Policy],
        *,
        balance: str = PUBLISHED_QUEUES,
        prompt_wait_steps: int = 0,
    ) -> None:
        if balance not in BALANCES:
            raise UnknownName("balancing method of data-parallel ranks", balance, BALANCES)
        if prompt_wait_steps and not ranks[0].can_hold_prompts:
            raise InvalidInput("only the tensorrt-llm scheduler supports prompt_wait_steps: leave it out")
        self.ranks = tuple(ranks)
        self.steps_in_flight = self.ranks[0].steps_in_flight
        self.empty_steps = self.ranks[0].empty_steps
        self.staggers = self.ranks[0].staggers
        self.aborts = self.ranks[0].aborts
        self.reserves_to_end = self.ranks[0].reserves_to_end
        self._sent = [0] * len(self.ranks)  # requests, to each rank
        self._choose = BALANCES[balance](self.ranks)
        self._prompt_wait_steps = prompt_wait_steps
        self._prompts_waited = 0

    @property
    def unfinished(self) -> int:
        return sum(rank.unfinished for rank in self.ranks)

    @property
    def num_running(self) -> int:
        return sum(rank.num_running for rank in self.ranks)

    @property
    def num_waiting(self) -> int:
        return sum(rank.num_waiting for rank in self.ranks)

    @property
    def wake_ps(self) -> int | None:
        return min((rank.wake_ps for rank in self.ranks if rank.wake_ps is not None), default=None)

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        return sum_tier_use(use for rank in self.ranks for use in rank.tier_use)

    @property
    def rank_requests(self) -> tuple[int, ...]:
        return tuple(self._sent)

    def add(self, sequence: Request) -> bool:
        self.assign_rank(sequence)
        return self.ranks[sequence.rank].add(sequence)

    def assign_rank(self, sequence: Request) -> None:
        sequence.rank = self._choose(sequence)
        self._sent[sequence.rank] += 1

    def add_loaded(self, sequence: Request) -> None:
        self.ranks[sequence.rank].add_loaded(sequence)

    def last_slot(self, r: Request) -> int:
        return self.ranks[r.rank].last_slot(r)

    def schedule(self, now_ps: int) -> Step:
        if self._prompt_wait_steps:
            held = self._holds_prompts()
            for rank in self.ranks:
                rank.holds_prompts = held
        parts = tuple(rank.schedule(now_ps) for rank in self.ranks)
        return Step(
            rows=_join(part.rows for part in parts),
            preempted=_join(part.preempted for part in parts),
            finished=_join(part.finished for part in parts),
            held_ps=max(part.held_ps for part in parts),
            parts=parts,
        )

    def _holds_prompts(self) -> bool:
        holds = (
            self._prompts_waited + 1 < self._prompt_wait_steps
            and all(rank.num_running for rank in self.ranks)
            and not all(rank.num_waiting for rank in self.ranks)
        )
        self._prompts_waited = self._prompts_waited + 1 if holds else 0
        return holds

    def update(self, step: Step) -> list[Request]:
        finished: list[Request] = []
        for rank, part in zip(self.ranks, step.parts, strict=True):
            part.start, part.end = step.start, step.end
            finished += rank.update(part)
            step.emitted += part.emitted
        step.finished = finished
        return finished

    def abort(self, r: Request) -> None:
        self.ranks[r.rank].abort(r)


def _join(lists: Iterable[list[Item]]) -> list[Item]:
    return list(chain.from_iterable(lists))
