"""Simulate a deployment of serving engines: requests in, steps decided by each engine's scheduler, records out.

In: a `Workload`, one `EngineSetup` an engine (its step times, KV blocks, scheduler), and what stands before them. Out:
`SimulationResult`, a record a request and what the engines did. It knows no roofline: the duration of a step comes
from `StepTimes`. Time is whole picoseconds on a SimPy clock.
Start reading at `simulation`, then `cluster` (who sends what, which replica gets it), `engines` (what goes in, what is
reported), `engine` (decide, compute, account), `schedulers` (what a step computes) and `kv_cache`; `metrics` and
`verdict` say what the records show.
"""

from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.ledger import Ledger, Sample
from capacity.simulator.result import SimulationResult
from capacity.simulator.setup import EngineSetup
from capacity.simulator.simulation import simulate

__all__ = [
    "Engine",
    "EngineSetup",
    "FrontendTimes",
    "Ledger",
    "Sample",
    "SimulationResult",
    "StepObserver",
    "simulate",
]
