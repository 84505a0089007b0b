"""Draft trees: which candidates to verify together, and the expected number of accepted drafts.

A node is a draft that follows the drafts on its path. Its siblings are other candidates for the same position, and the
target accepts at most one of them. The expected tokens of a drafting round are therefore one plus the sum, over all
nodes, of the probability that the target accepts the whole path to the node. The best tree of n nodes
consists of the n most probable paths; a parent is at least as probable as its children, so it is always included
before them.

Source: Chen et al., Sequoia, arXiv 2402.12374, positional acceptance; EAGLE-2, arXiv 2406.16858, selects the same way.
"""

import heapq
import math
from functools import lru_cache

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.textbook import rate_of_tokens

REJECTION_EXPONENT = 0.5
# All m candidates for a position are wrong with probability (1 - a)·m^-b. The power law is Sequoia's (figure in section
# 3.2); b = 0.5 is assumed, 2026-11. EAGLE's ablation on Vicuna and Llama-2 (arXiv 2401.15077, chain and tree of 25
# nodes, quoted from memory) gives b = 0.43 to 0.58; b = 0.5 reproduces it within 3 %.
MAX_NODES = 4096


def candidate_rate(first: float, rank: int, *, exponent: float = REJECTION_EXPONENT) -> float:
    """Return the probability that the target accepts the candidate of this `rank` (1: the best).

    `first`: probability of the best candidate. The probability of later candidates is a power of their rank, at most
    `first`; this limit applies only if `first` is below 0.23.
    """
    if rank < 1 or not 0 <= first <= 1:
        raise InvalidInput(
            f"draft candidate {rank}, where the best candidate has the acceptance rate {first}: candidates are "
            "numbered from 1 (the best), and the rate must be from 0 to 1"
        )
    if rank == 1:
        return first
    gained = math.pow(rank - 1, -exponent) - math.pow(rank, -exponent)
    return min(first, (1.0 - first) * gained)


@lru_cache(maxsize=4096)
def depth_reach(
    first_rates: tuple[float, ...], nodes: int, *, exponent: float = REJECTION_EXPONENT
) -> tuple[float, ...]:
    """Return, for each depth, the probability that a draft is accepted in a round with the best tree of `nodes` nodes.

    `first_rates`: for each depth up to the maximum, the acceptance rate of the first candidate if its parent was
    accepted. A tree with as many nodes as depths may be wider than a chain if that is better. Raises InvalidInput.
    """
    if not 0 <= nodes <= MAX_NODES:
        raise InvalidInput(f"a tree of {nodes} drafts: must be from 0 to {MAX_NODES}")
    reach = [0.0] * len(first_rates)
    if not first_rates:
        return ()
    best = [(-candidate_rate(first_rates[0], 1), 1.0, 0, 1)]
    for _ in range(nodes):
        negative, parent, depth, rank = heapq.heappop(best)
        reach[depth] -= negative
        sibling = parent * candidate_rate(first_rates[depth], rank + 1, exponent=exponent)
        heapq.heappush(best, (-sibling, parent, depth, rank + 1))
        if depth + 1 < len(first_rates):
            child = -negative * candidate_rate(first_rates[depth + 1], 1)
            heapq.heappush(best, (-child, -negative, depth + 1, 1))
    return tuple(reach)


def tree_rates(
    first_rates: tuple[float, ...], nodes: int, *, exponent: float = REJECTION_EXPONENT
) -> tuple[float, ...]:
    """Return, for each depth, the acceptance rate if a draft was accepted at the previous depth, for the simulator."""
    rates, reached = [], 1.0
    for reach in depth_reach(first_rates, nodes, exponent=exponent):
        rates.append(min(1.0, reach / reached) if reached > 0 else 0.0)
        reached = reach
    return tuple(rates)


@lru_cache(maxsize=256)
def first_rate_of_length(
    tokens_per_round: float, depth: int, nodes: int, *, exponent: float = REJECTION_EXPONENT
) -> float:
    """Return the first candidate's acceptance rate at which the best tree yields `tokens_per_round`.

    Raises InvalidInput unless `tokens_per_round` is from 1 to depth + 1.
    """
    if not 1 <= tokens_per_round <= depth + 1:
        raise InvalidInput(
            f"an accepted length of {tokens_per_round} from a tree of depth {depth}: must be from 1 to {depth + 1}"
        )
    return rate_of_tokens(
        lambda rate: 1 + sum(depth_reach((rate,) * depth, nodes, exponent=exponent)), tokens_per_round
    )
