"""Split of the end-to-end latency of requests into parts whose sum is exactly the latency."""

from dataclasses import dataclass

import numpy as np

from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.metrics import MISSING, RequestTable
from capacity.simulator.result import CascadeUse
from capacity.step import PS_PER_S, picoseconds
from capacity.workload.columns import IntArray

PARTS = (
    "client", "api server", "asked before", "queue", "prefill", "transfer", "decode", "preempted", "judged"
)  # fmt: skip
CASCADE_PARTS = ("asked before", "judged")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeParts:
    """Parts of the end-to-end latency (ps) of each completed request, in order.

    `client`: client and network, both directions. `api_server`: the engine's API server, in and out (HTTP, tokenizer,
    detokenizer), without waiting for other requests. `asked_before`: in a cascade, the time before the request reached
    the pool that answered (cache, decisions, other pools). `queue`: in the API server and in the engine until the
    request was first scheduled. `prefill`: from then to the first token, without `transfer` (KV between pools).
    `decode`: from the first token to the last, without `preempted`, the time out of the batch after a preemption
    (recomputation counts as decode). `judged`: in a cascade, from the last token until the judge accepted the answer.
    """

    client: IntArray
    api_server: IntArray
    asked_before: IntArray
    queue: IntArray
    prefill: IntArray
    transfer: IntArray
    decode: IntArray
    preempted: IntArray
    judged: IntArray

    def part_of(self, part: str) -> IntArray:
        """Return the time (ps) of one part of the latency for each completed request; `part` is a name in `PARTS`."""
        column: IntArray = getattr(self, part.replace(" ", "_"))
        return column

    def mean_ms(self) -> dict[str, float] | None:
        """Return the mean of each part of the latency in ms; None without completed requests."""
        if not len(self.queue):
            return None
        return {part: float(self.part_of(part).mean()) * 1e3 / PS_PER_S for part in PARTS}

    def to_dict(self) -> dict[str, dict[str, float]] | None:
        """Return the mean (ms) of each part, over all completed requests and the slowest 5 %; None without any."""
        means = self.mean_ms()
        if means is None:
            return None
        total = sum(self.part_of(part) for part in PARTS)
        slow = total >= np.percentile(total, 95)
        shown = [part for part in PARTS if part not in CASCADE_PARTS or self.part_of(part).any()]
        tail = {part: float(self.part_of(part)[slow].mean()) * 1e3 / PS_PER_S for part in shown}
        return {"mean_ms": {part: means[part] for part in shown}, "slowest_mean_ms": tail}


def time_parts(
    records: RequestTable,
    transfer_ps: IntArray | None = None,
    *,
    api_server: FrontendTimes | None = None,
    client_latency_s: float | None = None,
    cascade: CascadeUse | None = None,
) -> TimeParts:
    """Return the parts of the end-to-end latency of every completed request.

    Times in `records` are those at the client, whose round-trip latency to the engines' API servers (`api_server`) is
    `client_latency_s`. `transfer_ps`: KV transfer times of a disaggregated deployment. `cascade`: times of a cascade.
    """
    server = api_server or FrontendTimes()
    way = server.add_client_latency(client_latency_s or 0.0)
    there, back = picoseconds(way.request_latency_s), picoseconds(way.response_latency_s)
    served = picoseconds(server.request_latency_s) + picoseconds(server.response_latency_s)
    done = records.completed
    arrival, scheduled = records.arrival_ps[done] + there, records.first_scheduled_ps[done]
    first, finish = records.first_token_ps[done] - back, records.finish_ps[done] - back
    nothing = np.zeros(len(arrival), dtype=np.int64)
    transfer = nothing if transfer_ps is None else transfer_ps[done]
    preempted = nothing if records.preempted_ps is None else records.preempted_ps[done]
    made, ended, sent_on = first, finish, arrival
    cpu_ps = np.rint(server.work_s(records.prompt_tokens[done].astype(np.float64)) * PS_PER_S).astype(
        np.int64
    )
    if cascade is not None:
        judged, moved, cached = (each[done] for each in (cascade.made_ps, cascade.sent_on_ps, cascade.cached))
        made = np.where(judged != MISSING, judged, first)
        ended = np.where(judged != MISSING, finish - picoseconds(cascade.judge_s), finish)
        sent_on = np.where(moved != MISSING, moved, arrival)
        shown = finish + served
        made, ended, scheduled, sent_on, finish = (
            np.where(cached, shown, each) for each in (made, ended, scheduled, sent_on, finish)
        )
    cpu_ps = np.clip(cpu_ps, 0, scheduled - sent_on)
    server_ps = cpu_ps + served
    if cascade is not None:  # cached answers were in no engine and no API server
        server_ps[cached] = cpu_ps[cached] = 0
    return TimeParts(
        client=nothing + (there + back - served),
        api_server=server_ps,
        asked_before=sent_on - arrival,
        queue=scheduled - sent_on - cpu_ps,
        prefill=made - scheduled - transfer,
        transfer=transfer,
        decode=ended - made - preempted,
        preempted=preempted,
        judged=finish - ended,
    )
