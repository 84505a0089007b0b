"""The view of a hall: the deployment of each model within the power budget, what limits it, and the other options."""

from collections.abc import Iterator

from capacity.planning.halls.hall_options import HallModel, HallOption, HallPlan
from capacity.report.display import join_phrases, money_phrase, phrase
from capacity.report.views.units import COUNT, TEXT, USD_2, Unit, mark_if
from capacity.report.views.view import Block, Column, Table, View

MEGAWATTS = Unit(3, 1e-6)
LIMITS = {"power": "The power budget is the limit."}
OBJECTIVES = {
    "power": "least provisioned power",
    "cost": "lowest cost",
    "gpus": "fewest GPUs",
    "energy": "least energy of the GPUs",
    "carbon": "least carbon",
}


def hall_view(plan: HallPlan) -> View:
    """Return the view of `plan_hall`."""
    title = (
        f"[bold]{megawatts(plan.power_budget_watts)}[/bold] of provisioned power, {len(plan.models)} models; "
        f"{OBJECTIVES[plan.objective]}, {plan.confidence:.0%} confidence in the step times"
    )
    return View(title, _blocks(plan), notes=plan.notes)


def megawatts(watts: float) -> str:
    """Return watts as text: "2 MW", "0.252 MW"."""
    return f"{watts / 1e6:.3g} MW"


def _blocks(plan: HallPlan) -> Iterator[Block]:
    """Yield the blocks: served share of the requests, deployments, power, and the options of each model."""
    if plan.limit is None:
        yield (
            f"[bold]All requests are served[/bold] with {megawatts(plan.provisioned_watts)}; "
            f"{megawatts(plan.power_budget_watts - plan.provisioned_watts)} remain, enough for {plan.headroom:.0%} "
            "more of the same traffic"
        )
    else:
        yield f"[bold]{plan.served_share:.1%} of the requests of each model are served.[/bold] {LIMITS[plan.limit]}"
    yield Table("Deployments", plan.models, MODEL_COLUMNS)
    drawn = MEGAWATTS.texts(plan.drawn_watts)
    yield (
        f"provisioned {megawatts(plan.provisioned_watts)}: GPUs at their cap, hosts, network and cooling at full use; "
        f"drawn {drawn[0]} MW ({drawn[1]}) at this load, with hosts, fans, power supplies and PUE {plan.pue:g}"
    )
    carbon = Unit(1, 1e-3, " kg CO2/h", none="").texts(plan.co2_g_per_hour)[0]
    totals = join_phrases(money_phrase("{}/h", plan.usd_per_hour), carbon, separator=", ")
    yield phrase("in total {}", totals)
    for model in plan.models:
        options = sorted(model.options, key=lambda each: (not each.chosen, each.provisioned_watts or 1e18))
        yield Table(f"Options for all requests of {model.model}", options, OPTION_COLUMNS)
    yield from (f"price of {price}" for price in plan.prices)


def engine_text(option: HallModel | HallOption) -> str:
    """Return the engine label without power cap and default weight format; the GPU if no engine was found."""
    left_out = ("cap ", "checkpoint's weights")
    return ", ".join(
        part for part in (option.engine or option.gpu).split(", ") if not part.startswith(left_out)
    )


CAP = Column("cap", "power_cap_watts", Unit(after=" W", none="none", left=True))
MODEL_COLUMNS = (
    Column("model", "model"),
    Column("each replica", engine_text),
    CAP,
    Column("replicas", "replicas", COUNT),
    Column("GPUs", "num_gpus", COUNT),
    Column("MW", "provisioned_watts", MEGAWATTS),
    Column("drawn", "drawn_watts.value", MEGAWATTS),
    Column("requests/s", "served_requests_per_s", Unit(0)),
    Column("tokens/s", "output_tokens_per_s", COUNT),
    Column("$/h", "usd_per_hour", USD_2, optional=True),
    Column("kg CO2/h", "co2_g_per_hour", Unit(1, 1e-3), optional=True),
)
OPTION_COLUMNS = (
    Column("each replica", mark_if(engine_text, "chosen", " *")),
    CAP,
    Column("GPUs", "num_gpus", COUNT),
    Column("MW", lambda each: None if each.bound else each.provisioned_watts, MEGAWATTS),
    Column("drawn", "drawn_watts", MEGAWATTS),
    Column("$/h", "usd_per_hour", USD_2),
    Column("", "reason", TEXT),
)
