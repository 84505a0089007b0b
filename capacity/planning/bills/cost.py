"""Bill of one deployment at the served load and at full load."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capacity.answers.costs import ServedLoad, prefill_share
from capacity.answers.deployment_run import run_service, verdict_on, with_replicas
from capacity.answers.drawn_energy import drawn_energy
from capacity.answers.engine_setup import make_workload, requests_of
from capacity.answers.full_load import full_load
from capacity.answers.served import (
    name_longer_run,
    prompts_for_steady_state,
)
from capacity.answers.steady_load import steady_load
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import make_from
from capacity.deployment import Billing, Cost, DeploymentFile, Pool, Service, Traffic, build, make_deployment
from capacity.deployment.use_cases import filled_notes, service_levels
from capacity.hardware.grid_carbon import co2_g_per_kwh
from capacity.hardware.pricing import Price, price_cautions
from capacity.model import ModelSpec
from capacity.planning.bills.billing import NOTHING_SERVED, Bill, Rates, ServedRun, make_bill, required_price
from capacity.planning.bills.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.evaluation.evaluate import deployment_label
from capacity.planning.sizing.replicas_needed import replicas_needed
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.levels import check_window, evaluate_slos_in_windows
from capacity.workload import Slo, Workload, parse_slos
from capacity.workload.request_generation import MAX_PROMPTS


@document_options(Pool, Traffic, Cost, Billing)
@validate_arguments
def cost(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = (),
    slo_window: str = "15m",
    grid_region: str | None = None,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Bill:
    """Return the bill of `replicas` engines at the served load and at full load.

    The served load is simulated if `request_rate`, `requests_per_day`, `concurrency` or a trace gives a load; warm-up
    and drain are left out. Otherwise only the full load is billed, from `input_len` and `output_len`. If the traffic
    is longer than `slo_window`, the worst window of this length must meet `slo`. `grid_region` (a country, or `world`)
    sets the carbon intensity of the electricity.

    Raises DoesNotFit, UnknownName for an unknown region, and InvalidInput without a price (`price_tier`, or `price`).
    """
    pool_fields, traffic_fields, prices, billing_fields = split(options, Pool, Traffic, Cost, Billing)
    deployment = make_deployment(
        model, pool=pool_fields, traffic=traffic_fields, cost=prices, question="cost"
    )
    slos = parse_slos(service_levels(slo, deployment.traffic))
    check_window(slo_window, slos)
    pool = deployment.pool
    billing = _billing({**billing_fields, "replicas": pool.replicas}, grid_region)
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    price = required_price(resolved, deployment.cost)
    traffic, engines = deployment.traffic, with_replicas(resolved, billing.replicas)
    has_load = _has_load(traffic, workload, slo)
    drawn = traffic if has_load else traffic.model_copy(update={"request_rate": 1.0})
    requests = requests_of(drawn, workload, resolved.max_model_len)
    run, needed = NOTHING_SERVED, None
    if has_load:
        run = _run_of(engines, traffic, workload, requests, slos, slo_window)
        needed = replicas_needed(
            resolved,
            traffic,
            slo=slo,
            slo_window=slo_window,
            price=price,
            workload=workload,
            profiles=profiles,
        )
    full, full_ends = full_load(engines, requests, run.load)
    load = None if run.load is None else run.load.limited_to_rate(full.requests_per_s)
    served = None if load is None else _rates_of(engines, load, billing)
    apis, api_notes = _apis(resolved.model.name, billing)
    return make_bill(
        price,
        billing,
        deployment=deployment_label(resolved),
        gpus_per_replica=pool.num_gpus,
        watts_per_gpu=resolved.profile.system_watts_per_gpu,
        full=_rates_of(engines, full, billing),
        served=served,
        run=run,
        needed=needed,
        apis=apis,
        full_ends=full_ends,
        warnings=(
            *price_cautions(price),
            *resolved.notes,
            *filled_notes(traffic),
            *resolved.split_notes(full.input_tokens),
            *run.warnings,
            *_cautions(price, billing),
            *api_notes,
        ),
    )


def _billing(fields: Mapping[str, Any], grid_region: str | None) -> Billing:
    """Return the billing settings, with the carbon intensity of `grid_region` if it is given."""
    billing: Billing = build(Billing, fields)
    if grid_region is None:
        return billing
    if billing.co2_g_per_kwh is not None:
        raise InvalidInput("--grid-region and --co2-g-per-kwh both set the carbon intensity: give one")
    return billing.model_copy(update={"co2_g_per_kwh": co2_g_per_kwh(grid_region)})


def _has_load(traffic: Traffic, workload: Workload | None, slo: Sequence[str] | str) -> bool:
    """Return whether a load is given. Raises InvalidInput if an SLO or the full load needs more settings."""
    given = (workload, traffic.trace, traffic.request_rate, traffic.concurrency, traffic.users)
    if any(each is not None for each in given):
        return True
    if slo:
        raise InvalidInput("--slo needs a load: give --request-rate, --users, --concurrency or --trace")
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput(
            "no load: give --trace, or --input-len, --output-len and --request-rate or --concurrency"
        )
    return False


def _rates_of(engines: ResolvedPool, load: ServedLoad, billing: Billing) -> Rates:
    pools = [(engines, engines.pool.replicas)]
    drawn = drawn_energy(pools, load).with_carbon(billing.co2_g_per_kwh)
    return make_from(Rates, load, prefill_share=prefill_share(pools, load), drawn=drawn)


def _apis(model: str, billing: Billing) -> tuple[tuple[ApiPrice, ...], tuple[str, ...]]:
    """Return the API prices of `model` from the named providers or a custom list, and a note if there are none."""
    if billing.api is None and billing.api_price_file is None:
        return (), ()
    table = None if billing.api_price_file is None else read_api_prices(billing.api_price_file)
    found = find_api_prices(model, billing.api or "all", table=table)
    if found:
        return found, ()
    return (), (
        f"The price list has no API price of {model}. Give --api-input-price and --api-output-price, or your own list "
        "with --api-price-file.",
    )


def _cautions(price: Price, billing: Billing) -> Iterator[str]:
    if billing.interruptions_per_hour and price.tier not in ("spot", "given"):
        yield f"Interruptions are billed at the {price.tier} price; set --price-tier spot for interruptible capacity."


def _run_of(
    engines: ResolvedPool,
    traffic: Traffic,
    workload: Workload | None,
    requests: Workload,
    slos: tuple[Slo, ...],
    slo_window: str,
) -> ServedRun:
    """Simulate the traffic on the engines; repeat with more requests if the run is too short for a verdict.

    Raises InvalidInput if no request is served.
    """
    sample, service = requests, Service()
    while True:
        run = run_service([engines], service, requests, seed=traffic.seed)
        verdict = verdict_on(run, [engines], service, requests, sample=sample)
        if verdict is None:
            raise InvalidInput(f"the load cannot be served: {run.reason}")
        more = prompts_for_steady_state(run, traffic) if workload is None and traffic.trace is None else 0
        if verdict.verdict != "too short to tell" or not len(requests) < more <= MAX_PROMPTS:
            break
        if traffic.num_prompts is not None:
            break
        requests = make_workload(traffic.model_copy(update={"num_prompts": more}), engines.max_model_len)
    if workload is None:
        verdict = name_longer_run(verdict, run, requests, traffic)
    load = steady_load(run.records, verdict, requests, [(engines, engines.pool.replicas)])
    warnings = [] if requests.part is None else [f"The load is {requests.part}."]
    if requests.is_closed_loop and verdict.steady is None:
        warnings.append(
            "The run has no steady state, so the bill includes warm-up and drain. Increase --num-prompts."
        )
    levels, window = evaluate_slos_in_windows(
        slos, requests, run.records, run.summary, slo_window, steady=verdict.is_stable
    )
    by_clock = not requests.is_closed_loop and math.isfinite(requests.offered_per_s)
    return ServedRun(
        verdict=verdict.verdict,
        verdict_reason=verdict.reason,
        offered_requests_per_s=requests.offered_per_s if by_clock else None,
        load=load,
        levels=levels,
        slo_window=window,
        warnings=tuple(warnings),
    )
