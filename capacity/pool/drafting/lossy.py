"""Lossy methods: threshold ("typical") acceptance and early exit, which change the generated text.

Rejection sampling accepts a draft with probability min(1, p/q) and resamples rejected drafts, so the output follows
the target's distribution p for any draft distribution q. A threshold on p alone accepts more drafts but biases the
output towards q.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.textbook import check_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdAcceptance:
    """Acceptance at one draft position: the rates of threshold and rejection sampling, and the error of the output.

    `distance`: total variation distance from the target's distribution, which is the fraction of tokens that differ;
    it would be 0 with rejection sampling.
    """

    acceptance_rate: float
    lossless_rate: float
    distance: float


def threshold_acceptance(
    target: Sequence[float], draft: Sequence[float], threshold: float
) -> ThresholdAcceptance:
    """Return the acceptance of a method that accepts each draft with a target probability of at least `threshold`.

    Rejected drafts are replaced by samples from the target. `target` and `draft` are probabilities of the same tokens.
    Raises InvalidInput.
    """
    check_rate(threshold)
    _check_probabilities(target, draft)
    accepted = [q if p >= threshold else 0.0 for p, q in zip(target, draft, strict=True)]
    rate = math.fsum(accepted)
    out = [taken + (1.0 - rate) * p for taken, p in zip(accepted, target, strict=True)]
    return ThresholdAcceptance(
        acceptance_rate=rate,
        lossless_rate=math.fsum(map(min, target, draft)),
        distance=math.fsum(abs(there - p) for there, p in zip(out, target, strict=True)) / 2,
    )


def early_exit_share(layers_share: float, exit_rate: float, batch_size: int) -> float:
    """Return the mean fraction of layers that a step runs with early exit.

    Each request may exit after the fraction s = `layers_share` of the layers, with probability e = `exit_rate`. The
    step exits early only if all its B requests do, so the result is s·e^B + 1 - e^B. The speed-up is at most the
    inverse; CALM (arXiv 2207.07061) measures up to 3 times with T5 at batch 1. The KV of the skipped layers, which
    later tokens need, is not modelled.
    """
    check_rate(layers_share)
    check_rate(exit_rate)
    if batch_size < 1:
        raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
    together: float = exit_rate**batch_size
    return layers_share * together + 1.0 - together


def _check_probabilities(target: Sequence[float], draft: Sequence[float]) -> None:
    if len(target) != len(draft):
        raise InvalidInput(
            f"{len(target)} probabilities of the target, {len(draft)} of the draft: must be the same number"
        )
    for name, values in (("target", target), ("draft", draft)):
        if min(values, default=0.0) < 0 or not math.isclose(math.fsum(values), 1.0, abs_tol=1e-6):
            raise InvalidInput(f"the {name}'s probabilities {list(values)}: must be at least 0 and sum to 1")
