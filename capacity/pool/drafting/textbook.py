"""Textbook formulas of speculative decoding: tokens per round and speed-up, each with its limits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capacity.base.errors import InvalidInput

LONGEST_DRAFT = 64


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Return the expected tokens, with the bonus token, of a drafting round with k drafts of acceptance rate a.

    This is (1 - a^(k+1)) / (1 - a). It is wrong if acceptance falls with the position (0.92, 0.72, 0.36 for
    DeepSeek-R1's first three drafts) or if a request ends inside a round. Source: Leviathan et al., arXiv 2211.17192,
    equation 1.
    """
    check_rate(acceptance)
    check_drafts(draft_tokens)
    if acceptance == 1.0:
        return draft_tokens + 1.0
    return (1.0 - acceptance ** (draft_tokens + 1)) / (1.0 - acceptance)


def expected_tokens_by_position(acceptance: Sequence[float]) -> float:
    """Return the expected tokens of a drafting round: 1 + a1 + a1·a2 + ... for acceptance rates a1, a2, ...

    `acceptance`: rate of each draft, if all earlier drafts were accepted.
    """
    total = reached = 1.0
    for rate in acceptance:
        check_rate(rate)
        reached *= rate
        total += reached
    return total


def textbook_speedup(acceptance: float, draft_tokens: int, draft_cost: float) -> float:
    """Return the speed-up E(a, k) / (k·c + 1) of Leviathan et al., theorem 3.8.

    E: expected tokens of a round; c: time of a draft step divided by that of a target step. Wrong if verification takes
    longer than a plain step. At large batch (compute-bound) the k + 1 rows of every request cost up to k + 1 times a
    plain step, and an MoE model also loads the additional experts of the drafts. It is also wrong to derive c from
    parameter counts, because launch overhead dominates a small draft: 68M parameters are 1/100 of 7B, while the step
    takes 1/20 of the time or more.
    """
    if not draft_cost >= 0:
        raise InvalidInput(f"draft cost {draft_cost}: must be at least 0 (draft step over target step)")
    return expected_tokens(acceptance, draft_tokens) / (draft_tokens * draft_cost + 1.0)


def acceptance_of_length(tokens_per_round: float, draft_tokens: int) -> float:
    """Return the acceptance rate at which `expected_tokens` returns `tokens_per_round`. Raises InvalidInput."""
    check_drafts(draft_tokens)
    if not 1 <= tokens_per_round <= draft_tokens + 1:
        raise InvalidInput(
            f"an accepted length of {tokens_per_round} with {draft_tokens} drafts: must be from 1 to "
            f"{draft_tokens + 1}"
        )
    return rate_of_tokens(lambda rate: expected_tokens(rate, draft_tokens), tokens_per_round)


def rate_of_tokens(tokens_of: Callable[[float], float], tokens_per_round: float) -> float:
    """Return the acceptance rate at which the increasing function `tokens_of` returns `tokens_per_round`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of(middle) < tokens_per_round else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookEntry:
    """One published number and the textbook formula's value; `explained_by`: why they differ."""

    quantity: str
    acceptance: float
    draft_tokens: int
    published: float
    formula: float
    agrees: bool
    explained_by: str


_PUBLISHED_TOKENS = {
    4: {0.5: 1.94, 0.7: 2.53, 0.8: 3.00, 0.9: 3.69, 0.95: 4.24},
    8: {0.5: 2.00, 0.7: 2.79, 0.8: 3.57, 0.9: 5.70, 0.95: 7.30},
}
_PUBLISHED_SPEEDUPS = {0.5: 1.5, 0.7: 2.0, 0.8: 2.4, 0.9: 2.9, 0.95: 3.4}  # K = 5, c = 0.05

_SHARES = ((0.5, 1), (0.8, 1), (0.8, 4))  # arguments (a, k) of share_speedup


def _variants(acceptance: float, drafts: int) -> dict[str, float]:
    return {
        "exponent K instead of K + 1 (without the bonus token)": expected_tokens(acceptance, drafts - 1),
        "accepted drafts out of K + 1, without the bonus token": acceptance
        * expected_tokens(acceptance, drafts),
        "accepted drafts out of K, without the bonus token": expected_tokens(acceptance, drafts) - 1,
    }


def textbook_table() -> tuple[TextbookEntry, ...]:
    """Compare a published table with the textbook formulas: tokens per round (K = 4, 8), speed-up (K = 5, c = 0.05).

    An entry agrees if the formula's rounded value is the published value. If not, `explained_by` names variants of the
    formula that give the published value, or, without such a variant, the exponent that gives it in place of K + 1.
    With an exponent between K and K + 1 the bonus token is lost in some rounds; below K some drafts add nothing. The
    published speed-ups are all lower than E/(K·c + 1), by 5 to 23 %, as if each verification cost 1.06 to 1.37 plain
    steps. Source of the published numbers: the table quoted in this project's issue on techniques, 2026-11.
    """
    rows = [
        _make_entry("tokens per round", a, k, published, expected_tokens(a, k), _variants(a, k), digits=2)
        for k, by_rate in _PUBLISHED_TOKENS.items()
        for a, published in by_rate.items()
    ]
    for a, published in _PUBLISHED_SPEEDUPS.items():
        verify = expected_tokens(a, 5) / published - 5 * 0.05
        implied = {f"verification takes {verify:.2f} plain steps": published}
        rows.append(_make_entry("speed-up", a, 5, published, textbook_speedup(a, 5, 0.05), implied, digits=1))
    for a, k in _SHARES:
        said = share_speedup(a, k, 0.05)
        takes = "T/(Td·a·K + T·(1 - a·K)) treats a·K drafts as a fraction of the tokens"
        reason = takes + (": the time is negative" if said < 0 else "")
        rows.append(
            _make_entry("by shares", a, k, said, textbook_speedup(a, k, 0.05), {reason: said}, digits=1)
        )
    return tuple(rows)


def share_speedup(acceptance: float, draft_tokens: int, draft_cost: float) -> float:
    """Return the speed-up by a wrong formula of a tutorial: T/(T_d·a·k + T·(1 - a·k)) with T_d = c·T.

    It treats a·k, the number of accepted drafts, as a fraction of the tokens. The computed cost of a round is
    therefore 0 at a·k = 1/(1 - c) and negative above that. The formula also ignores verification and rejected drafts.
    """
    share = check_rate(acceptance) * draft_tokens
    return 1.0 / (draft_cost * share + 1.0 - share)


def _make_entry(
    quantity: str,
    acceptance: float,
    drafts: int,
    published: float,
    formula: float,
    variants: dict[str, float],
    *,
    digits: int,
) -> TextbookEntry:
    tolerance = 0.5 * 10.0**-digits + 1e-9
    agrees = abs(formula - published) <= tolerance
    variant = [name for name, value in variants.items() if abs(value - published) <= tolerance]
    return TextbookEntry(
        quantity=quantity,
        acceptance=acceptance,
        draft_tokens=drafts,
        published=published,
        formula=formula,
        agrees=agrees,
        explained_by=""
        if agrees
        else "; ".join(variant) or _explain_by_exponent(acceptance, drafts, published),
    )


def effective_exponent(acceptance: float, tokens_per_round: float) -> float:
    """Return the exponent n at which (1 - a^n)/(1 - a) is `tokens_per_round`. Raises InvalidInput.

    In the textbook formula, n is K + 1.
    """
    left = 1.0 - tokens_per_round * (1.0 - check_rate(acceptance))
    if not 0 < acceptance < 1 or not 0 < left < 1:
        raise InvalidInput(
            f"{tokens_per_round} tokens per round at an acceptance of {acceptance}: must be between 0 and 1/(1 - "
            "acceptance)"
        )
    return math.log(left) / math.log(acceptance)


def _explain_by_exponent(acceptance: float, drafts: int, published: float) -> str:
    """Return the explanation of a published number that no formula variant gives."""
    exponent = effective_exponent(acceptance, published)
    effective = f"the formula with an exponent of {exponent:.1f} instead of {drafts + 1}"
    if exponent >= drafts:
        share = (published - expected_tokens(acceptance, drafts - 1)) / acceptance**drafts
        return f"{effective}: the bonus token counts in {share:.0%} of the rounds that accept all drafts"
    return f"{effective}: as if {drafts + 1 - exponent:.1f} of {drafts} drafts were missing"


def check_rate(rate: float) -> float:
    """Return `rate` unchanged. Raises InvalidInput if it is not from 0 to 1."""
    if not 0 <= rate <= 1:
        raise InvalidInput(f"acceptance {rate}: must be from 0 to 1")
    return rate


def check_drafts(draft_tokens: int) -> None:
    """Raise InvalidInput for a draft depth above the modelled maximum."""
    if not 0 <= draft_tokens <= LONGEST_DRAFT or math.isnan(draft_tokens):
        raise InvalidInput(f"{draft_tokens} draft tokens: must be from 0 to {LONGEST_DRAFT}")
