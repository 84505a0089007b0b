"""A job that may wait: by a provider's batch API, on GPUs rented for it, or in hours that one's own stand idle.

A batch API asks less for answers that may come late; what it sells is its own idle hours. Rented GPUs work at full
load until the job is done; those of one's own, paid for in any case, cost energy alone.
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
GIVEN = "user"  # the provider of a price that was given


class BatchPrice(Spec):
    """A discount for answers that may come late, as a multiple of the usual price."""

    name: str
    provider: str
    multiple: float = Field(ge=0, le=1)
    window_hours: float = Field(gt=0)
    source: str
    date: str
    basis: Literal["datasheet", "measured", "fitted", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApiCost:
    """A job by a batch API, beside GPUs rented for it, which cost `own_usd_per_document`.

    `in_time`: its window ends before the deadline. `break_even_utilization`: the part of their full load from which
    rented GPUs are cheaper; None: not even at all of it.
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
    """The job in the idle hours of GPUs that are paid for anyway: `usd_paid_anyway` of the bill is for them.

    `hours` of work take so many days, of which the last may be a part; `kwh` is all that it adds.
    """

    hours_per_day: float
    hours: float
    days: float
    in_time: bool
    kwh: float
    usd_paid_anyway: float


@lru_cache(maxsize=1)
def batch_prices() -> dict[str, BatchPrice]:
    """All dated discounts that come with the package. Raises MalformedFile."""
    return read_rows(TABLE, BatchPrice)


def find_batch_prices(names: str) -> tuple[BatchPrice, ...]:
    """The discounts of these names, by commas, or `all`. Raises UnknownName."""
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
    """The job at each discount that one of the prices has, the cheapest first: a listed price its own provider's, a
    given one any that is named. Prompt caches are left out: their discount and this one do not always add up.
    `full_ends`: the 90 % interval of what a request takes at full load, over its prediction.

    Raises InvalidInput without a price of any API, and for `all` discounts of a given price.
    """
    if billing.batch_api is None or job is None:
        return ()
    if not apis and billing.api is None:
        raise InvalidInput(
            "--batch-api is a part of an API's price: give --api PROVIDER or all, or --api-input-price and "
            "--api-output-price"
        )
    every = billing.batch_api.strip().lower() == "all"
    if every and apis and all(api.provider == GIVEN for api in apis):
        raise InvalidInput(
            f"--batch-api all of a price that was given: name whose it is ({', '.join(batch_prices())})"
        )
    own = job.usd_per_document
    costs = []
    for discount in find_batch_prices(billing.batch_api):
        for api in apis:
            if api.provider.lower() != discount.provider.lower() and (every or api.provider != GIVEN):
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
    """The job at full load on all replicas in their idle hours of each day; None where these were not given."""
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
