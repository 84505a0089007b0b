"""Classes of a step's seconds that share prediction errors.

Memory-bound kernels are all wrong together if a GPU's memory is slower than its constants state; so are the times of
one CPU. Intervals and calibration apply one factor to the seconds of each class.
"""

from typing import Literal, get_args

from capacity.step.shape import Bound, OpCost, StepCost

TimeClass = Literal["memory", "compute", "experts", "all_reduce", "host", "eager"]
TIME_CLASSES: tuple[TimeClass, ...] = get_args(TimeClass)
Effect = Literal[TimeClass, "experts_tilt"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""Effects by which step times may be wrong: a factor for each class, and one for experts that grows with tokens."""

_CLASS_BY_BOUND: dict[Bound, TimeClass] = {
    "memory": "memory",
    "launch": "memory",  # fixed kernel times depend on memory latency
    "compute": "compute",
    "communication": "all_reduce",
    "host": "host",
}


def time_class(operator: OpCost) -> TimeClass:
    """Return the class of an operator's seconds, by its bound."""
    if operator.name == "launch gaps":
        return "eager"
    if operator.name == "experts":
        return "experts"
    return _CLASS_BY_BOUND[operator.bound]


def class_shares(cost: StepCost) -> dict[TimeClass, float]:
    """Return each class's fraction of one step's time; the fractions add up to 1."""
    seconds: dict[TimeClass, float] = dict.fromkeys(TIME_CLASSES, 0.0)
    for operator in cost.operators:
        seconds[time_class(operator)] += operator.seconds
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total else seconds
