"""Cost of a job that can wait, on a batch API, on GPUs rented for the job, or in idle hours of your own GPUs; and the
cost of GPUs that may be interrupted.

A batch API is cheaper because its answers may arrive hours later, so the provider can use idle GPUs. Rented GPUs run at
full load until the job is done. Your own GPUs are already paid for, so the job adds only energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from capacity.answers.records import Quantity
from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.record import make_from
from capacity.base.spec import Spec
from capacity.deployment import Billing
from capacity.hardware.pricing import SECONDS_PER_HOUR, Price, billed_gpus, usd_per_hour
from capacity.planning.bills.hosted_prices import ApiPrice

if TYPE_CHECKING:
    from capacity.planning.bills.billing import Rates

TABLE = Path(__file__).with_name("batch_prices.toml")
USER_PROVIDER = "user"  # provider of a price given by the user


class BatchPrice(Spec):
    """Batch discount: a request costs `multiple` times the regular price and is answered within `window_hours`
    hours."""

    name: str
    provider: str
    multiple: float = Field(ge=0, le=1)
    window_hours: float = Field(gt=0)
    source: str
    date: str
    basis: Literal["datasheet", "measured", "fitted", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCost:
    """Cost of interruptible capacity; a replica serves requests during `useful_fraction` of the paid hours."""

    useful_fraction: float
    usd_per_useful_hour: float
    replicas_for_same_capacity: int
    usd_per_hour_for_same_capacity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """Batch job at full load: the fewest replicas that meet the deadline, and their bill in whole instances."""

    documents: int
    deadline_hours: float
    replicas: int
    gpus: int
    billed_gpus: int
    hours: float
    gpu_hours: float
    usd: float
    usd_per_document: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApiCost:
    """Cost of a batch job on a provider's batch API, and on GPUs rented for the job (`own_usd_per_document`).

    `in_time`: the API's completion window is at most the deadline. `break_even_utilization`: fraction of full load
    above which rented GPUs are cheaper than the API; None if they are more expensive even at full load.
    """

    api: str
    discount: str
    discount_source: str
    multiple: float
    window_hours: float
    in_time: bool
    usd: float
    usd_per_document: float
    own_usd_per_document: Quantity
    break_even_utilization: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """Job in the daily idle hours of GPUs that are already paid for.

    The work takes `hours` of GPU time, spread over `days` (the last day may be partial). `usd_paid_anyway` is the rent
    of these hours, which is due with or without the job; the only extra cost is the energy, `kwh`.
    """

    hours_per_day: float
    hours: float
    days: float
    in_time: bool
    kwh: float
    usd_paid_anyway: float


@lru_cache(maxsize=1)
def batch_prices() -> dict[str, BatchPrice]:
    """Return all batch discounts in the package's price list, by name; each has a date. Raises MalformedFile."""
    return read_rows(TABLE, BatchPrice)


def find_batch_prices(names: str) -> tuple[BatchPrice, ...]:
    """Return the batch discounts with these comma-separated names, or all for `all`. Raises UnknownName."""
    known = batch_prices()
    if names.strip().lower() == "all":
        return tuple(known.values())
    wanted = [name.strip().lower() for name in names.split(",")]
    if unknown := next((name for name in wanted if name not in known), None):
        raise UnknownName("batch discount", unknown, known)
    return tuple(known[name] for name in wanted)


def batch_api_costs(
    billing: Billing,
    job: BatchJob | None,
    apis: Sequence[ApiPrice],
    full: Rates,
    full_ends: tuple[float, float],
) -> tuple[BatchApiCost, ...]:
    """Return the cost of the job for each pair of an API price and a discount that applies to it, the cheapest first.

    A price from the price list gets only the discounts of its provider; a price given by flags gets every discount that
    the user names. Prompt-cache discounts are ignored because a provider may not combine them with the batch discount.
    `full_ends`: lower and upper end of the 90 % interval of measured / predicted request time at full load.

    Raises InvalidInput if there is no API price, and for `all` discounts if the only API price is given by flags.
    """
    if billing.batch_api is None or job is None:
        return ()
    if not apis and billing.api is None:
        raise InvalidInput(
            "--batch-api needs an API price: give --api, or --api-input-price and --api-output-price"
        )
    every = billing.batch_api.strip().lower() == "all"
    if every and apis and all(api.provider == USER_PROVIDER for api in apis):
        raise InvalidInput(
            f"--batch-api all needs --api: add it, or name one discount ({', '.join(batch_prices())})"
        )
    own = job.usd_per_document
    costs = []
    for discount in find_batch_prices(billing.batch_api):
        for api in apis:
            if api.provider.lower() != discount.provider.lower() and (every or api.provider != USER_PROVIDER):
                continue
            each = api.usd_per_request(full.input_tokens, full.output_tokens, 0.0) * discount.multiple
            costs.append(
                BatchApiCost(
                    api=api.described,
                    discount=discount.name,
                    discount_source=f"{discount.date} ({discount.source})",
                    multiple=discount.multiple,
                    window_hours=discount.window_hours,
                    in_time=discount.window_hours <= job.deadline_hours,
                    usd=each * job.documents,
                    usd_per_document=each,
                    own_usd_per_document=Quantity(value=own, low=own * full_ends[0], high=own * full_ends[1]),
                    break_even_utilization=own / each if own <= each else None,
                )
            )
    return tuple(sorted(costs, key=lambda cost: cost.usd))


def idle_job(billing: Billing, full: Rates, *, watts: float, usd_per_hour: float) -> IdleJob | None:
    """Return the time and energy of the batch job in idle hours of the replicas; None if no job or no idle hours are
    given."""
    if billing.idle_hours_per_day is None or billing.documents is None or billing.deadline_hours is None:
        return None
    hours_per_day, hours = billing.idle_hours_per_day, billing.documents / full.requests_per_s / 3600
    full_days = math.ceil(hours / hours_per_day - 1e-9) - 1
    days = full_days + (hours - full_days * hours_per_day) / 24
    return IdleJob(
        hours_per_day=hours_per_day,
        hours=hours,
        days=days,
        in_time=days * 24 <= billing.deadline_hours,
        kwh=watts * hours / 1e3,
        usd_paid_anyway=usd_per_hour * hours,
    )


def spot_cost(price: Price, billing: Billing, gpus_per_replica: int) -> SpotCost | None:
    """Return the cost of replicas that restart after each interruption; None if no interruptions are given.

    The useful fraction is 1 / (1 + interruptions per hour x restart hours).
    """
    if billing.interruptions_per_hour is None:
        return None
    useful = 1 / (1 + billing.interruptions_per_hour * billing.restart_s / SECONDS_PER_HOUR)
    replicas = math.ceil(billing.replicas / useful - 1e-9)
    hourly = usd_per_hour(price, billed_gpus(price, gpus_per_replica * billing.replicas))
    return SpotCost(
        useful_fraction=useful,
        usd_per_useful_hour=hourly / useful,
        replicas_for_same_capacity=replicas,
        usd_per_hour_for_same_capacity=usd_per_hour(price, billed_gpus(price, gpus_per_replica * replicas)),
    )


def batch_job(price: Price, billing: Billing, gpus_per_replica: int, full: Rates) -> BatchJob | None:
    """Return the batch job with the fewest replicas that finish `documents` by the deadline; None if no job is given.

    All replicas run at full load. Interruptions, if given, lengthen the job. The bill covers the hours of the job.
    """
    if billing.documents is None and billing.deadline_hours is None:
        return None
    if billing.documents is None or billing.deadline_hours is None:
        raise InvalidInput("a batch job needs both --documents and --deadline-hours")
    spot = spot_cost(price, billing, gpus_per_replica)
    useful = 1.0 if spot is None else spot.useful_fraction
    each_per_hour = full.requests_per_s / billing.replicas * SECONDS_PER_HOUR * useful
    replicas = max(1, math.ceil(billing.documents / each_per_hour / billing.deadline_hours - 1e-9))
    hours = billing.documents / (each_per_hour * replicas)
    gpus = gpus_per_replica * replicas
    billed = billed_gpus(price, gpus)
    usd = usd_per_hour(price, billed) * hours
    return make_from(
        BatchJob,
        billing,
        replicas=replicas,
        gpus=gpus,
        billed_gpus=billed,
        hours=hours,
        gpu_hours=gpus * hours,
        usd=usd,
        usd_per_document=usd / billing.documents,
    )
