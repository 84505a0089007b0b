"""Bill of a deployment at the served load and at full load, and comparisons with APIs, spot capacity and batch jobs.

All values follow from a price, a request rate and request lengths. Whole instances are billed, idle or not; a month has
730 hours. Input and output tokens share the bill in proportion to the GPU time of prefill and decode
(`cost_estimate.TOKEN_PRICE_RULE`). Power and energy are provisioned: each GPU counts at full power plus host and
cooling, idle or not. Fields named `drawn` hold the power that the GPUs are predicted to draw at the load instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from capacity.answers.costs import ServedLoad
from capacity.answers.drawn_energy import JOULES_PER_KWH, DrawnEnergy
from capacity.answers.records import ReplicasNeeded
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Billing, Cost
from capacity.hardware.cost_estimate import MILLION, TOKEN_PRICE_RULE, unit_costs
from capacity.hardware.pricing import (
    HOURS_PER_MONTH,
    SECONDS_PER_HOUR,
    Price,
    billed_gpus,
    find_price_for_cost,
    usd_per_hour,
)
from capacity.planning.bills.batch_api import (
    BatchApiCost,
    BatchJob,
    IdleJob,
    SpotCost,
    batch_api_costs,
    batch_job,
    idle_job,
    spot_cost,
)
from capacity.planning.bills.hosted_prices import ApiPrice
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.levels import SloLevel
from capacity.simulator.verdict import Judgement
from capacity.workload.windows import Window

HOURS_PER_DAY = 24
GROWTH_RULE = (
    "the number of replicas grows with the load, so the load per replica stays at most that of today; "
    "a month has 730 h at today's price"
)
NO_PRICE = (
    "no price: give --price-tier on-demand (reserved-1y, spot, owned, ...), --price-mix, --price 2.50 (US dollars "
    "per GPU-hour), or --owned-cost"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Load in requests per second, with the mean tokens of a request; `prefill_share` is the prefill fraction of busy
    GPU time, `drawn` the power drawn at this load."""

    requests_per_s: float
    input_tokens: float
    output_tokens: float
    prefill_share: float
    drawn: DrawnEnergy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """Cost and provisioned energy of one load; `drawn` is the power drawn at this load.

    `usd_per_million_tokens`, `kwh_per_million_tokens` and `co2_g_per_million_tokens` are per million input and output
    tokens together. `prefill_share` is the fraction of the bill that is charged to input tokens.
    """

    requests_per_s: float
    requests_per_day: float
    output_tokens_per_s: float
    prefill_share: float
    usd_per_request: float
    usd_per_thousand_requests: float
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    usd_per_user_month: float | None
    users: float | None
    joules_per_output_token: float
    kwh_per_million_tokens: float
    output_tokens_per_s_per_megawatt: float
    co2_g_per_million_tokens: float | None
    drawn: DrawnEnergy | None

    @property
    def kwh_per_million_output_tokens(self) -> float:
        """Return all provisioned energy, including that for input tokens, per million output tokens in kWh."""
        return self.joules_per_output_token * MILLION / JOULES_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Monthly bills of your own GPUs and of an API at the offered load, and the load at which they would be equal.

    If the billed replicas cannot serve the offered load, `own_usd_per_month` is the bill of enough replicas to serve
    it. `possible`: whether the replicas billed in `own_usd_per_month` can serve the break-even load. `api` names the
    API price and its source.
    """

    api: str
    api_usd_per_request: float
    api_usd_per_month: float
    own_usd_per_month: float
    requests_per_month: float
    requests_per_s: float
    tokens_per_month: float
    possible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthMonth:
    """One month of a growing load; month 1 is the load of today."""

    month: int
    requests_per_s: float
    replicas: int
    billed_gpus: int
    usd: float
    total_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(AnswerRecord):
    """Cost of a deployment.

    `served`, `verdict`, `offered_requests_per_s`, `needed` and `utilization` are None if no load is given;
    `offered_requests_per_s` is also None for a closed loop. If more requests arrive than can be served, `served` equals
    `full`. `levels` compare a simulation at predicted step times with each SLO. If the traffic is longer than the
    window length that the user sets, they are the results in the worst window, and the field `slo_window` is that
    window. `break_even` uses the API price given by flags, `apis` the prices of the price list.
    """

    SCHEMA: ClassVar[str] = "capacity/cost/v1"

    deployment: str
    verdict: Judgement | None
    verdict_reason: str | None
    offered_requests_per_s: float | None
    needed: ReplicasNeeded | None
    levels: tuple[SloLevel, ...]
    slo_window: Window | None
    tier: str
    provider: str
    product: str
    gpus_per_instance: int
    source: str
    date: str
    usd_per_gpu_hour: float
    num_gpus: int
    billed_gpus: int
    usd_per_hour: float
    usd_per_day: float
    usd_per_month: float
    watts: float
    co2_g_per_kwh: float | None
    served: LoadCost | None
    full: LoadCost
    utilization: float | None
    break_even: BreakEven | None
    apis: tuple[BreakEven, ...]
    spot: SpotCost | None
    job: BatchJob | None
    batch_apis: tuple[BatchApiCost, ...]
    idle: IdleJob | None
    growth: tuple[GrowthMonth, ...]
    rule: str
    warnings: tuple[str, ...]

    @property
    def serves(self) -> bool:
        """Return whether the deployment serves the load within its service levels."""
        return self.verdict != "overloaded" and all(level.met for level in self.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """Result of simulating the traffic: verdict, steady-state load, and SLO results; empty without a load."""

    verdict: Judgement | None = None
    verdict_reason: str | None = None
    offered_requests_per_s: float | None = None
    load: ServedLoad | None = None
    levels: tuple[SloLevel, ...] = ()
    slo_window: Window | None = None
    warnings: tuple[str, ...] = ()


NOTHING_SERVED = ServedRun()


def make_bill(
    price: Price,
    billing: Billing,
    *,
    deployment: str,
    gpus_per_replica: int,
    watts_per_gpu: float,
    full: Rates,
    served: Rates | None,
    run: ServedRun = NOTHING_SERVED,
    needed: ReplicasNeeded | None = None,
    apis: Sequence[ApiPrice] = (),
    full_ends: tuple[float, float] = (1.0, 1.0),
    warnings: tuple[str, ...] = (),
) -> Bill:
    """Return the bill of `billing.replicas` replicas of an engine.

    `full` is the highest load that these replicas can serve together, `served` the load that they do serve.
    `full_ends`: lower and upper end of the 90 % interval of measured / predicted request time at full load.
    """
    gpus = gpus_per_replica * billing.replicas
    billed = billed_gpus(price, gpus)
    hourly = usd_per_hour(price, billed)
    watts = watts_per_gpu * gpus
    own = api_price_from_flags(billing)

    offered, highest, bill = _loads_to_compare(billing, hourly, full, served, run, needed)

    def break_even_with(api: ApiPrice) -> BreakEven:
        return break_even(bill, offered, highest, api, cached_fraction=billing.api_cached_fraction)

    job = batch_job(price, billing, gpus_per_replica, full)
    listed = [*apis, *(() if own is None else (own,))]
    return make_from(
        Bill,
        price,
        run,
        billing,
        deployment=deployment,
        needed=needed,
        source=price.description,
        num_gpus=gpus,
        billed_gpus=billed,
        usd_per_hour=hourly,
        usd_per_day=hourly * HOURS_PER_DAY,
        usd_per_month=hourly * HOURS_PER_MONTH,
        watts=watts,
        served=None if served is None else load_cost(hourly, watts, served, billing),
        full=load_cost(hourly, watts, full, billing),
        utilization=None if served is None else served.requests_per_s / full.requests_per_s,
        break_even=None if own is None else break_even_with(own),
        apis=tuple(break_even_with(api) for api in apis),
        spot=spot_cost(price, billing, gpus_per_replica),
        job=job,
        batch_apis=batch_api_costs(billing, job, listed, full, full_ends),
        idle=idle_job(billing, full, watts=watts, usd_per_hour=hourly),
        growth=growth_months(price, billing, needed, gpus_per_replica),
        rule=TOKEN_PRICE_RULE,
        warnings=warnings,
    )


def _loads_to_compare(
    billing: Billing,
    hourly_usd: float,
    full: Rates,
    served: Rates | None,
    run: ServedRun,
    needed: ReplicasNeeded | None,
) -> tuple[Rates, Rates, float]:
    """Return the offered load, the highest load that the GPUs can serve, and their bill in $/h, to compare with APIs.

    If the billed replicas are overloaded, the GPUs are those of enough replicas to serve the offered load.
    """
    offered, highest, bill = served or full, full, hourly_usd
    if run.verdict == "overloaded" and run.offered_requests_per_s is not None:
        offered = replace(offered, requests_per_s=run.offered_requests_per_s)
        count = None if needed is None else needed.needed or needed.stable
        if count is not None and count.usd_per_hour is not None:
            highest = replace(full, requests_per_s=full.requests_per_s * count.replicas / billing.replicas)
            bill = count.usd_per_hour
    return offered, highest, bill


def required_price(resolved: ResolvedPool, cost: Cost) -> Price:
    """Return the price of the pool's GPU. Raises InvalidInput if there is none."""
    price = find_price_for_cost(resolved.profile.name, cost)
    if price is None:
        raise InvalidInput(NO_PRICE)
    return price


def load_cost(hourly_usd: float, watts: float, rates: Rates, billing: Billing) -> LoadCost:
    """Return the cost of a load per request, token and user; the costs of input and output tokens sum to the bill."""
    if not rates.requests_per_s > 0:
        raise InvalidInput(f"requests_per_s is {rates.requests_per_s}: must be above 0")
    units = unit_costs(
        hourly_usd,
        requests_per_s=rates.requests_per_s,
        input_tokens=rates.input_tokens,
        output_tokens=rates.output_tokens,
        prefill_share=rates.prefill_share,
    )
    per_request = units.usd_per_request
    output_rate = rates.requests_per_s * rates.output_tokens
    tokens_per_s = rates.requests_per_s * (rates.input_tokens + rates.output_tokens)
    kwh_per_million = watts / tokens_per_s * MILLION / JOULES_PER_KWH
    each, co2_g = billing.requests_per_user_hour, billing.co2_g_per_kwh
    return make_from(
        LoadCost,
        rates,
        units,
        requests_per_day=rates.requests_per_s * SECONDS_PER_HOUR * HOURS_PER_DAY,
        output_tokens_per_s=output_rate,
        usd_per_thousand_requests=per_request * 1e3,
        usd_per_user_month=None if each is None else per_request * each * HOURS_PER_MONTH,
        users=None if each is None else rates.requests_per_s * SECONDS_PER_HOUR / each,
        joules_per_output_token=watts / output_rate,
        kwh_per_million_tokens=kwh_per_million,
        output_tokens_per_s_per_megawatt=output_rate / watts * MILLION,
        co2_g_per_million_tokens=None if co2_g is None else kwh_per_million * co2_g,
    )


def api_price_from_flags(billing: Billing) -> ApiPrice | None:
    """Return the API price given by flags; None without one. Raises InvalidInput if only one of its two flags is
    set."""
    if billing.api_input_price is None and billing.api_output_price is None:
        return None
    if billing.api_input_price is None or billing.api_output_price is None:
        raise InvalidInput("an API price has two parts: give both --api-input-price and --api-output-price")
    return ApiPrice(
        model="given",
        usd_per_million_input=billing.api_input_price,
        usd_per_million_output=billing.api_output_price,
        cached_multiple=billing.api_cached_multiple,
        cache_write_multiple=billing.api_cache_write_multiple,
        source="given with --api-input-price and --api-output-price",
    )


def break_even(
    hourly_usd: float, rates: Rates, full: Rates, api: ApiPrice, *, cached_fraction: float = 0.0
) -> BreakEven:
    """Return the load above which the GPUs, whose bill is fixed, are cheaper than the API, which charges per token.

    `rates` is the offered load, `full` the highest load that the GPUs can serve. Raises InvalidInput for a free API.
    """
    each = api.usd_per_request(rates.input_tokens, rates.output_tokens, cached_fraction)
    if each == 0:
        raise InvalidInput("a free API has no break-even: give prices above 0")
    month_s = HOURS_PER_MONTH * SECONDS_PER_HOUR
    requests = hourly_usd * HOURS_PER_MONTH / each
    return BreakEven(
        api=api.described,
        api_usd_per_request=each,
        api_usd_per_month=each * rates.requests_per_s * month_s,
        own_usd_per_month=hourly_usd * HOURS_PER_MONTH,
        requests_per_month=requests,
        requests_per_s=requests / month_s,
        tokens_per_month=requests * (rates.input_tokens + rates.output_tokens),
        possible=requests / month_s <= full.requests_per_s,
    )


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
