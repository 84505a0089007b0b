"""The view of `cost`: the bill, the cost per token, and the comparison with APIs, spot capacity and batch jobs."""

from collections.abc import Iterator, Mapping, Sequence

from capacity.base.money import money_text
from capacity.base.quantity import Quantity
from capacity.planning.bills.batch_api import BatchJob, IdleJob, SpotCost
from capacity.planning.bills.billing import GROWTH_RULE, Bill, BreakEven
from capacity.report.display import count_noun, join_phrases, join_words, offers_text, phrase, verdict_text
from capacity.report.replicas import needed_text
from capacity.report.views import units
from capacity.report.views.drawn_energy import drawn_facts
from capacity.report.views.units import Unit, dollars, mark_unless
from capacity.report.views.view import (
    Bars,
    Block,
    Column,
    Fact,
    Facts,
    Table,
    View,
    blocks_if_known,
    known_facts,
    side_by_side_table,
)
from capacity.simulator.verdict import UNSETTLED

Offers = (
    tuple[float, float] | None
)  # $ per GPU-hour: the lowest and the highest offer; a price is their median

WHISKER_NOTE = "; whiskers: cheapest and most expensive offer"
USD_4 = Unit(4, follows="money")
LOAD_ROWS: tuple[tuple[str, str, Unit], ...] = (
    ("requests/s", "requests_per_s", Unit(3)),
    ("requests a day", "requests_per_day", units.COUNT),
    ("output tokens/s", "output_tokens_per_s", units.COUNT),
    ("$ per 1k requests", "usd_per_thousand_requests", USD_4),
    ("$ per 1M input tokens", "usd_per_million_input_tokens", USD_4),
    ("$ per 1M output tokens", "usd_per_million_output_tokens", USD_4),
    ("$ per 1M tokens, input and output", "usd_per_million_tokens", USD_4),
    ("GPU time for input tokens", "prefill_share", units.PERCENT),
    ("users", "users", units.COUNT),
    ("$ per user-month", "usd_per_user_month", USD_4),
    ("provisioned J per output token", "joules_per_output_token", Unit(3)),
    ("provisioned kWh per 1M output tokens", "kwh_per_million_output_tokens", Unit(4)),
    ("drawn J per output token, GPUs only", "drawn.joules_per_output_token.value", Unit(3)),
    ("drawn J per output token, whole facility", "drawn.facility_joules_per_output_token.value", Unit(3)),
    ("drawn g CO2 per 1M output tokens, facility", "drawn.co2_g_per_million_output_tokens.value", Unit(1)),
    ("output tokens/s per provisioned MW", "output_tokens_per_s_per_megawatt", units.COUNT),
    ("provisioned g CO2 per 1M tokens, input and output", "co2_g_per_million_tokens", Unit(1)),
)  # heading, path in a `LoadCost`, unit
PRICES = {
    "input": "usd_per_million_input_tokens",
    "output": "usd_per_million_output_tokens",
    "blended": "usd_per_million_tokens",
}
JOULES = Unit(2, after=" J")


def bill_facts(bill: Bill, offers: Offers = None) -> Iterator[Fact]:
    """Return the bill per hour, day and month, and price per token and request, utilization and energy."""
    load, at = (bill.full, "at full load") if bill.served is None else (bill.served, "at this load")
    unsteady = bill.verdict or "" if bill.verdict in UNSETTLED else ""
    why = "cannot serve this load" if unsteady == "overloaded" else unsteady
    month = offers_text(bill.usd_per_month, bill.usd_per_gpu_hour, offers) or "730 h"
    gpus = f"{count_noun(bill.billed_gpus, 'GPU')} at {money_text(bill.usd_per_gpu_hour)}"
    for label, value, digits, note in (
        ("Per hour", bill.usd_per_hour, 2, gpus),
        ("Per day", bill.usd_per_day, 2, f"{load.requests_per_day:,.0f} requests {at}"),
        ("Per month", bill.usd_per_month, 0, month),
    ):
        unit = dollars(digits)
        yield Fact(label, unit.texts(value)[0], note=why) if why else Fact(label, value, unit, note)
    for label, field, digits in (
        ("$ per 1M output", "usd_per_million_output_tokens", 3),
        ("$ per 1M input", "usd_per_million_input_tokens", 3),
        ("$ per 1k requests", "usd_per_thousand_requests", 4),
    ):
        unit = dollars(digits)
        full = f"full load {unit.texts(getattr(bill.full, field))[0]}"
        instead = ("-", f"{unsteady}; {full}") if unsteady else None
        yield Fact(label, getattr(load, field), unit, f"{at}; {full}", instead=instead)
    used, of = bill.utilization, "of capacity"
    yield Fact("Utilization", used, units.PERCENT_0, of, instead=("-", unsteady) if unsteady else None)
    kwh = f"per output token; {load.kwh_per_million_output_tokens:,.3f} kWh per 1M output tokens, {at}"
    joules = load.joules_per_output_token
    yield Fact("Provisioned energy", JOULES.texts(joules)[0] if unsteady else joules, JOULES, kwh)
    for fact in drawn_facts(load.drawn):
        label = fact.label.strip().capitalize()
        yield fact._replace(label=label, unit=JOULES, note=f"per output token; {fact.note}, {at}")


def reason_text(bill: Bill) -> str:
    """Return why the load is served or not, with the simulated value of each missed service level."""
    window = phrase(" in the worst window, {.text}", bill.slo_window)
    missed = ""
    for level in (level for level in bill.levels if not level.met):
        value = phrase("{:,.0f} ms", level.value_ms)
        value = value or f"{level.attained_fraction:.1%} of requests meet the limit"
        missed += f"; {level.slo} is missed ({value}){window}"
    return f"{bill.verdict_reason or ''}{missed}"


def bill_view(bill: Bill, offers: Offers = None) -> View:
    """Return the view of `cost`; whiskers in its charts span the cheapest to the most expensive of `offers`."""
    title = f"[bold]{bill.deployment}[/bold]"
    lines = (title, verdict_text(bill.verdict, reason_text(bill)), needed_text(bill.needed))
    facts = {fact.label: fact for fact in bill_facts(bill, offers)}
    main = [facts[label] for label in ("Per month", "$ per 1M output", "Utilization")]
    return View(join_phrases(*lines, separator="\n"), _blocks(bill, offers), main=main)


def _blocks(bill: Bill, offers: Offers) -> Iterator[Block]:
    compared = [api for api in (bill.break_even, *bill.apis) if api is not None]
    yield _price_chart(bill, offers)
    if compared:
        yield _month_chart(bill, compared, offers)
    yield Facts("Bill", list(_bill_facts(bill)))
    yield _load_table(bill)
    if compared:
        yield _api_table(bill, compared)
    yield Facts("On spot capacity", list(blocks_if_known(_spot_facts, bill.spot)))
    yield Facts("Batch job at full load", list(blocks_if_known(_job_facts, bill.job)))
    yield from _batch_api_blocks(bill)
    yield Facts("Batch job in the idle hours of these GPUs", list(blocks_if_known(_idle_facts, bill.idle)))
    if bill.growth:
        yield _growth_table(bill)
        yield f"growth: {GROWTH_RULE}"
    yield f"rule: {bill.rule}"


def _bill_facts(bill: Bill) -> Iterator[Fact]:
    price = f"{money_text(bill.usd_per_gpu_hour)} per GPU-hour"
    whole = f"{bill.billed_gpus} billed (whole instances), {bill.num_gpus} used"
    yield Fact("price", price, note=f"{bill.tier}: {bill.source}")
    yield Fact("GPUs", bill.billed_gpus, note=whole * (bill.billed_gpus != bill.num_gpus))
    yield Fact("hour", bill.usd_per_hour, dollars(2))
    yield Fact("day", bill.usd_per_day, dollars(2), "24 h, busy or idle")
    yield Fact("month", bill.usd_per_month, dollars(2), "730 h")
    power = "GPU, host and cooling at full use"
    yield Fact("provisioned power", f"{bill.watts / 1e3:,.2f} kW", note=power)
    yield from drawn_facts((bill.served or bill.full).drawn)
    grid = Unit(text="{:,.4g} g CO2 per kWh".format)
    carbon = Fact("carbon", bill.co2_g_per_kwh, grid, "of the electricity")
    used = Fact("utilization", bill.utilization, units.PERCENT, "served load / full load")
    yield from known_facts([carbon, used])


def _load_table(bill: Bill) -> Table:
    loads = {"at this load": bill.served} if bill.served not in (None, bill.full) else {}
    loads["at full load"] = bill.full
    return side_by_side_table("Cost per token and request", LOAD_ROWS, loads)


def _api_table(bill: Bill, compared: Sequence[BreakEven]) -> Table:
    load = "at full load" if bill.served is None else "at this load"
    whose, own = "these GPUs cost", compared[0].own_usd_per_month
    if bill.verdict == "overloaded" and bill.offered_requests_per_s is not None:
        load = f"at the offered {bill.offered_requests_per_s:,.4g} requests/s"
        unserved = own == bill.usd_per_month
        whose = "these GPUs cannot serve the load and cost" if unserved else "the required replicas cost"
    return Table(
        f"Comparison with an API; {whose} {money_text(own)} a month, busy or idle",
        compared,
        [
            Column("API", "api"),
            Column("$ a request", "api_usd_per_request", units.USD_6),
            Column(f"$ a month {load}", "api_usd_per_month", units.USD_2),
            Column(
                "break-even, requests/s",
                mark_unless("{0.requests_per_s:,.3f}".format, "possible", " (above capacity)"),
                units.TEXT,
            ),
            Column("requests a month", "requests_per_month", units.COUNT),
        ],
        wrap=True,
    )


def _growth_table(bill: Bill) -> Table:
    columns = [
        Column("month", "month", units.COUNT),
        Column("requests/s", "requests_per_s", Unit(3)),
        Column("replicas", "replicas", units.COUNT),
        Column("GPUs", "billed_gpus", units.COUNT),
        Column("$ in the month", "usd", units.USD_2),
        Column("$ since month 1", "total_usd", units.USD_2),
    ]
    months = bill.growth
    return Table(f"Growing load, {len(months)} months: {money_text(months[-1].total_usd)}", months, columns)


def _spot_facts(spot: SpotCost) -> list[Fact]:
    hourly = f"{money_text(spot.usd_per_hour_for_same_capacity)} an hour"
    return [
        Fact("useful time", spot.useful_fraction, units.PERCENT, "the rest is lost to restarts"),
        Fact("useful hour", spot.usd_per_useful_hour, dollars(2)),
        Fact("same capacity", f"{spot.replicas_for_same_capacity} replicas", note=hourly),
    ]


def _job_facts(job: BatchJob) -> list[Fact]:
    return [
        Fact("documents", job.documents, note=f"in {job.deadline_hours:g} h"),
        Fact("replicas", job.replicas, note=f"{job.gpus} GPUs, {job.billed_gpus} billed"),
        Fact("time", f"{job.hours:,.2f} h", note=f"{job.gpu_hours:,.2f} GPU-hours"),
        Fact("bill", job.usd, dollars(2), f"{money_text(job.usd_per_document, '.6f')} a document"),
    ]


def _idle_facts(idle: IdleJob) -> list[Fact]:
    return [
        Fact("idle hours", f"{idle.hours_per_day:g} a day", note=f"{idle.hours:,.2f} h of work"),
        Fact("finished after", f"{idle.days:,.2f} days", note="in time" if idle.in_time else "too late"),
        Fact("energy", f"{idle.kwh:,.1f} kWh", note="additional"),
        Fact("bill for these hours", idle.usd_paid_anyway, dollars(2), "already paid for"),
    ]


def _batch_api_blocks(bill: Bill) -> Iterator[Block]:
    if not bill.batch_apis:
        return
    own = bill.batch_apis[0].own_usd_per_document.scale(1000)
    rented = units.usd(significant=4).texts(own.value)[0]
    ends = [Unit(follows="money", significant=3).texts(end)[0] for end in own.interval or ()]
    rented += phrase(" ({})", " to ".join(ends))
    yield Table(
        f"Batch APIs; GPUs rented for the job cost {rented} per 1k documents at full load",
        bill.batch_apis,
        [
            Column("API", "api"),
            Column("discount", "discount"),
            Column("% of list price", "multiple", units.PERCENT_0),
            Column("within", mark_unless("{0.window_hours:g} h".format, "in_time", ", too late"), units.TEXT),
            Column("$", "usd", units.USD_2),
            Column("$ per 1k", "usd_per_document", Unit(scale=1000, follows="money", significant=4)),
            Column("own cheaper from", "break_even_utilization", Unit(0, 100, "% busy", none="never")),
        ],
        wrap=True,
    )
    sources = {cost.discount: cost.discount_source for cost in bill.batch_apis}
    yield from (f"{name}: {source}" for name, source in sources.items())


def _price_chart(bill: Bill, offers: Offers) -> Bars:
    """Return the chart of $ per million tokens at the served load (including idle time) and at full load."""
    loads = {"at full load": bill.full}
    if bill.served is not None and bill.verdict not in UNSETTLED:
        loads = {"at this load": bill.served, **loads}
    phrases = [
        f"{name} {money_text(load.usd_per_million_output_tokens, ',.3f')} per 1M output tokens"
        for name, load in loads.items()
    ]
    data = {
        name: {kind: _bill_range(getattr(load, field), bill, offers) for kind, field in PRICES.items()}
        for name, load in loads.items()
    }
    return Bars(
        name="price_per_token",
        title="$ per million tokens" + WHISKER_NOTE * (offers is not None),
        alt=f"{join_words(phrases)}.",
        data=data,
        unit=dollars(3),
        labels="$ per 1M",
        axis="$ per 1M tokens",
        ends=_axis_range(data),
    )


def _month_chart(bill: Bill, compared: Sequence[BreakEven], offers: Offers) -> Bars:
    """Return the chart of the monthly bill next to the price of the same requests at each API."""
    usd = compared[0].own_usd_per_month
    own = "this deployment" if usd == bill.usd_per_month else "the required replicas"
    bars = {own: _bill_range(usd, bill, offers)}
    for each in compared:  # names of listed APIs are followed by date and source
        name = "the API" if each.api.startswith("given with") else each.api.partition(",")[0]
        bars[name] = Quantity(value=each.api_usd_per_month)
    named = {f"{name}, {money_text(each.value, ',.0f')}": each for name, each in bars.items()}
    return Bars(
        name="month",
        title="Cost of this load per month" + WHISKER_NOTE * (offers is not None),
        alt=f"{join_words(list(named))} a month.",
        data={"$ a month": named},
        unit=dollars(0),
        labels="bill",
        axis="$ a month (730 h)",
        ends=_axis_range({"": named}),
    )


def _bill_range(usd: float, bill: Bill, offers: Offers) -> Quantity:
    """Return a bill with the interval from its amount at the cheapest to its amount at the most expensive offer."""
    low, high = (None, None) if offers is None else (usd * each / bill.usd_per_gpu_hour for each in offers)
    return Quantity(value=usd, low=low, high=high)


def _axis_range(data: Mapping[str, Mapping[str, Quantity]]) -> tuple[float, float]:
    """Return an axis range from 0 to slightly more than the longest bar or whisker."""
    return 0.0, 1.1 * max(max(each.value, each.high or 0.0) for row in data.values() for each in row.values())
