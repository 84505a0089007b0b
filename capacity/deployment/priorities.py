"""Classes of requests by priority, as a user writes them: `0:0.2,1:0.8`."""

from __future__ import annotations

import math

MOST_CLASSES = 100


def priority_shares(text: str) -> dict[int, float]:
    """Each priority and its share of the requests; shares add up to 1. ValueError, in one line, for what is none."""
    shares: dict[int, float] = {}
    for part in text.split(","):
        priority, colon, share = part.partition(":")
        try:
            number, amount = int(priority), float(share)
        except ValueError:
            raise ValueError("must be PRIORITY:SHARE,... such as 0:0.2,1:0.8") from None
        if not colon or number in shares or not 0 < amount < math.inf or abs(number) > 1 << 30:
            raise ValueError(f"{part.strip()!r} is a priority twice, or a share that is not above 0")
        shares[number] = amount
    if len(shares) > MOST_CLASSES:
        raise ValueError(f"at most {MOST_CLASSES} priorities")
    total = sum(shares.values())
    return {number: amount / total for number, amount in sorted(shares.items())}
