"""Notes on GPUs that are predicted to be slower than a GPU with a worse datasheet. This happens because the two
profiles were fitted on different machines, which can differ more than the GPUs do."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from capacity.pool.resolve import ResolvedPool

SLOWER = 1.005  # smaller ratios count as equal
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoad:
    """The latencies (s) of a load on a pool of equal engines, by metric name; None for a metric without a value."""

    resolved: ResolvedPool
    seconds: dict[str, float | None]

    @property
    def settings_except_gpu(self) -> tuple[object, ...]:
        return self.resolved.model.name, self.resolved.pool.model_copy(update={"gpu": ""})


def datasheet_notes(sides: Sequence[TimedLoad]) -> tuple[str, ...]:
    """Return a note for each GPU that is predicted to be slower than another GPU although its datasheet is at least as
    good in every number. Only pools whose other settings are equal are compared. The largest differences come first."""
    found: dict[str, tuple[float, str]] = {}
    for better, less in permutations(sides, 2):
        own, other = better.resolved.profile, less.resolved.profile
        if better.settings_except_gpu != less.settings_except_gpu or not own.is_at_least_as_fast(other):
            continue
        if own.adjustment is not None or other.adjustment is not None:
            continue  # a calibrated machine: its difference is measured
        for name in sorted(better.seconds):
            before, after = less.seconds.get(name), better.seconds[name]
            if before and after and (ratio := after / before) > SLOWER:
                text = (
                    f"{own.name} has a {ratio - 1:.1%} longer {name} than {other.name}, although its "
                    "datasheet is at least as good in every figure. The two profiles were fitted on different "
                    "machines; treat them as equal here."
                )
                found[own.name] = max(found.get(own.name, (0.0, "")), (ratio, text))
    return tuple(text for _, text in sorted(found.values(), reverse=True)[:NAMED])
