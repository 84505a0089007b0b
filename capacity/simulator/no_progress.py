"""Runs that would go on for ever: what happens again and again while no request ends."""

from __future__ import annotations

from capacity.step import PS_PER_S

# Of each, while no request ends. A request that survives one life of a replica in a hundred is still answered:
# a thousand lives in vain have then a chance of 4e-5. The others cost time and memory, and nobody waits for them.
LOSSES_IN_VAIN = 1_000
IDLE_LOSSES_IN_VAIN = 100_000
DECISIONS_IN_VAIN = 1_000_000
MOST_SAMPLES = 1_000_000


class NoProgress(Exception):
    """The run would go on for ever and answer nobody; why, in one line."""


class InVain:
    """Counts what happens again and again, from one request's end to the next."""

    def __init__(self) -> None:
        self.counts: dict[
            str, tuple[int, int]
        ] = {}  # how often each thing has happened, and first at which instant

    def request_ended(self) -> None:
        """Whatever happened was not in vain."""
        if self.counts:
            self.counts = {}

    def again(self, what: str, most: int, now_ps: int, remedy: str) -> None:
        """It has happened once more; raises NoProgress beyond `most` times without a request's end."""
        count, since_ps = self.counts.get(what, (0, now_ps))
        if count >= most:
            raise NoProgress(
                f"{what} {count:,} times from {since_ps / PS_PER_S:,.3f} s to {now_ps / PS_PER_S:,.3f} s, and no "
                f"request has ended meanwhile: {remedy}"
            )
        self.counts[what] = count + 1, since_ps

    def replica_lost(self, *, with_requests: bool, now_ps: int) -> None:
        """A replica is lost; raises NoProgress where that is all that happens."""
        if with_requests:
            remedy = "replicas must live longer than a request takes, or its requests fail and not restart"
            self.again("replicas were lost with their requests", LOSSES_IN_VAIN, now_ps, remedy)
        else:
            remedy = "the mean time between failures is too short beside the time between requests"
            self.again("idle replicas were lost", IDLE_LOSSES_IN_VAIN, now_ps, remedy)
