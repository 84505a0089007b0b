"""Cost of a job that can wait, on a batch API, on GPUs rented for the job, or in idle hours of your own GPUs.

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
from capacity.base.spec import Spec
from capacity.deployment import Billing
from capacity.planning.bills.hosted_prices import ApiPrice

if TYPE_CHECKING:
    from capacity.planning.bills.billing import BatchJob, Rates

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
