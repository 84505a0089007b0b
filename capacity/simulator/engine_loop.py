"""Which engine loop runs: the readable one, every step an event, or the compiled one, which does the same faster."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from capacity.simulator.engines import Engines, Reports
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Recording
from capacity.simulator.readable import ReadableEngines
from capacity.simulator.requests import Requests
from capacity.simulator.setup import EngineSetup


def make_engines(
    env: simpy.Environment,
    requests: Requests,
    ledger: Ledger,
    reports: Reports,
    recording: Recording,
    setups: Sequence[EngineSetup],
    *,
    reacts: bool,
) -> Engines:
    """No engines yet, but what runs those to come, which are like `setups`.

    `reacts`: whoever stands before them acts on what leaves at its very instant. Else a report may come late, as long
    as it comes in order and before the next `catch_up` returns.
    """
    del setups, reacts  # the compiled engines, once they are there, look at these
    return ReadableEngines(env, requests, ledger, reports, recording)
