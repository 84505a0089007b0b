"""Search space of a fleet: split of requests by length, GPUs of each pool, and spare replicas."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from capacity.base.errors import InvalidInput
from capacity.deployment.field_flags import FlagSpec
from capacity.planning.space import Names, as_list

MAX_SPARE_REPLICAS = 512


Thresholds = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1 << 40)], ...],
    BeforeValidator(as_list),
    AfterValidator(lambda tokens: tuple(sorted(set(tokens)))),
]


class Split(FlagSpec):
    """Settings of `fleet`: the split of the traffic over pools, and spare replicas."""

    split_by: Literal["prompt", "request"] = "prompt"
    split_at: Thresholds = ()
    max_pools: int = 2
    slo_of: Literal["fleet", "pool"] = "fleet"
    short_gpus: Names = ()
    long_gpus: Names = ()
    spare_replicas: int = 0
    availability: float | None = None
    mean_time_between_failures_s: float | None = None
    recovery_s: float | None = None
    peak_to_mean: float | None = None

    @property
    def replica_availability(self) -> float | None:
        """Return the fraction of time that a replica is up; None if not given. Raises InvalidInput."""
        if self.mean_time_between_failures_s is None:
            if self.availability is not None:
                raise InvalidInput("--availability needs --mtbf and --recovery: add both")
            return None
        if self.recovery_s is None:
            raise InvalidInput("--mtbf needs --recovery, the time until a lost replica is replaced")
        return self.mean_time_between_failures_s / (self.mean_time_between_failures_s + self.recovery_s)

    def with_reserve(self, needed: int) -> int:
        """Return the `needed` replicas of a pool plus `spare_replicas`, plus as many as `availability` requires.

        With `availability`, `needed` replicas must be up with that probability. Failures are assumed to be
        independent; the failure of a whole rack or zone is not modelled. Raises InvalidInput.
        """
        replicas, up = needed + self.spare_replicas, self.replica_availability
        if self.availability is None or up is None:
            return replicas
        while availability_of_pool(replicas, needed, up) < self.availability:
            replicas += 1
            if replicas > needed + MAX_SPARE_REPLICAS:
                raise InvalidInput(
                    f"--availability {self.availability:g} for {needed} needed replicas takes more spare replicas than "
                    f"{MAX_SPARE_REPLICAS:,}, because each is up only {up:.2%} of the time: give a lower --availability"
                )
        return replicas


def availability_of_pool(replicas: int, needed: int, availability: float) -> float:
    """Return the probability that at least `needed` of `replicas` are up, each independently with `availability`."""
    from scipy.special import bdtr

    return float(bdtr(replicas - needed, replicas, 1 - availability))
