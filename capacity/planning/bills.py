"""`cost` as a function: the bill of one deployment at the load that it serves and at full load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import Billing, Cost, DeploymentFile, Pool, Traffic, build, deployment_of
from capacity.hardware.pricing import Price, price_of
from capacity.planning.billing import Bill, Rates, make_bill
from capacity.planning.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.saturated import full_load
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
    pool_fields, traffic, prices, billing_fields = split(options, Pool, Traffic, Cost, Billing)
    deployment = deployment_of(model, pool=pool_fields, traffic=traffic, cost=prices)
    pool = deployment.pool
    billing = build(Billing, {**billing_fields, "replicas": pool.replicas})
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    price = price_of(resolved.profile.name, deployment.cost)
    if price is None:
        raise InvalidInput(
            "no price: give --price-tier on-demand (reserved, spot, owned), or --price 2.50 for $ per GPU-hour"
        )
    served, hits, lengths, warnings = _served(resolved, deployment.traffic, workload, billing.replicas)
    full = full_load(resolved, lengths, billing.replicas, hit_fraction=hits)
    if served is not None:
        served = Rates(
            requests_per_s=served.requests_per_s,
            input_tokens=served.input_tokens,
            output_tokens=served.output_tokens,
            prefill_share=full.prefill_share,
        )
    gpus = f"{billing.replicas} x {pool.num_gpus} {resolved.profile.name}"
    name = f"{resolved.model.name} on {gpus}, {resolved.engine.label}"
    return make_bill(
        price,
        billing,
        deployment=name,
        gpus_per_replica=pool.num_gpus,
        watts_per_gpu=resolved.profile.system_watts_per_gpu,
        full=full,
        served=served,
        apis=_apis(resolved.model.name, billing),
        warnings=(*resolved.notes, *warnings, *_cautions(price, billing)),
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


def _served(
    resolved: ResolvedPool, traffic: Traffic, workload: Workload | None, replicas: int
) -> tuple[Rates | None, float, tuple[float, float], tuple[str, ...]]:
    """The load that a simulation serves, the share of prompts that hit, the mean lengths, and what to say of it."""
    if workload is None and traffic.trace is None and traffic.request_rate is None:
        if traffic.input_len is None or traffic.output_len is None:
            raise InvalidInput(
                "no load: give --input-len and --output-len, with a --request-rate, or a --trace"
            )
        return None, 0.0, (traffic.input_len, traffic.output_len), ()
    from capacity.answers.engine_setup import make_workload
    from capacity.planning.outcome import measure

    requests = make_workload(traffic) if workload is None else workload
    lengths = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    seen = measure(resolved, requests, replicas=replicas)
    rate = seen.requests_per_s
    if not rate:
        raise InvalidInput("no request was served: nothing to divide the bill by")
    warnings = []
    offered = requests.request_rate_per_s
    if not math.isinf(offered) and rate * TOO_MUCH < offered and requests.span_s > 0:
        warnings.append(
            f"{offered:,.2f} requests/s were offered, {rate:,.2f} served, draining the queue included"
        )
    rates = Rates(
        requests_per_s=rate,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        prefill_share=0.0,
    )
    return rates, seen.hit_fraction, lengths, tuple(warnings)
