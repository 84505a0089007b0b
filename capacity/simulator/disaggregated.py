"""Prefill here, decode there: two pools, KV between them, and neither forgets before the other has it.

A request is prefilled (one output token, as a proxy asks for), its blocks stay until its KV has been sent, and a
decode replica loads it as `capacity.simulator.transfer` says. The decode replica samples every token that the client
sees, so TTFT includes the transfer. Back-pressure: what no decode replica has room for stays in the prefill pool.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.errors import InvalidInput
from capacity.metrics import MISSING
from capacity.schedulers import Sequence
from capacity.simulator.cluster import Cluster, ClusterResult, EngineSetup
from capacity.simulator.replica import Replica
from capacity.simulator.router import Prompt, Router, make_router
from capacity.simulator.transfer import KvLink, Load, Port, transfer
from capacity.workload import Workload


class Disaggregated(Cluster):
    """A cluster of prefill and decode replicas. A transfer occupies the sender's port and the receiver's."""

    def __init__(
        self, workload: Workload, *, link: KvLink, decode_router: str = "least-outstanding", **options: Any
    ) -> None:
        for name in ("timeout_s", "failures", "outstanding_limit"):
            if options.get(name) is not None:
                raise InvalidInput(f"{name} is not simulated for disaggregated pools; leave it out")
        super().__init__(workload, **options)
        self.link = link
        self.decoders = make_router(decode_router, has_sessions=workload.session is not None)
        self.transfers = 0
        self.prefilled_ps = array("q", [MISSING]) * len(workload)
        self.loaded_ps = array("q", [MISSING]) * len(workload)
        self._ports: dict[int, Port] = {}
        self._feedback = self._engines_act = True

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int:
        number = super().add(setup, now_ps, ready=ready)
        self._ports[number] = Port()
        return number

    def router_of(self, number: int) -> Router:
        return self.router if self.lives[number].setup.role == "prefill" else self.decoders

    def last_token(self, request: int, setup: EngineSetup) -> int:
        if setup.role == "prefill":
            return self._prompts[request] + 1
        return super().last_token(request, setup)

    def finished(self, replica: Replica, sequence: Sequence, now_ps: int) -> None:
        if self.lives[replica.number].setup.role == "decode":
            super().finished(replica, sequence, now_ps)
            return
        request, tokens = sequence.index, sequence.prompt_tokens
        self.router.left(replica.number, tokens)
        self.prefilled_ps[request] = now_ps
        pool = replica.pool
        kept = pool.table(
            sequence.table.content
        )  # its blocks are free since this very instant: take them back
        pool.grow(kept, tokens, pool.lookup(kept, tokens))
        number = self.decoders.send(Prompt(request, tokens, self._session(request)))
        self._home[request] = number
        life = self.lives[number]
        life.requests += 1
        decoder = life.replica
        whole = decoder.new_sequence(request, self.ledger.arrival_ps[request])
        if whole is None:
            pool.release(kept)
            self.refused(decoder, request, now_ps)
            return

        def begin(at_ps: int) -> int:
            ports = self._ports[replica.number], self._ports[number]
            end_ps = transfer(self.link, tokens, at_ps, *ports)
            self.transfers += 1
            self.loaded_ps[request] = end_ps
            self.at(
                end_ps, lambda: self._deliver(replica.number, end_ps, request, lambda _: pool.release(kept))
            )
            return end_ps

        load = Load(sequence=whole, tokens=tokens, begin=begin)
        self._deliver(number, now_ps, request, lambda at_ps: decoder.want(load, at_ps))

    def result(self, **options: Any) -> ClusterResult:
        arrived = _array(self.loaded_ps) != MISSING
        spent = np.where(arrived, _array(self.loaded_ps) - _array(self.prefilled_ps), MISSING)
        return replace(super().result(**options), transfer_ps=spent)


def _array(column: Any) -> Any:
    return np.frombuffer(column, dtype=np.int64)


def check_roles(setups: Iterable[EngineSetup]) -> None:
    """Raises InvalidInput where one half of a disaggregated deployment is missing, or not simulated."""
    roles = sorted({setup.role for setup in setups})
    if roles != ["decode", "prefill"]:
        raise InvalidInput(
            f"a disaggregated deployment needs prefill and decode replicas, and no others; here are {', '.join(roles)}"
        )
    for setup in setups:
        if setup.role == "decode" and setup.kv_windows != (None,):
            raise InvalidInput("decode pools of models with sliding windows are not simulated")
