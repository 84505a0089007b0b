"""`plan_hall`: for several models, find GPUs, power caps and replicas that serve their traffic within a power budget.

The budget counts provisioned power: GPUs at their cap, hosts, network and cooling at full use. If all traffic fits, the
answer minimizes the objective; else each model has the GPU, power cap and configuration with the least power per
request, and the same share of every model's traffic is served.
"""

import math
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from capacity.answers.drawn_energy import JOULES_PER_KWH
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.external_files import read_toml
from capacity.base.keywords import document_options
from capacity.base.quantity import Quantity
from capacity.deployment import Cost, Traffic
from capacity.hardware.power_cap import power_cap_notes
from capacity.hardware.pricing import SECONDS_PER_HOUR
from capacity.hardware.server_power import server_power
from capacity.planning.halls.hall_options import FoundOption, HallModel, HallObjective, HallPlan, ModelRequest
from capacity.planning.space import Search

UNITS = {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}


@document_options(Search, Traffic, Cost)
@validate_arguments
def plan_hall(
    models: str | Path | Sequence[Mapping[str, Any]],
    *,
    power_budget: float | str,
    slo: Sequence[str] | str = (),
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> HallPlan:
    """Find the GPU, power cap, configuration and replicas of each model that serve the traffic within a power budget.

    `models`: a TOML file with a table [[models]] for each model, or these tables: `model`, `slo`, and fields of the
    traffic (with a request rate), search and prices. `options` and `slo` apply to models that do not set them.
    `power_budget`: provisioned watts of the facility, or text with a unit, such as "2MW". Without `objective`, the
    least provisioned power is chosen. `progress(done, total)` counts pairs of a GPU and a cap. Raises InvalidInput if a
    model has no request rate, or if no GPU meets its SLO.
    """
    budget = parse_power(power_budget)
    tables = _read_models(models)
    objective = _objective(options)
    requests = [
        ModelRequest.build({"slo": slo, **options, **table}, profiles=profiles, download=download)
        for table in tables
    ]
    if objective == "cost" and not all(request.is_priced for request in requests):
        raise InvalidInput("the objective is cost, but there is no price: give --price-tier or --price")
    total, found = sum(request.num_options for request in requests), list[list[FoundOption]]()
    for request in requests:
        before = sum(map(len, found))
        report = (
            None if progress is None else partial(lambda start, done: progress(start + done, total), before)
        )
        found.append(request.options(prune=objective == "power", report=report))
    for request, each in zip(requests, found, strict=True):
        if not any(option.cell for option in each):
            raise InvalidInput(f"{request.model}: {each[0].reason}")
    chosen, share = _choose(found, budget, objective)
    counts = _replicas_within(chosen, share, budget)
    served = [_model_record(*each) for each in zip(requests, chosen, counts, found, strict=True)]
    return _answer(requests, chosen, served, budget, objective)


def parse_power(value: float | str) -> float:
    """Return watts of a number, or of text with a unit, such as "2MW" or "500 kW". Raises InvalidInput."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?W)", value.strip())
        if found is None:
            raise InvalidInput(f"--power-budget {value}: give a number with a unit, such as 2MW or 500kW")
        value = float(found[1]) * UNITS[found[2]]
    if not 0 < value < math.inf:
        raise InvalidInput(f"--power-budget is {value:g} W, must be above 0")
    return value


def _read_models(models: str | Path | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return a table for each model. Raises MalformedFile for invalid TOML, and InvalidInput without models."""
    if isinstance(models, (str, Path)):
        document = read_toml(models, "a hall")
        if wrong := next((name for name in document if name != "models"), None):
            raise InvalidInput(f"{models}: unknown key {wrong!r}; a hall has only tables [[models]]")
        models = cast(Sequence[Mapping[str, Any]], document.get("models", ()))
    if (
        not isinstance(models, (list, tuple))
        or not models
        or not all(isinstance(each, Mapping) for each in models)
    ):
        raise InvalidInput(
            "the hall has no models: add a table [[models]] with model, slo and request_rate for each"
        )
    return models


def _objective(options: MutableMapping[str, object]) -> HallObjective:
    """Return the objective and remove it from `options`. Raises InvalidInput if a hall does not support it."""
    objective = options.pop("objective", "power")
    if objective not in get_args(HallObjective):
        raise InvalidInput(
            f"--objective {objective} is not supported by a hall: use power, cost, gpus, energy or carbon"
        )
    return cast(HallObjective, objective)


def _choose(
    found: Sequence[Sequence[FoundOption]], budget: float, objective: HallObjective
) -> tuple[list[FoundOption], float]:
    """Return an option (GPU, power cap and deployment) for each model, and the fraction of the traffic that the budget
    serves (above 1: headroom).

    The options minimize the sum of the objective over the models, within the budget. After each model, a combination
    is dropped if another one needs no more power and has no higher objective. If all combinations exceed the budget,
    the options minimize the power.
    """
    sums: list[tuple[float, float, list[FoundOption]]] = [(0.0, 0.0, [])]
    for options in found:
        every = [
            (watts + option.provisioned_watts, value + option.value(objective), [*before, option])
            for watts, value, before in sums
            for option in options
            if option.cell is not None
        ]
        sums, least = [], math.inf
        for watts, value, before in sorted(every, key=lambda each: each[:2]):
            if value < least:
                sums.append((watts, value, before))
                least = value
    within = [each for each in sums if each[0] <= budget]
    watts, _, chosen = min(within, key=lambda each: each[1]) if within else sums[0]
    return chosen, budget / watts


def _replicas_within(chosen: Sequence[FoundOption], share: float, budget: float) -> list[int]:
    """Return the replicas of each model. If the budget serves only a `share` of the traffic, each model gets this share
    of its replicas, rounded down, and one more while the budget allows."""
    if share >= 1:
        return [option.replicas for option in chosen]
    counts = [math.floor(share * option.replicas) for option in chosen]
    each_watts = [option.provisioned_watts / option.replicas for option in chosen]
    left = budget - math.fsum(count * watts for count, watts in zip(counts, each_watts, strict=True))
    order = sorted(range(len(chosen)), key=lambda place: counts[place] / chosen[place].replicas)
    for place in order:
        if each_watts[place] <= left:
            counts[place] += 1
            left -= each_watts[place]
    if not all(counts):
        raise InvalidInput(
            f"--power-budget {budget / 1e3:g} kW is too small for one replica of each model: "
            f"{math.fsum(each_watts) / 1e3:.3g} kW are needed"
        )
    return counts


def _model_record(
    request: ModelRequest, option: FoundOption, replicas: int, found: Sequence[FoundOption]
) -> HallModel:
    """Return the deployment of one model with `replicas` replicas; the served traffic is reduced in proportion."""
    cell, energy = option.found
    share = replicas / option.replicas
    scale = option.cells * share
    gpus = round(option.num_gpus * share)
    rate = request.requests_per_s * share
    drawn = energy.facility_watts.scale(scale)
    output_len = request.traffic.output_len or request.plan_request(rate).load.output_tokens
    priced = None if option.price is None else option.usd_per_hour
    carbon = request.search.co2_g_per_kwh
    return HallModel(
        model=request.plan_request(request.requests_per_s).model.name,
        slos=tuple(level.slo for level in cell.trial.levels),
        requests_per_s=request.requests_per_s,
        served_requests_per_s=rate,
        output_tokens_per_s=rate * output_len,
        gpu=option.profile.name,
        power_cap_watts=option.profile.power_cap_watts,
        engine=cell.candidate.engine_label,
        replicas=replicas,
        num_gpus=gpus,
        provisioned_watts=option.provisioned_watts * share,
        drawn_watts=drawn,
        joules_per_output_token=energy.joules_per_output_token,
        usd_per_hour=None if priced is None else priced * share,
        co2_g_per_hour=None if carbon is None else drawn.value * SECONDS_PER_HOUR / JOULES_PER_KWH * carbon,
        launch=cell.launch,
        options=tuple(each.record(option) for each in found),
    )


def _answer(
    requests: Sequence[ModelRequest],
    chosen: Sequence[FoundOption],
    served: tuple[HallModel, ...] | Sequence[HallModel],
    budget: float,
    objective: HallObjective,
) -> HallPlan:
    provisioned = math.fsum(each.provisioned_watts for each in served)
    share = min(each.served_share for each in served)
    grams = [each.co2_g_per_hour for each in served if each.co2_g_per_hour is not None]
    prices = [each.usd_per_hour for each in served if each.usd_per_hour is not None]
    complete = share >= 1
    return HallPlan(
        power_budget_watts=budget,
        objective=objective,
        confidence=min(request.search.confidence for request in requests),
        served_share=share,
        headroom=budget / provisioned - 1 if complete else 0.0,
        limit=None if complete else "power",
        provisioned_watts=provisioned,
        drawn_watts=_sum([each.drawn_watts for each in served]),
        pue=server_power().pue.value,
        usd_per_hour=math.fsum(prices) if len(prices) == len(served) else None,
        co2_g_per_hour=math.fsum(grams) if len(grams) == len(served) else None,
        models=tuple(served),
        prices=tuple(dict.fromkeys(option.price.quote for option in chosen if option.price is not None)),
        notes=tuple(dict.fromkeys(note for option in chosen for note in power_cap_notes(option.profile))),
    )


def _sum(values: Sequence[Quantity]) -> Quantity:
    """Return the sum of quantities, with fully correlated errors, as assumed for the power of GPUs."""
    ends = (math.fsum(end if end is not None else each.value for each, end in zip(values, side, strict=True))
            for side in ([v.low for v in values], [v.high for v in values]))  # fmt: skip
    low, high = ends
    return Quantity(value=math.fsum(each.value for each in values), low=low, high=high)
