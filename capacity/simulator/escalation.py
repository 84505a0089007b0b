"""Random choice of the requests that go on to the next pool of a cascade, or that a semantic cache answers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.base.clock import check_time
from capacity.base.errors import InvalidInput
from capacity.workload.columns import IntArray

ESCALATION_STREAM = 101  # random stream, in addition to the workload's
CACHE_DRAW = 1 << 10  # larger than any pool number


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """Rates of a cascade: `rates[k]` is the fraction of pool `k`'s requests that go on; the last pool has no rate.

    With `by_answer`, a judge decides after each answer; otherwise the decision is made before the answer. A decision
    takes `judge_s`. A semantic cache answers the fraction `cache_hit_rate` of all requests; its lookup takes
    `lookup_s` for every request.
    """

    rates: tuple[float, ...]
    by_answer: bool = True
    judge_s: float = 0.0
    cache_hit_rate: float = 0.0
    lookup_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.rates:
            raise InvalidInput("a cascade needs at least 2 pools and at least 1 escalation rate")
        for share in (*self.rates, self.cache_hit_rate):
            if not 0 <= share <= 1:
                raise InvalidInput(f"escalation and cache hit rates must be from 0 to 1, not {share}")
        check_time("time of a cascade decision", self.judge_s)
        check_time("time of a cache lookup", self.lookup_s)

    def final_pools(self, count: int, seed: int) -> IntArray:
        """Return the index of the pool that answers each request (-1: cache). Rates are rounded to whole requests."""
        missed = np.ones(count, dtype=np.bool_)
        missed[_draw_share(missed, self.cache_hit_rate, seed, CACHE_DRAW)] = False
        steps = missed.astype(np.int64) - 1
        for pool, rate in enumerate(self.rates):
            steps[_draw_share(steps == pool, rate, seed, pool)] += 1
        return steps


def _draw_share(among: npt.NDArray[np.bool_], share: float, seed: int, draw: int) -> IntArray:
    """Draw the fraction `share` of the requests in `among`; with the same seed, a lower share draws a subset."""
    stream = np.random.SeedSequence(seed, spawn_key=(ESCALATION_STREAM, draw))
    order = np.random.default_rng(stream).permutation(len(among))
    candidates: IntArray = order[among[order]]
    return candidates[: round(share * len(candidates))]
