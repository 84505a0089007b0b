"""Bill of a load that grows by the same percentage each month, with whole replicas."""

import math
from dataclasses import dataclass

from capacity.answers.records import ReplicasNeeded
from capacity.base.errors import InvalidInput
from capacity.deployment import Billing
from capacity.hardware.pricing import HOURS_PER_MONTH, Price, billed_gpus, usd_per_hour

GROWTH_RULE = (
    "the number of replicas grows with the load, so the load per replica stays at most that of today; "
    "a month has 730 h at today's price"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthMonth:
    """One month of a growing load; month 1 is the load of today."""

    month: int
    requests_per_s: float
    replicas: int
    billed_gpus: int
    usd: float
    total_usd: float


def growth_months(
    price: Price, billing: Billing, needed: ReplicasNeeded | None, gpus_per_replica: int
) -> tuple[GrowthMonth, ...]:
    """Return the bill of each month while the load grows by `billing.growth` percent a month; empty if it is None.

    Replicas of month m: ceil(replicas needed now x (1 + growth)^(m - 1)); see `GROWTH_RULE`. Raises InvalidInput if the
    load has no request rate, or no number of replicas serves it.
    """
    if billing.growth is None:
        return ()
    if needed is None or needed.requests_per_s is None:
        raise InvalidInput("--growth needs a load with a request rate: give --request-rate or a trace")
    now = needed.needed
    if now is None:
        raise InvalidInput(f"--growth: no number of replicas serves the load of today: {needed.reason}")
    months: list[GrowthMonth] = []
    for month in range(1, billing.months + 1):
        factor = (1 + billing.growth / 100) ** (month - 1)
        replicas = max(1, math.ceil(now.replicas * factor - 1e-9))
        gpus = billed_gpus(price, gpus_per_replica * replicas)
        usd = usd_per_hour(price, gpus) * HOURS_PER_MONTH
        months.append(
            GrowthMonth(
                month=month,
                requests_per_s=needed.requests_per_s * factor,
                replicas=replicas,
                billed_gpus=gpus,
                usd=usd,
                total_usd=usd + (months[-1].total_usd if months else 0.0),
            )
        )
    return tuple(months)
