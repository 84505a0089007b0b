"""Simulator of a deployment: each engine's scheduler decides its steps, and every request gets a record.

Input: a `Workload`, one `EngineSetup` per engine (step times, KV blocks, scheduler), and options such as the router.
Output: a `SimulationResult` with one record per request and the totals of the engines. The simulator contains no
roofline: `StepTimes` gives the duration of each step. Time is in whole picoseconds on a SimPy clock.

Start reading with `simulation`, then `cluster` (routing), `engines` (interface of the engines), `engine` (schedule,
compute, record), `schedulers` (contents of a step) and `kv_cache`; `metrics` and `verdict` evaluate the records.
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
