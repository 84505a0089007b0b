"""How many experts a step reads, and how full the busiest of the ranks is that share them."""

import math
from statistics import NormalDist

# Fitted to 3,259 decode steps of 1 to 128 rows in a vLLM 0.15 log of gpt-oss-120b (openshift-psap/profilemate,
# 2026-11-21): median error 4 %, against 11 % for an even router; 0.7 to 1.5 do about as well. Shape of a gamma.
ROUTING_EVENNESS = 1.0
# Of routers that training balances by a bias on each expert's score. Chosen on half of the served groups with one
# (InferenceX: DeepSeek-V3 on B200 and H200, Kimi-K2.5 on B200, MiniMax-M2 NVFP4): mean of their median TPOT errors
# 6.8, 5.9, 5.4 % for 1, 2, 4; on the other half 5.8, 5.3, 5.1. 2026-11-22.
BALANCED_ROUTING_EVENNESS = 4.0


def distinct_experts(
    num_experts: float, experts_per_token: float, tokens: float, evenness: float = ROUTING_EVENNESS
) -> float:
    """Expected number of different experts that `tokens` tokens touch, each choosing k out of E.

    Experts are chosen with unequal probabilities, spread as a gamma distribution of shape `evenness`:
    `E(1 - (1 - k/E)(1 + (tokens - 1)k/(E·shape))**-shape)`. One token touches k; an even router (infinite shape)
    `E(1 - (1 - k/E)**tokens)`, which is up to a third more.
    """
    if tokens <= 0:
        return 0.0
    share = min(1.0, experts_per_token / num_experts)
    if tokens <= 1:
        return num_experts * share * tokens
    spread = 1.0 + (tokens - 1.0) * share / evenness
    return num_experts * (1.0 - (1.0 - share) * math.pow(spread, -evenness))


def crowding(ranks: int) -> float:
    """Square of the expected maximum of `ranks` standard normal draws: their quantile at (n - 3/8)/(n + 1/4) (Blom)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) ** 2 if ranks > 1 else 0.0


def busiest_share(total: float, ranks: int, variance: float | None = None) -> float:
    """Load of the busiest of `ranks` that share `total`, whose loads have this variance: the step waits for that rank.

    The mean plus the expected maximum of the ranks' loads, at most all. Without a variance, that of items that fall
    at random (Poisson): the mean.
    """
    if ranks <= 1:
        return total
    mean = total / ranks
    return min(total, mean + math.sqrt(crowding(ranks) * (mean if variance is None else variance)))


def busiest_pairs(
    pairs: float, ranks: int, experts_per_rank: float, evenness: float = ROUTING_EVENNESS
) -> float:
    """Token-expert pairs of the busiest rank: chance, and experts that are more popular than others.

    Popularities are gamma of shape `evenness`, as in `distinct_experts`, so that a rank's count is a negative
    binomial of variance `mean + mean**2 / (experts · shape)`. Taken as normal: 13 % too little with four experts a
    rank.
    """
    mean = pairs / ranks
    return busiest_share(pairs, ranks, mean + mean * mean / (experts_per_rank * evenness))


def busiest_touched(touched: float, ranks: int, experts_per_rank: float) -> float:
    """Experts that the busiest rank reads, each touched or not: a binomial of its `experts_per_rank`."""
    mean = touched / ranks
    busiest = busiest_share(touched, ranks, mean * max(0.0, 1.0 - mean / experts_per_rank))
    return min(busiest, experts_per_rank)
