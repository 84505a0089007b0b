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

    `reacts`: whoever stands before them acts on the end of a request at its very instant. Else that may be reported
    later, as long as it is in order and before the next event. `routed`: it wants reports at all.
    """
    if _uses_core(recording, setups, requests):
        return CompiledEngines(env, requests, ledger, reports, recording, reacts=reacts, routed=routed)
    return ReadableEngines(env, requests, ledger, reports, recording)


def _uses_core(recording: Recording, setups: Sequence[EngineSetup], requests: Requests) -> bool:
    """Whether the compiled engines run; "auto": where they are there and do all that is asked. Raises InvalidInput."""
    because = why_readable(recording, setups, requests)
    if recording.engine_loop == "core" and because is not None:
        raise InvalidInput(f"the compiled engines cannot run this: {because} (--engine-loop events)")
    return because is None


def why_readable(recording: Recording, setups: Sequence[EngineSetup], requests: Requests) -> str | None:
    """Why the readable engines run; None: the compiled ones do."""
    if recording.engine_loop == "events":
        return "they were asked for"
    if recording.observer is not None:
        return "each step is observed"
    if requests.have_images:
        return "images are not among what is compiled"
    for setup in setups:
        if not covers(setup):
            return f"the scheduler {setup.policy_name} with these options is not one of the compiled"
    if requests.have_samples and any(setup.policy_options.get("forks_samples") for setup in setups):
        return "samples that fork are not among what is compiled"
    return "the others were not compiled here" if library.load() is None else None
