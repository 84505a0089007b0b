"""Simulate serving engines: arrivals in, steps decided by a policy, records and a summary out."""

from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.frontend import FrontendTimes
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
