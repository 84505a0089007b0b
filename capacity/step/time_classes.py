"""What the seconds of a step are made of, by what may be wrong with them: the classes that errors of prediction share.

Kernels that wait for memory are off together where a GPU's memory is slower than its constants say; so are the times
of one CPU. Intervals and calibration speak of these classes, each a factor on its seconds.
"""

from typing import Literal, get_args

from capacity.step.shape import Bound, OpCost, StepCost

TimeClass = Literal["memory", "compute", "experts", "all_reduce", "host", "eager"]
TIME_CLASSES: tuple[TimeClass, ...] = get_args(TimeClass)
Effect = Literal[TimeClass, "experts_tilt"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""What step times may be off by: a factor on each class of seconds, and one on experts' that grows with tokens."""

_OF_BOUND: dict[Bound, TimeClass] = {
    "memory": "memory",
    "launch": "memory",  # fixed times of kernels: as long as memory takes to answer
    "compute": "compute",
    "communication": "all_reduce",
    "host": "host",
}


def time_class(operator: OpCost) -> TimeClass:
    """The class of an operator's seconds, by what bounds it."""
    if operator.name == "launch gaps":
        return "eager"
    if operator.name == "experts":
        return "experts"
    return _OF_BOUND[operator.bound]


def class_shares(cost: StepCost) -> dict[TimeClass, float]:
    """Parts of one step's time; they add up to 1."""
    seconds: dict[TimeClass, float] = dict.fromkeys(TIME_CLASSES, 0.0)
    for operator in cost.operators:
        seconds[time_class(operator)] += operator.seconds
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total else seconds
