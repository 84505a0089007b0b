"""Where the time of requests went, from their records: parts that add up to the end-to-end latency exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.simulator.metrics import RequestTable
from capacity.step import PS_PER_S

Ints = npt.NDArray[np.int64]
PARTS = ("queue", "prefill", "transfer", "decode", "preempted")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeParts:
    """Picoseconds of each completed request, in order.

    `queue`: until its first token was scheduled, the way to the engine included. `prefill`: from then to the first
    token, without `transfer` (of KV between pools). `decode`: from the first token to the last, without
    `preempted`: the time for which it had lost its place (what it then computed again counts as decode).
    """

    queue: Ints
    prefill: Ints
    transfer: Ints
    decode: Ints
    preempted: Ints

    def mean_ms(self) -> dict[str, float] | None:
        """The mean of each part; None without any request."""
        if not len(self.queue):
            return None
        return {part: float(getattr(self, part).mean()) * 1e3 / PS_PER_S for part in PARTS}

    def to_dict(self) -> dict[str, dict[str, float]] | None:
        """The means, and those of the slowest 5 % of requests: what makes the tail."""
        means = self.mean_ms()
        if means is None:
            return None
        total = self.queue + self.prefill + self.transfer + self.decode + self.preempted
        slow = total >= np.percentile(total, 95)
        tail = {part: float(getattr(self, part)[slow].mean()) * 1e3 / PS_PER_S for part in PARTS}
        return {"mean_ms": means, "slowest_mean_ms": tail}


def time_parts(records: RequestTable, transfer_ps: Ints | None = None) -> TimeParts:
    """The parts of every completed request of `records`; `transfer_ps` of a disaggregated deployment, else none."""
    done = records.completed
    arrival, scheduled = records.arrival_ps[done], records.first_scheduled_ps[done]
    first, finish = records.first_token_ps[done], records.finish_ps[done]
    nothing = np.zeros(len(arrival), dtype=np.int64)
    transfer = nothing if transfer_ps is None else transfer_ps[done]
    preempted = nothing if records.preempted_ps is None else records.preempted_ps[done]
    return TimeParts(
        queue=scheduled - arrival,
        prefill=first - scheduled - transfer,
        transfer=transfer,
        decode=finish - first - preempted,
        preempted=preempted,
    )
