"""Kinds of operator time (memory bound, compute bound, experts, ...), each with one prediction error.

If a GPU's memory is slower than its constants state, the times of all memory-bound kernels are wrong by the same
factor. The same applies to all times of the host CPU. Prediction intervals and calibration apply one factor to the
seconds of each kind.
"""

from typing import Literal, get_args

from capacity.step.shape import Bound, OpCost, StepCost

TimeClass = Literal["memory", "compute", "experts", "all_reduce", "host", "eager"]
TIME_CLASSES: tuple[TimeClass, ...] = get_args(TimeClass)
Effect = Literal[TimeClass, "experts_tilt"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""Errors of step times: a factor for each kind of time, and for experts an exponent of the number of tokens."""

_CLASS_BY_BOUND: dict[Bound, TimeClass] = {
    "memory": "memory",
    "launch": "memory",  # fixed kernel times depend on memory latency
    "compute": "compute",
    "communication": "all_reduce",
    "host": "host",
}


def time_class(operator: OpCost) -> TimeClass:
    """Return the kind of an operator's time: "eager" for launch gaps, "experts" for experts, else by its bound."""
    if operator.name == "launch gaps":
        return "eager"
    if operator.name == "experts":
        return "experts"
    return _CLASS_BY_BOUND[operator.bound]


def class_shares(cost: StepCost) -> dict[TimeClass, float]:
    """Return the fraction of one step's time for each kind of time; the fractions add up to 1."""
    seconds: dict[TimeClass, float] = dict.fromkeys(TIME_CLASSES, 0.0)
    for operator in cost.operators:
        seconds[time_class(operator)] += operator.seconds
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total else seconds
