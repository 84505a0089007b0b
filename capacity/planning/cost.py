"""The bill of one deployment at the load that it serves and at full load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.answers.engine_setup import requests_of
from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import Billing, Cost, DeploymentFile, Pool, Traffic, build, deployment_of
from capacity.hardware.pricing import Price, price_of
from capacity.planning.billing import Bill, make_bill
from capacity.planning.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.outcome import measure
from capacity.planning.saturated import full_load
from capacity.planning.trial import deployment_label
from capacity.pool.resolve import ResolvedPool, resolve

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.workload import Workload

TOO_MUCH = 1.02  # served over offered time, above which a queue was left to grow


@documented(Pool, Traffic, Cost, Billing)
def cost(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Bill:
    """The bill of `replicas` engines. With a `request_rate` or a trace, the served load is simulated; without, only
    the full load is costed (`input_len` and `output_len` are needed then).

    Raises DoesNotFit; InvalidInput without a price (`price_tier`, or `price`).
    """
    pool_fields, traffic_fields, prices, billing_fields = split(options, Pool, Traffic, Cost, Billing)
    deployment = deployment_of(model, pool=pool_fields, traffic=traffic_fields, cost=prices, question="cost")
    pool = deployment.pool
    billing: Billing = build(Billing, {**billing_fields, "replicas": pool.replicas})
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    price = price_of(resolved.profile.name, deployment.cost)
    if price is None:
        raise InvalidInput(
            "no price: give --price-tier on-demand (reserved, spot, owned), or --price 2.50 for $ per GPU-hour"
        )
    traffic, replicas = deployment.traffic, billing.replicas
    served: Served | None = None
    if workload is not None or traffic.trace is not None or traffic.request_rate is not None:
        served = _served(resolved, requests_of(traffic, workload), replicas)
        lengths = served.lengths
    elif traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("no load: give --input-len and --output-len, with a --request-rate, or a --trace")
    else:
        lengths = traffic.input_len, traffic.output_len
    full = full_load(resolved, lengths, replicas, hit_fraction=0.0 if served is None else served.hit_fraction)
    return make_bill(
        price,
        billing,
        deployment=deployment_label(resolved, billing.replicas),
        gpus_per_replica=pool.num_gpus,
        watts_per_gpu=resolved.profile.system_watts_per_gpu,
        full=full,
        served=None if served is None else replace(full, requests_per_s=served.requests_per_s),
        apis=_apis(resolved.model.name, billing),
        warnings=(
            *resolved.notes,
            *(() if served is None else served.warnings),
            *_cautions(price, billing),
        ),
    )


def _apis(model: str, billing: Billing) -> tuple[ApiPrice, ...]:
    """The listed prices to compare with: those asked for, or all of a list of one's own."""
    if billing.api is None and billing.api_price_file is None:
        return ()
    table = None if billing.api_price_file is None else read_api_prices(billing.api_price_file)
    return find_api_prices(model, billing.api or "all", table=table)


def _cautions(price: Price, billing: Billing) -> Iterator[str]:
    if billing.interruptions_per_hour and price.tier not in ("spot", "given"):
        yield f"interruptions at the {price.tier} price: --price-tier spot is what is interrupted, and cheaper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a simulation served: requests per second of mean `lengths` (in, out), and the share of prompts that hit."""

    requests_per_s: float
    lengths: tuple[float, float]
    hit_fraction: float
    warnings: tuple[str, ...]


def _served(resolved: ResolvedPool, requests: Workload, replicas: int) -> Served:
    """The load that a simulation serves. Raises InvalidInput where it serves nothing."""
    latencies = measure(resolved, requests, replicas=replicas)
    rate, offered = latencies.requests_per_s, requests.request_rate_per_s
    if not rate:
        raise InvalidInput("no request was served: nothing to divide the bill by")
    left_behind = not math.isinf(offered) and rate * TOO_MUCH < offered and requests.span_s > 0
    queue = f"{offered:,.2f} requests/s were offered, {rate:,.2f} served, draining the queue included"
    return Served(
        requests_per_s=rate,
        lengths=(float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())),
        hit_fraction=latencies.hit_fraction,
        warnings=(queue,) if left_behind else (),
    )
