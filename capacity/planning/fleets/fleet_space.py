"""What a fleet may be: where requests are told apart by length, by which GPUs, and what stands in reserve."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec
from capacity.deployment.field_flags import Need, flag
from capacity.planning.space import Names, as_list

MOST_IN_RESERVE = 512


def _rising(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(tokens)))


Thresholds = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1 << 40)], ...], BeforeValidator(as_list), AfterValidator(_rising)
]


class Split(Spec):
    """How `fleet` may split the traffic over pools, and what it keeps in reserve."""

    split_by: Literal["prompt", "request"] = flag(
        "prompt",
        "Requests are told apart by the tokens of their prompt, or of prompt and asked output (request).",
    )
    split_at: Thresholds = flag(
        (), "Thresholds to try, in tokens, as 1024,4096; default: by the traffic's own lengths."
    )
    max_pools: int = flag(
        2,
        "Most pools: with 3, every pair of thresholds as well, exactly (more than 2 take longer).",
        ge=1,
        le=8,
    )
    slo_of: Literal["fleet", "pool"] = flag(
        "fleet", "Who keeps the service levels: all requests together (fleet), or those of each pool (pool)."
    )
    short_gpus: Names = flag((), "GPUs of the pool for the shortest requests; default: --gpus.")
    long_gpus: Names = flag((), "GPUs of the pool for the longest requests; default: --gpus.")
    spare_replicas: int = flag(
        0, "Replicas of each pool beyond those that the load needs (N+k).", ge=0, le=4096
    )
    availability: float | None = flag(
        None,
        "So much of the time each pool has the replicas that its load needs, as 0.999; more are kept in reserve.",
        gt=0,
        lt=1,
        needs=Need("mean_time_between_failures_s"),
    )
    mean_time_between_failures_s: float | None = flag(
        None,
        "A replica is lost after so many seconds, on average.",
        "--mtbf",
        gt=0,
        needs=Need("availability"),
    )
    recovery_s: float | None = flag(
        None,
        "Seconds until a new replica is in place of a lost one.",
        "--recovery",
        ge=0,
        needs=Need("mean_time_between_failures_s"),
    )
    peak_to_mean: float | None = flag(
        None,
        "The traffic is a day's peak, so many times its mean: asks for the bill of a fleet that follows the day.",
        ge=1,
        le=2,
    )

    @property
    def replica_availability(self) -> float | None:
        """The share of time in which one replica is there; None where nobody says. Raises InvalidInput."""
        if self.mean_time_between_failures_s is None:
            if self.availability is not None:
                raise InvalidInput(
                    "--availability needs --mtbf and --recovery: how often and how long a replica is gone"
                )
            return None
        if self.recovery_s is None:
            raise InvalidInput("--mtbf needs --recovery: how long until a replica is replaced?")
        return self.mean_time_between_failures_s / (self.mean_time_between_failures_s + self.recovery_s)

    def with_reserve(self, needed: int) -> int:
        """The replicas of a pool whose load needs so many: with the spare ones, and more until enough are up as often
        as `availability` asks for.

        Failures are taken as independent: a rack or a zone that goes down at once is not in it. Raises InvalidInput.
        """
        replicas, up = needed + self.spare_replicas, self.replica_availability
        if self.availability is None or up is None:
            return replicas
        while enough_up(replicas, needed, up) < self.availability:
            replicas += 1
            if replicas > needed + MOST_IN_RESERVE:
                raise InvalidInput(
                    f"no reserve of {MOST_IN_RESERVE:,} replicas keeps {needed} up with a probability of "
                    f"{self.availability:g} where each is there {up:.2%} of the time"
                )
        return replicas


def enough_up(replicas: int, needed: int, availability: float) -> float:
    """The probability that at least `needed` of `replicas` are there, each by itself for `availability` of the time."""
    if availability >= 1:
        return 1.0
    up, down = math.log(availability), math.log1p(-availability)
    return math.fsum(
        math.exp(math.log(math.comb(replicas, lost)) + lost * down + (replicas - lost) * up)
        for lost in range(replicas - needed + 1)
    )
