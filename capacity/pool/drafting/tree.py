"""Trees of drafts: which candidates are worth verifying together, and how many of them are accepted.

A node is a draft after those on its path; its siblings are other candidates for the same place, of which the target
takes at most one. So a round yields one token and, for each depth, the chance that one of its nodes is on the
target's path: the sum of the nodes' path probabilities. The best tree of n nodes therefore is the n most probable
paths, which a parent, being as probable as any child, always joins first.
Source: Chen et al., Sequoia, arXiv 2402.12374, positional acceptance; EAGLE-2, arXiv 2406.16858, picks by it too.
"""

import heapq
import math
from functools import lru_cache

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.textbook import rate_of_tokens

REJECTION_EXPONENT = 0.5
# Of m candidates for one place all are wrong with (1 - a)·m^-b: the power law is Sequoia's (figure of its section
# 3.2), b = 0.5 is assumed, 2026-11. EAGLE's ablation on Vicuna and Llama-2 (arXiv 2401.15077, chain and tree of 25
# nodes, quoted from memory) gives 0.43 to 0.58; at 0.5 it is met within 3 %.
MOST_NODES = 4096


def candidate_rate(first: float, rank: int, *, exponent: float = REJECTION_EXPONENT) -> float:
    """Chance that the `rank`-th best candidate (from 1) is the target's choice, the first being right with `first`.

    None is more likely than the first, which bounds the power law where `first` is below 0.23.
    """
    if rank < 1 or not 0 <= first <= 1:
        raise InvalidInput(f"candidate {rank} at a first rate of {first}: at least 1, and from 0 to 1")
    if rank == 1:
        return first
    gained = math.pow(rank - 1, -exponent) - math.pow(rank, -exponent)
    return min(first, (1.0 - first) * gained)


@lru_cache(maxsize=4096)
def depth_reach(
    first_rates: tuple[float, ...], nodes: int, *, exponent: float = REJECTION_EXPONENT
) -> tuple[float, ...]:
    """Chance that a round accepts a draft at each depth, for the best tree of `nodes` nodes, as deep as `first_rates`.

    `first_rates`: chance of the first candidate at each depth, given what is before it. A tree of as many nodes as
    depths may be wide rather than deep: that is then the better one. Raises InvalidInput.
    """
    if not 0 <= nodes <= MOST_NODES:
        raise InvalidInput(f"a tree of {nodes} drafts: must be from 0 to {MOST_NODES}")
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
    """Acceptance by depth, given the depth before: what a simulator draws from, and a chain's rates for a tree."""
    rates, reached = [], 1.0
    for reach in depth_reach(first_rates, nodes, exponent=exponent):
        rates.append(min(1.0, reach / reached) if reached > 0 else 0.0)
        reached = reach
    return tuple(rates)


@lru_cache(maxsize=256)
def first_rate_of_length(
    tokens_per_round: float, depth: int, nodes: int, *, exponent: float = REJECTION_EXPONENT
) -> float:
    """The first candidate's rate, equal at all depths, at which the best tree yields `tokens_per_round`.

    Raises InvalidInput for a length below 1 or above depth + 1.
    """
    if not 1 <= tokens_per_round <= depth + 1:
        raise InvalidInput(
            f"an accepted length of {tokens_per_round} from a tree {depth} deep: must be from 1 to {depth + 1}"
        )
    return rate_of_tokens(
        lambda rate: 1 + sum(depth_reach((rate,) * depth, nodes, exponent=exponent)), tokens_per_round
    )
