"""Choice of the engine loop: Python (every step is a SimPy event) or compiled (same results, faster)."""

from collections.abc import Sequence

import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.core import library
from capacity.simulator.core.binding import unsupported_reason
from capacity.simulator.core.engines import CompiledEngines
from capacity.simulator.engines import Engines, Reports
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Recording
from capacity.simulator.python_engines import ReadableEngines
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
    """Return compiled or Python `Engines` for these setups; engines are added later. Raises InvalidInput.

    `reacts`: the caller acts at the time when a request ends; otherwise the engines may report the end later, but in
    order and before the next event. `routed`: the caller needs reports of ended and rejected requests.
    """
    because = readable_loop_reason(recording, setups, requests)
    if because is None:
        return CompiledEngines(env, requests, ledger, reports, recording, reacts=reacts, routed=routed)
    if recording.engine_loop == "core":
        raise InvalidInput(f"the compiled engines cannot run this: {because}; use --engine-loop events")
    return ReadableEngines(env, requests, ledger, reports, recording)


def can_send_loop(recording: Recording, setups: Sequence[EngineSetup], requests: Requests) -> bool:
    """Return whether the compiled engine itself can send the requests of a closed loop to a single engine: if all are
    ready at the start, none is rejected, and nothing else happens during the run."""
    workload, setup, frontend = requests.workload, setups[0], recording.frontend
    return (
        workload.concurrency is not None
        and workload.after_request is None
        and not workload.arrival_s.any()
        and workload.prompt_tokens.max() < setup.limits.max_model_len
        and "max_waiting" not in setup.policy_options
        and recording.sample_interval_s is None
        and (frontend is None or frontend.delays)  # else a client does not wait for the last token's delivery
        and readable_loop_reason(recording, setups, requests) is None
    )


def readable_loop_reason(
    recording: Recording, setups: Sequence[EngineSetup], requests: Requests
) -> str | None:
    """Return the reason why the Python engines run; None if the compiled engines run."""
    if recording.engine_loop == "events":
        return 'engine_loop is "events"'
    if recording.observer is not None:
        return "an observer is set"
    for setup in setups:
        if not isinstance(setup.policy, str):
            return f"the scheduling policy {setup.policy_name} is a Python class"
        if because := unsupported_reason(setup):
            return because
    has_samples = requests.workload.sample_of is not None
    if has_samples and any(setup.policy_options.get("forks_samples") for setup in setups):
        return "samples that share one computed prompt (vLLM before 0.6.4) are not supported"
    return "the compiled engines are not built on this machine" if library.load() is None else None
