"""Convert $ per hour to $ per request and per token. The bill covers whole instances."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.hardware.pricing import HOURS_PER_MONTH, SECONDS_PER_HOUR, Price, billed_gpus, usd_per_hour

MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """Cost of a request and a token; usd_per_request = input tokens x input price + output tokens x output price."""

    usd_per_request: float
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Cost of one deployment at the load that it serves, in $.

    usd_per_request = input_tokens x input price + output_tokens x output price. `num_gpus` are in use; the bill covers
    `billed_gpus`, because some GPUs are only sold in whole instances. Input tokens pay the fraction `prefill_share` of
    the bill, output tokens the remainder. `usd_per_gpu_hour` is the mean over the billed GPUs.
    """

    tier: str
    source: str
    date: str
    usd_per_gpu_hour: float
    num_gpus: int
    billed_gpus: int
    usd_per_hour: float
    usd_per_month: float
    requests_per_s: float
    prefill_share: float
    usd_per_request: float
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    rule: str


TOKEN_PRICE_RULE = (
    "input tokens pay for the share of GPU time that prefill takes at full load, "
    "output tokens for the share that decode takes"
)


def cost_estimate(
    gpus: Mapping[str, tuple[Price, int]],
    *,
    requests_per_s: float,
    input_tokens: float,
    output_tokens: float,
    prefill_share: float,
) -> CostEstimate:
    """Return the cost of a deployment that serves `requests_per_s` with these mean request lengths.

    `gpus`: price and number of GPUs of each type; `prefill_share`: fraction of busy GPU time that prefill takes. Raises
    InvalidInput for a rate or a length that is not positive.
    """
    rates = {"requests_per_s": requests_per_s, "input_tokens": input_tokens, "output_tokens": output_tokens}
    for what, value in rates.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(f"{what} is {value}, must be finite and above 0 to compute a cost")
    if not 0 <= prefill_share <= 1:
        raise InvalidInput(f"prefill_share is {prefill_share}, must be between 0 and 1")
    num_gpus = sum(count for _, count in gpus.values())
    if num_gpus < 1:
        raise InvalidInput(f"num_gpus is {num_gpus}, must be at least 1")
    of_kind = [(price, billed_gpus(price, count)) for price, count in gpus.values()]
    billed = sum(count for _, count in of_kind)
    hourly = sum(usd_per_hour(price, count) for price, count in of_kind)
    prices = [price for price, _ in of_kind]
    return make_from(
        CostEstimate,
        unit_costs(hourly, prefill_share=prefill_share, **rates),
        tier=" and ".join(dict.fromkeys(price.tier for price in prices)),
        source=prices[0].description if len(prices) == 1 else "; ".join(price.quote for price in prices),
        date=min(price.date for price in prices),
        usd_per_gpu_hour=prices[0].usd_per_gpu_hour if len(prices) == 1 else hourly / billed,
        num_gpus=num_gpus,
        billed_gpus=billed,
        usd_per_hour=hourly,
        usd_per_month=hourly * HOURS_PER_MONTH,
        requests_per_s=requests_per_s,
        prefill_share=prefill_share,
        rule=TOKEN_PRICE_RULE,
    )


def unit_costs(
    hourly_usd: float,
    *,
    requests_per_s: float,
    input_tokens: float,
    output_tokens: float,
    prefill_share: float,
) -> UnitCosts:
    """Split `hourly_usd` into $ per request and per token at this request rate and these mean lengths."""
    per_request = hourly_usd / SECONDS_PER_HOUR / requests_per_s
    return UnitCosts(
        usd_per_request=per_request,
        usd_per_million_input_tokens=per_request * prefill_share / input_tokens * MILLION,
        usd_per_million_output_tokens=per_request * (1 - prefill_share) / output_tokens * MILLION,
        usd_per_million_tokens=per_request / (input_tokens + output_tokens) * MILLION,
    )


def joules_per_token(system_watts_per_gpu: float, num_gpus: int, tokens_per_s: float) -> float:
    """Return `system_watts_per_gpu` (GPU, host and cooling) x number of GPUs / tokens per second, in joules."""
    if not tokens_per_s > 0:
        raise InvalidInput(f"tokens_per_s is {tokens_per_s}, must be above 0")
    return system_watts_per_gpu * num_gpus / tokens_per_s
