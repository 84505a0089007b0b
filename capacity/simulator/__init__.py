"""Simulate a serving engine: arrivals in, steps decided by a policy, records and a summary out."""

from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.frontend import FrontendTimes
from capacity.simulator.ledger import Ledger, Sample
from capacity.simulator.simulate import SimulationResult, simulate_engine

__all__ = [
    "Engine",
    "FrontendTimes",
    "Ledger",
    "Sample",
    "SimulationResult",
    "StepObserver",
    "simulate_engine",
]
