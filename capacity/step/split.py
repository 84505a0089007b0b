"""Check whether a step takes longer with all tensor-parallel ranks than with half of them, as small steps often do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from capacity.base.errors import CapacityError
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting
from capacity.step.shape import StepShape

MIN_RATIO = 1.001  # below this ratio the times count as equal
MAX_LISTED_OPERATORS = 2  # maximum number of operators in the note
MIN_LISTED_S = 5e-5  # smallest increase that the note shows


def halve_ranks(setting: StepSetting) -> StepModel | None:
    """Return the step model with half the TP ranks (1 for an odd number), or None if impossible."""
    ranks = setting.tensor_parallel_size
    if ranks == 1:
        return None
    try:
        return StepModel(replace(setting, tensor_parallel_size=ranks // 2 if ranks % 2 == 0 else 1))
    except CapacityError:
        return None


def describe_split_slowdown(
    split: StepModel, ranks: int, less: StepModel, steps: Sequence[StepShape]
) -> str | None:
    """Return a note if a prefill (`steps`) takes longer with `ranks` TP ranks (step model `split`) than with half of
    them (step model `less`); None if it does not."""
    split_s, less_s = (sum(map(each.step_seconds, steps)) for each in (split, less))
    if split_s <= MIN_RATIO * less_s:
        return None
    grown: Counter[str] = Counter()
    for shape in steps:
        grown.update({op.name: op.seconds for op in split.step_cost(shape).operators})
        grown.subtract({op.name: op.seconds for op in less.step_cost(shape).operators})
    why = [
        f"{name} +{more_s * 1e3:.1f} ms"
        for name, more_s in grown.most_common(MAX_LISTED_OPERATORS)
        if more_s >= MIN_LISTED_S
    ]
    fewer = ranks // 2 if ranks % 2 == 0 else 1
    tokens = sum(shape.num_tokens for shape in steps)
    return (
        f"a prefill of {tokens:,} tokens takes longer with tensor parallelism {ranks} than {fewer} "
        f"({split_s * 1e3:.1f} ms instead of {less_s * 1e3:.1f} ms), because of {', '.join(why)}"
    )
