"""A job that may wait: by a provider's batch API, on GPUs rented for it, or in hours that one's own stand idle.

A batch API asks less for answers that may come late; what it sells is its own idle hours. Rented GPUs work at full
load until the job is done; those of one's own, paid for in any case, cost energy alone.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from capacity.answers.records import Quantity
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.spec import Spec
from capacity.planning.bills.hosted_prices import ApiPrice

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
    try:
        tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        return {name: BatchPrice(name=name, **fields) for name, fields in tables.items()}
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise MalformedFile(TABLE, f"cannot be read: {error}") from None


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
    names: str,
    apis: Sequence[ApiPrice],
    *,
    documents: int,
    lengths: tuple[float, float],
    deadline_hours: float,
    own_usd_per_document: Quantity,
) -> tuple[BatchApiCost, ...]:
    """The job at each discount that one of the prices has, the cheapest first: a listed price its own provider's, a
    given one any that is named. Prompt caches are left out: their discount and this one do not always add up.

    Raises InvalidInput for `all` discounts of a given price.
    """
    discounts = find_batch_prices(names)
    given = [api for api in apis if api.provider == GIVEN]
    if given and names.strip().lower() == "all" and len(given) == len(apis):
        raise InvalidInput(
            f"--batch-api all of a price that was given: name whose it is ({', '.join(batch_prices())})"
        )
    return tuple(
        sorted(
            (
                _cost(api, discount, documents, lengths, deadline_hours, own_usd_per_document)
                for discount in discounts
                for api in apis
                if api.provider.lower() == discount.provider.lower()
                or (api.provider == GIVEN and names.strip().lower() != "all")
            ),
            key=lambda cost: cost.usd,
        )
    )


def _cost(
    api: ApiPrice,
    discount: BatchPrice,
    documents: int,
    lengths: tuple[float, float],
    deadline_hours: float,
    own: Quantity,
) -> BatchApiCost:
    each = api.usd_per_request(*lengths, 0.0) * discount.multiple
    return BatchApiCost(
        api=api.described,
        discount=discount.name,
        discount_source=f"{discount.date} ({discount.source})",
        multiple=discount.multiple,
        window_hours=discount.window_hours,
        in_time=discount.window_hours <= deadline_hours,
        usd=each * documents,
        usd_per_document=each,
        own_usd_per_document=own,
        break_even_utilization=own.value / each if own.value <= each else None,
    )


def idle_job(
    hours_per_day: float, *, busy_hours: float, deadline_hours: float, watts: float, usd_per_hour: float
) -> IdleJob:
    """A job of `busy_hours` at full load on all replicas, in so many hours of each day."""
    full_days = math.ceil(busy_hours / hours_per_day - 1e-9) - 1
    days = full_days + (busy_hours - full_days * hours_per_day) / 24
    return IdleJob(
        hours_per_day=hours_per_day,
        hours=busy_hours,
        days=days,
        in_time=days * 24 <= deadline_hours,
        kwh=watts * busy_hours / 1e3,
        usd_paid_anyway=usd_per_hour * busy_hours,
    )
