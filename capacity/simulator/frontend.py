"""Path between client and engine: latency in both directions, and the process that streams tokens.

A request arrives `request_latency_s` after it was sent (HTTP, tokenizer). A token reaches the client
`response_latency_s` after it was streamed (detokenizer, HTTP); only then can a closed loop send its next request.
Messages of all requests queue in the front end: sending one takes `output_token_s`, and it contains `stream_interval`
tokens of one request (the first and the last token are sent at once). With `input_token_s` or `request_s`, incoming
requests wait in the same queue (see `front_end_process`).
"""

import heapq
from collections import Counter
from collections.abc import Sequence as Items
from itertools import count

import numpy as np

from capacity.simulator.client import Arrivals, Client, OpenLoopClient, make_client
from capacity.simulator.front_end_process import FrontEndProcesses, FrontendTimes
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.instants import NEVER
from capacity.simulator.ledger import EngineLedger, Ledger
from capacity.simulator.metrics import MISSING
from capacity.simulator.schedulers import Sequence
from capacity.simulator.step_work import StepWork
from capacity.step import picoseconds
from capacity.workload import Workload


class StreamingLedger(EngineLedger):
    """Ledger of an engine whose deliveries pass through the front end's output queue."""

    def __init__(
        self,
        ledger: Ledger,
        gaps: GapCounter,
        work: StepWork | None = None,
        *,
        front_end: FrontEndProcesses,
    ) -> None:
        super().__init__(ledger, gaps, work)
        self._front_end = front_end

    def record_delivery(self, emitted: Items[tuple[Sequence, int]], now_ps: int) -> None:
        gaps: list[int] = []
        for r, _ in emitted:
            produced = r.known - r.prompt_tokens
            if produced > 1 and produced % self._front_end.times.stream_interval and r.known < r.max_known:
                continue
            sent_ps = self._front_end.send(r.index, now_ps)
            if r.last_token == MISSING:
                r.first_token = self.columns.first_token_ps[r.index] = sent_ps
            else:
                gaps.append(sent_ps - r.last_token)
            r.last_token = sent_ps
        for gap_ps, times in sorted(Counter(gaps).items()):
            self.gaps.add(gap_ps, times)

    def record_end(self, r: Sequence, now_ps: int) -> None:
        super().record_end(r, max(now_ps, r.last_token))


class DelayedClient:
    """Client with network latency to the engines: `take` and `on_completion` use the clock at the engines.

    Requests reach the engine `request_latency_s` after the client sends them. Completions reach the client
    `response_latency_s` after the time in the ledger. The wrapped `Client` uses the times at the client.
    """

    def __init__(self, client: Client, ledger: Ledger, times: FrontendTimes) -> None:
        self._client = client
        self._ledger = ledger
        self._times = times
        self._request_ps = picoseconds(times.request_latency_s)
        self._response_ps = picoseconds(times.response_latency_s)
        self._answers: list[tuple[int, int, int]] = []  # (instant at the client, order, request)
        self._order = count()
        self._update_due()

    def _update_due(self) -> None:
        due_ps = min(self._client.due_ps, self._answers[0][0] if self._answers else NEVER)
        self.due_ps = due_ps + self._request_ps if due_ps < NEVER else NEVER

    def take(self, now_ps: int) -> list[tuple[int, int]]:
        """Return (request, arrival time at the engine) of requests that arrived since the last call, in order."""
        client, answers = self._client, self._answers
        horizon_ps = now_ps - self._request_ps
        sent: list[tuple[int, int]] = []
        while answers and answers[0][0] <= horizon_ps:
            at_ps, _, request = heapq.heappop(answers)
            sent += client.take(at_ps)
            sent += client.on_completion(request, at_ps)
        sent += client.take(horizon_ps)
        self._update_due()
        return [(request, at_ps + self._request_ps) for request, at_ps in sent]

    def on_completion(self, request: int, now_ps: int) -> list[tuple[int, int]]:
        """Schedule when the client learns that a request ended. Return an empty list: no request is due yet."""
        finish_ps = self._ledger.finish_ps[request]
        at_ps = (now_ps if finish_ps == MISSING else finish_ps) + self._response_ps
        heapq.heappush(self._answers, (at_ps, next(self._order), request))
        self._update_due()
        return []


def make_client_with_latency(workload: Workload, ledger: Ledger, times: FrontendTimes | None) -> Arrivals:
    """Return the workload's client with network latency; in an open loop, only the latency of requests matters."""
    if times is None or not times.delays:
        return make_client(workload)
    if workload.is_closed_loop:
        return DelayedClient(make_client(workload), ledger, times)
    return OpenLoopClient(workload, delay_ps=picoseconds(times.request_latency_s))


def convert_to_client_clock(ledger: Ledger, times: FrontendTimes) -> None:
    """Convert the ledger's times from the engine to the client, where a load generator measures them."""
    for column, shift_s in (
        (ledger.arrival_ps, -times.request_latency_s),
        (ledger.first_token_ps, times.response_latency_s),
        (ledger.finish_ps, times.response_latency_s),
    ):
        if column:
            instants_ps = np.frombuffer(column, dtype=np.int64)
            instants_ps[instants_ps != MISSING] += picoseconds(shift_s)
