"""Which engine loop runs: the readable one, every step an event, or the compiled one, which does the same faster."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.core import library
from capacity.simulator.core.binding import covers
from capacity.simulator.core.engines import CompiledEngines
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
    routed: bool,
) -> Engines:
    """No engines yet, but what runs those to come, which are like `setups`.

    `reacts`: whoever stands before them acts on what leaves at its very instant. Else a report may come late, as long
    as it comes in order and before the next `catch_up` returns. `routed`: it wants reports at all.
    """
    if _compiled(recording, setups):
        return CompiledEngines(env, requests, ledger, reports, recording, reacts=reacts, routed=routed)
    return ReadableEngines(env, requests, ledger, reports, recording)


def _compiled(recording: Recording, setups: Sequence[EngineSetup]) -> bool:
    """Whether the compiled engines run; "auto": where they are there and do all that is asked. Raises InvalidInput."""
    wish = recording.engine_loop
    if wish == "events":
        return False
    unable = "each step is observed" if recording.observer is not None else None
    if recording.frontend is not None and not recording.frontend.is_one_queue_out:
        unable = "requests pass through the front end's processes"
    for setup in setups:
        if not covers(setup):
            unable = f"the scheduler {setup.policy_name} with these options is not one of theirs"
    if unable is None and library.load() is None:
        unable = "they were not compiled here"
    if wish == "core" and unable is not None:
        raise InvalidInput(f"the compiled engines cannot run this: {unable} (--engine-loop events)")
    return unable is None
