"""Shortcuts that change what is generated: acceptance by a threshold ("typical"), and leaving a model early.

Rejection sampling accepts a draft with min(1, p/q) and draws the rest anew, so that what comes out is the target's
distribution p whatever the draft's q. A threshold on p alone accepts more, and what comes out leans to q.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.textbook import check_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdAcceptance:
    """One place of a draft: shares accepted by the rule and by rejection sampling, and how far off what comes out is.

    `distance`: total variation from the target, the share of tokens that are other ones; 0 for rejection sampling.
    """

    acceptance_rate: float
    lossless_rate: float
    distance: float


def threshold_acceptance(
    target: Sequence[float], draft: Sequence[float], threshold: float
) -> ThresholdAcceptance:
    """A draft drawn from `draft` is taken where the target's probability of it is `threshold` at least.

    What is refused is drawn from the target. Both are probabilities of the same tokens. Raises InvalidInput.
    """
    check_rate(threshold)
    _check(target, draft)
    accepted = [q if p >= threshold else 0.0 for p, q in zip(target, draft, strict=True)]
    rate = math.fsum(accepted)
    out = [taken + (1.0 - rate) * p for taken, p in zip(accepted, target, strict=True)]
    return ThresholdAcceptance(
        acceptance_rate=rate,
        lossless_rate=math.fsum(map(min, target, draft)),
        distance=math.fsum(abs(there - p) for there, p in zip(out, target, strict=True)) / 2,
    )


def early_exit_share(layers_share: float, exit_rate: float, batch_size: int) -> float:
    """Mean share of the layers that a step runs where each row may leave after `layers_share` with `exit_rate`.

    A batch runs on while any of its rows does: s·e^B + 1 - e^B. Speed-up is at most its inverse, which CALM
    (arXiv 2207.07061: up to 3 times, T5) measures at batch 1. Layers below still owe KV of rows that left: left out.
    """
    check_rate(layers_share)
    check_rate(exit_rate)
    if batch_size < 1:
        raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
    together: float = exit_rate**batch_size
    return layers_share * together + 1.0 - together


def _check(target: Sequence[float], draft: Sequence[float]) -> None:
    if len(target) != len(draft):
        raise InvalidInput(f"{len(target)} probabilities of the target, {len(draft)} of the draft: as many")
    for name, values in (("target", target), ("draft", draft)):
        if min(values, default=0.0) < 0 or not math.isclose(math.fsum(values), 1.0, abs_tol=1e-6):
            raise InvalidInput(f"the {name}'s probabilities {list(values)}: from 0 on, 1 together")
