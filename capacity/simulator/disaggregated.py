"""Disaggregated prefill: a prefill pool, a decode pool, and KV transfers between them.

A prefill replica computes the prompt and one output token (the proxy requests one) and keeps the KV blocks until they
are sent. A decode replica loads them as `capacity.simulator.transfer` describes, and samples every token that the
client sees, so TTFT includes the transfer. Back-pressure: requests without room in the decode pool stay in the prefill
pool.

If a client times out, both replicas free the request's blocks and abort the transfer. If a prefill replica fails, the
KV that it has not sent is lost, and those requests restart from their prompt. If a decode replica fails, its loaded KV
is lost; requests whose KV the prefill replica still has go to another decode replica.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import Router
from capacity.simulator.cluster import Cluster
from capacity.simulator.dispatch import Dispatch, router_name
from capacity.simulator.fleet import NoProgress
from capacity.simulator.members import Recording
from capacity.simulator.metrics import MISSING
from capacity.simulator.result import SimulationResult
from capacity.simulator.schedulers import schedulers_with_ability
from capacity.simulator.setup import EngineSetup, Role
from capacity.simulator.transfer import Port, Transfer, Transfers
from capacity.workload import Workload

MAX_RESTARTED_PREFILLS = 1000  # repeated prefills in a row without progress


class Handoff(Transfer):
    """Transfer of a prefilled request's KV. The sender (prefill replica) keeps the KV until the transfer ends."""

    receiver: int | None = None  # None: no decode replica takes requests
    begun = False  # the transfer has begun
    taken = False  # the receiver already runs it: the transfer took no time

    def __init__(self, request: int, tokens: int, sender: int) -> None:
        super().__init__(tokens, ())
        self.request = request
        self.sender = sender


class DisaggregatedCluster(Cluster):
    """A cluster of prefill and decode replicas. A KV transfer occupies a port of the sender and of the receiver."""

    def __init__(
        self, workload: Workload, setups: Sequence[EngineSetup], dispatch: Dispatch, recording: Recording
    ) -> None:
        """Create the cluster. Raises InvalidInput without a KV link."""
        if dispatch.link is None:
            raise InvalidInput("disaggregated pools need a KV link")
        super().__init__(workload, setups, dispatch, recording)
        self.decoders = self._make_router(dispatch.decode_router)
        self.transfers = Transfers(self.env, dispatch.link, self._on_arrival)
        self.prefilled_ps = array("q", [MISSING]) * len(workload)
        self.loaded_ps = array("q", [MISSING]) * len(workload)
        self._ports: defaultdict[tuple[int, int], Port] = defaultdict(Port)  # of each engine's ranks
        self._handoffs: dict[int, Handoff] = {}
        self._without_decoder: dict[int, None] = {}  # prefilled requests, in order
        self._lost_prefills = 0  # prefills whose KV was lost since the last progress

    def _router_for(self, role: Role) -> Router:
        return self.router if role == "prefill" else self.decoders

    @property
    def is_over(self) -> bool:
        return not self.transfers.under_way and super().is_over

    @property
    def waiting_for_replica(self) -> int:
        return len(self._held) + len(self._without_decoder)

    def pool_load(self, setup: EngineSetup) -> int:
        return self._load(setup.role, self.replicas_of(setup))

    def _load(self, role: Role, numbers: Iterable[int]) -> int:
        """Return how many requests are in the open replicas among `numbers` or wait for a replica of this role."""
        waiting = self._held if role == "prefill" else self._without_decoder
        return len(waiting) + sum(self.routers[n].requests[n] for n in numbers if self.members[n].open)

    @property
    def by_role(self) -> dict[Role, int]:
        roles: tuple[Role, ...] = ("prefill", "decode")
        return {role: self._load(role, self.replicas_of_role(role)) for role in roles}

    def _is_idle(self, number: int) -> bool:
        return super()._is_idle(number) and all(h.sender != number for h in self._handoffs.values())

    def _release(self, now_ps: int) -> None:
        while self._without_decoder and self.decoders.ready:
            request = next(iter(self._without_decoder))
            del self._without_decoder[request]
            self._hand_over(self._handoffs[request], now_ps)
        super()._release(now_ps)

    def fail(self, number: int, now_ps: int) -> None:
        if self.members[number].setup.role == "prefill":
            stranded = [handoff for handoff in self._handoffs.values() if handoff.sender == number]
            for handoff in stranded:
                self._remove_handoff(handoff, now_ps)
                self._forget(handoff.request)
            super().fail(number, now_ps)
            for handoff in stranded:
                self._restart_or_fail(handoff.request, now_ps)
            return
        saved = [handoff for handoff in self._handoffs.values() if handoff.receiver == number]
        for handoff in saved:
            self._take_back(handoff, now_ps)
        super().fail(number, now_ps)
        for handoff in saved:
            self._hand_over(self._handoffs[handoff.request], now_ps)

    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None:  # noqa: ARG002
        self._queue_action(self._leave_prefill if kept else self._restart_prefill, request, at_ps)

    def _leave_prefill(self, request: int, now_ps: int) -> None:
        """Remove a prefilled request from its prefill replica, which keeps the KV, and send it to a decode replica."""
        self.prefilled_ps[request] = now_ps
        self._lost_prefills = 0
        handoff = Handoff(request, self.requests.prompt_tokens[request], self._home[request])
        self._handoffs[request] = handoff
        self._depart(request, now_ps)
        self._hand_over(handoff, now_ps)
        if self._held or self._without_decoder:
            self._release(now_ps)

    def _restart_prefill(self, request: int, now_ps: int) -> None:
        """Restart a request from its prompt because its KV was lost when its prefill ended. Raises NoProgress."""
        self._remove_from_failed(request)
        self.account.restarted += 1
        self._lost_prefills += 1
        if self._lost_prefills >= MAX_RESTARTED_PREFILLS and not self._makes_progress():
            raise NoProgress(
                f"the KV of prefilled requests was lost {self._lost_prefills} times in a row before it could be sent: "
                "the prefill replicas need more KV blocks"
            )
        self._dispatch(request, now_ps)

    def _makes_progress(self) -> bool:
        """Return whether a request is in transfer or decoding, so that its end will free blocks."""
        decoders = (number for number in self.replicas_of_role("decode") if self.members[number].alive)
        return self.transfers.under_way > 0 or any(self.engines.state(n).num_running for n in decoders)

    def _is_outstanding(self, request: int) -> bool:
        return super()._is_outstanding(request) or request in self._without_decoder

    def _forget(self, request: int) -> None:
        super()._forget(request)
        self.prefilled_ps[request] = self.loaded_ps[request] = MISSING

    def _give_up(self, request: int, now_ps: int) -> None:
        handoff = self._handoffs.get(request)
        if handoff is None:
            super()._give_up(request, now_ps)
            return
        self.account.timed_out += 1
        self._remove_handoff(handoff, now_ps)
        self._on_early_end(request)

    def _hand_over(self, handoff: Handoff, now_ps: int) -> None:
        """Send a prefilled request to a decode replica, which loads its KV; the request waits if none is ready."""
        request, router = handoff.request, self.decoders
        if not router.ready:
            self._without_decoder[request] = None
            return
        number = self._choose(request, self._prompt_for(router)(request), router)
        handoff.receiver = number
        if not self.engines.want_load(number, request, handoff.tokens, now_ps):
            self._free_kept(handoff, now_ps)
            self._turn_away(request, now_ps)

    def load_begins(self, number: int, request: int, at_ps: int) -> int:
        """Start the transfer of a request's KV to the allocated blocks; return its expected arrival time (ps)."""
        handoff = self._handoffs[request]
        handoff.begun = True
        handoff.ports = self._port(handoff.sender, request), self._port(number, request)
        handoff.computed_ps = self.ledger.first_scheduled_ps[request], self.prefilled_ps[request]
        end_ps = self.transfers.begin(handoff, at_ps)
        handoff.taken = end_ps <= at_ps
        return end_ps

    def _port(self, number: int, request: int) -> Port:
        """Return the port of the GPUs that have a request's KV; each data-parallel rank has its own port."""
        return self._ports[number, self.engines.rank_of(number, request)]

    def _on_arrival(self, handoff: Handoff, now_ps: int) -> None:
        self.loaded_ps[handoff.request] = now_ps
        self._free_kept(handoff, now_ps)
        if not handoff.taken:
            assert handoff.receiver is not None
            self.engines.on_kv_arrival(handoff.receiver, handoff.request, now_ps)

    def _free_kept(self, handoff: Handoff, now_ps: int) -> None:
        """Free a request's KV blocks at the sender; a draining sender retires if this was its last work."""
        del self._handoffs[handoff.request]
        sender = self.members[handoff.sender]
        if not sender.alive:
            return
        self.engines.release_kept(handoff.sender, handoff.request, now_ps)
        if sender.draining and self._is_idle(handoff.sender):
            self._retire(handoff.sender, now_ps)

    def _take_back(self, handoff: Handoff, now_ps: int) -> None:
        """Cancel a request's transfer and remove it from its decode replica; the sender keeps the KV."""
        request, number = handoff.request, handoff.receiver
        self._without_decoder.pop(request, None)
        if handoff.begun:
            self.transfers.abort(handoff, now_ps)
        if number is None:
            return
        self._depart(request, now_ps)
        if self.members[number].alive:
            act = self.engines.cancel if handoff.taken else self.engines.unload
            act(number, request, now_ps)
        self._handoffs[request] = Handoff(request, handoff.tokens, handoff.sender)

    def _remove_handoff(self, handoff: Handoff, now_ps: int) -> None:
        """Remove a prefilled request from its decode replica and free its KV at the sender."""
        self._take_back(handoff, now_ps)
        self._free_kept(handoff, now_ps)

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: bool = False
    ) -> SimulationResult:
        prefilled = np.frombuffer(self.prefilled_ps, dtype=np.int64)
        loaded = np.frombuffer(self.loaded_ps, dtype=np.int64)
        transfers = self.transfers
        return replace(
            super().result(goodput_ms=goodput_ms, interrupted=interrupted),
            prefilled_ps=prefilled,
            transfer_ps=np.where((loaded != MISSING) & (prefilled != MISSING), loaded - prefilled, MISSING),
            transfers={"begun": transfers.begun, "arrived": transfers.arrived, "aborted": transfers.aborted},
            decode_router=router_name(self.dispatch.decode_router),
        )


def check_roles(setups: Iterable[EngineSetup]) -> None:
    """Raise InvalidInput if prefill or decode replicas are missing, or if their KV cannot be transferred."""
    setups = list(setups)
    roles = sorted({setup.role for setup in setups})
    if roles != ["decode", "prefill"]:
        raise InvalidInput(
            f"a disaggregated deployment needs replicas of the roles prefill and decode, not {', '.join(roles)}"
        )
    able = schedulers_with_ability("hands_over")
    for setup in setups:
        contiguous = setup.kv_contiguous_tokens is not None
        if contiguous or setup.policy not in able:
            kept = "contiguous KV" if contiguous else f"the {setup.policy_name} scheduler"
            raise InvalidInput(
                f"{kept} cannot transfer KV: use a paged KV cache and one of the schedulers {', '.join(able)}"
            )
    if len({setup.kv_windows for setup in setups}) > 1:
        raise InvalidInput(
            "prefill and decode pools have different KV groups of layers: use the same model and KV cache options"
        )
