"""The views of `estimate` and `explain` for one load: prediction, its components, and effect of faster hardware."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from capacity.answers.attribution import BOUNDS, largest_bound
from capacity.answers.interval_parts import ExplainedInterval, IntervalPart
from capacity.answers.records import Attribution, Estimate
from capacity.base.mappings import omit
from capacity.base.money import money_text
from capacity.base.quantity import Quantity
from capacity.hardware import has_profile
from capacity.hardware.cost_estimate import CostEstimate
from capacity.report.display import (
    STANDARD,
    Units,
    basis_text,
    join_phrases,
    join_words,
    offers_text,
    phrase,
    price_text,
    verdict_text,
    with_relative_interval,
)
from capacity.report.figures.estimates import PHASES, Phase, roofline_chart, step_chart, step_table
from capacity.report.replicas import needed_text
from capacity.report.subject import load_text
from capacity.report.views import units
from capacity.report.views.drawn_energy import drawn_facts
from capacity.report.views.memory_parts import model_headline
from capacity.report.views.units import Unit
from capacity.report.views.view import (
    Bars,
    Block,
    Column,
    CustomChart,
    Drawing,
    Fact,
    Facts,
    Stack,
    Table,
    View,
    blocks_if_known,
    headline,
    known_facts,
)

NO_STATE = "no steady state"
CHANGE = Unit(1, 100, "%", sign="+z")
IN_FLIGHT = Unit(1, none="unbounded", bare=True)
REQUEST_USD = replace(units.usd(6), bare=True)
JOULES = Unit(2, after=" J/output token", bare=True)
MEASURES = {"TTFT": "ttft", "TPOT": "tpot", "$/token": "cost_per_token"}


def _usd_by_share(quantity: Quantity, _: Units) -> tuple[str, str]:
    """Return $ per million tokens and its interval as texts, with a note on how cost is split among tokens."""
    text, within = units.USD.texts(quantity)
    return text, within and f"{within}, cost split by share of GPU time"


USD_BY_SHARE = Unit(show=_usd_by_share)


def estimate_view(answer: Estimate) -> View:
    """Return the view of `estimate`: latencies, throughput, cost and energy; in `detail`, steps by operator."""
    launch = answer.launch
    title = (
        f"{model_headline(answer)}\n{load_text(answer)}, {answer.input_len:,} tokens in, {answer.output_len:,} out; "
        f"basis: {basis_text(answer.basis, answer.gpu.name)}\n"
        f"launched with max_num_seqs {launch.max_num_seqs:,}, max_num_batched_tokens "
        f"{launch.max_num_batched_tokens:,}, gpu_memory_utilization {launch.gpu_memory_utilization:.3g}; client "
        f"latency {launch.client_latency_s * 1e3:.3g} ms"
    )
    steps = f"prefill is {answer.bound.prefill} bound"
    steps += phrase(", decode {} bound", answer.bound.decode)
    brief = f"{steps}; --detail shows both steps by operator"
    return View(title, _estimate_blocks(answer), detail=_step_blocks(answer), brief=brief)


def _estimate_blocks(answer: Estimate) -> Iterator[Block]:
    yield verdict_text(answer.verdict, answer.verdict_reason)
    yield needed_text(answer.replicas_needed)
    interval = " (90 % interval)" * (units.value_at(answer, "ttft_s.interval") is not None)
    yield Facts(f"Prediction{interval}", estimate_facts(answer))
    yield from estimate_charts(answer)


def estimate_charts(answer: Estimate, phase: Phase = "decode") -> Iterator[Drawing | CustomChart]:
    """Return the charts of an estimate: one step by operator, the components of TTFT, and the roofline."""
    shown: Phase = phase if getattr(answer.breakdown, phase) else "prefill"
    yield CustomChart(partial(step_chart, answer, shown))
    yield _ttft_chart(answer)
    if has_profile(answer.gpu.name):  # the roof comes from the profile
        yield CustomChart(partial(roofline_chart, answer), fixed=True)


def _step_blocks(answer: Estimate) -> Iterator[Block]:
    intensity = answer.arithmetic_intensity
    drafted = "" if answer.tokens_per_step == 1 else f", {answer.tokens_per_step:.2f} tokens of a request"
    for phase, words in zip(PHASES, ("", drafted), strict=True):
        attained = getattr(intensity, f"{phase}_flops_per_byte")
        if attained is not None:
            ridge = f"FLOP/byte, ridge {intensity.ridge_flops_per_byte:,.0f}"
            title = f"A {phase} step{words}: {attained:,.0f} {ridge}"
            yield step_table(title, getattr(answer.breakdown, phase))
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E latency"}
    rows = [Fact(title, (answer.as_found or {}).get(name), units.LATENCY) for name, title in names.items()]
    yield Facts("If the server's settings and client are unknown (90 % interval)", known_facts(rows))


def estimate_facts(answer: Estimate, offers: tuple[float, float] | None = None) -> list[Fact]:
    """Return the metrics of a prediction; `offers` ($ per GPU-hour) add a range to the monthly cost."""
    single = NO_STATE if answer.ttft_s is None else "a single output token"
    per_user, per_gpu = answer.output_tokens_per_s_per_user, answer.output_tokens_per_s_per_gpu
    joules, watts = answer.energy.joules_per_output_token, answer.energy.watts_per_gpu
    parts = _part_texts(answer)
    return [
        Fact("TTFT", answer.ttft_s, units.LATENCY, missing=NO_STATE, first="TTFT"),
        *([Fact("  parts", "", note=", ".join(parts))] if parts else []),
        Fact("TPOT", answer.tpot_s, units.LATENCY, missing=single, first="TPOT"),
        Fact("E2E latency", answer.e2e_s, units.DURATION, missing=NO_STATE, first="E2E latency"),
        *known_facts(
            Fact(title, each, units.LATENCY, first=title) for title, each in answer.further_latencies.items()
        ),
        Fact("output tokens/s", answer.output_tokens_per_s, units.RATE, first="Output tokens/s"),
        Fact("  per GPU", per_gpu, units.RATE, first="per GPU"),
        Fact("  per user", per_user, units.RATE, missing=NO_STATE, first="per user"),
        _request_rate_fact(answer),
        *_in_flight_facts(answer),
        Fact("KV capacity", answer.kv_capacity_tokens, units.NUM_TOKENS, answer.kv_cache_dtype),
        *blocks_if_known(partial(_cost_facts, answer, offers), answer.cost),
        Fact(
            "provisioned energy",
            with_relative_interval(joules, answer.output_tokens_per_s),
            JOULES,
            f"{watts:,.0f} W per GPU, including host and cooling",
        ),
        *drawn_facts(answer.energy.drawn),
    ]


def _part_texts(answer: Estimate) -> list[str]:
    parts = answer.ttft_parts_s or {}
    return [f"{name} {STANDARD.time_text(s, answer.ttft_s)}" for name, s in parts.items() if s]


def _request_rate_fact(answer: Estimate) -> Fact:
    """Return the requests/s, with a note if they are the offered or the maximum rate instead of a prediction."""
    rate, asked = answer.requests_per_s, answer.request_rate or 0.0
    if answer.ttft_s is None or rate.value < asked:
        return Fact("requests/s", rate, units.BARE_RATE, "maximum served", first="Requests/s")
    note = "offered rate" if asked and rate.low is None else ""
    return Fact("requests/s", rate, units.RATE, note, first="Requests/s")


def _in_flight_facts(answer: Estimate) -> list[Fact]:
    """Return the requests in flight, and the TTFT that a benchmark reports if its mean includes warm-up."""
    if answer.batch_size:
        return []
    count, law = answer.requests_in_flight, "requests/s x E2E, including waiting"
    number = None if count is None else with_relative_interval(count, answer.e2e_s)
    rows = [Fact("requests in flight", number, IN_FLIGHT, law, law, first="In flight")]
    run = answer.whole_run
    if run is not None and answer.ttft_s is not None:
        ttft = STANDARD.time_text(run.ttft_s, answer.ttft_s)
        note = f"mean of {run.num_prompts:,} benchmark requests, including warm-up"
        rows.append(Fact("TTFT of a whole run", ttft, note=note))
    return rows


def _cost_facts(answer: Estimate, offers: tuple[float, float] | None, cost: CostEstimate) -> list[Fact]:
    """Return the facts of the cost; without a steady state, the reason replaces the price per token."""
    by_offers = offers_text(cost.usd_per_month, cost.usd_per_gpu_hour, offers)
    month_note = join_phrases("730 h", by_offers)
    output, input_unit, full = answer.usd_per_million_output_tokens, USD_BY_SHARE, ""
    unserved = unpriced = None
    if answer.ttft_s is None:
        unserved = (money_text(cost.usd_per_month, ",.0f"), "cannot serve this load")
        unpriced = ("-", NO_STATE)
    if answer.verdict == "overloaded":
        input_unit, full = units.USD_PER_MILLION, f"at full load, {cost.requests_per_s:,.2f} requests/s"
        unpriced = ("-", f"overloaded; full load {units.USD.texts(output)[0]}")
    request = with_relative_interval(cost.usd_per_request, output)
    month = Fact("  month", cost.usd_per_month, units.usd(0), month_note, first="$ a month", instead=unserved)
    return [
        Fact("cost", f"{money_text(cost.usd_per_hour)}/h", note=price_text(cost)),
        month,
        Fact("  1M input tokens", answer.usd_per_million_input_tokens, input_unit, full),
        Fact("  1M output tokens", output, USD_BY_SHARE, first="$ per 1M output", instead=unpriced),
        Fact("  request", request, REQUEST_USD),
    ]


def _ttft_chart(answer: Estimate) -> Stack:
    parts = answer.ttft_parts_s or {}
    whole = STANDARD.time_text(sum(parts.values()), answer.ttft_s)
    return Stack(
        name="ttft",
        title="Parts of the mean time to first token",
        alt=f"{join_words(_part_texts(answer))}: {whole} in total.",
        data={part: {"TTFT": seconds} for part, seconds in parts.items()},
        unit=units.MS,
        labels="latency",
        axis="{time}",
        wholes={"TTFT": answer.ttft_s},
    )


def explain_headline(answer: Attribution) -> str:
    """Return model, GPUs, engine, load and lengths in one line."""
    return (
        f"{headline(answer)}, {load_text(answer)}, {answer.input_len:,} tokens in, {answer.output_len:,} out"
    )


def explain_view(answer: Attribution) -> View:
    """Return the view of `explain`: bottlenecks of the steps, effect of faster hardware, and steps by operator."""
    return View(explain_headline(answer), [*explain_charts(answer), *_explain_tables(answer)])


def _explain_tables(answer: Attribution) -> Iterator[Table]:
    bounds = [
        Column("", ""),
        Column("prefill step", partial(units.value_at, answer.prefill), units.PERCENT_0),
        Column("decode step", partial(units.value_at, answer.decode), units.PERCENT_0),
    ]
    yield Table("Where the time goes", BOUNDS, bounds)
    helped = [Column("", "label"), *(Column(name, path, CHANGE) for name, path in MEASURES.items())]
    yield Table("Effect of faster hardware", answer.responses, helped)
    yield step_table("A prefill step", answer.breakdown.prefill)
    if answer.breakdown.decode:
        yield step_table("A decode step", answer.breakdown.decode)


def explain_charts(answer: Attribution) -> tuple[Drawing, Drawing]:
    """Return two charts: the bottlenecks of a prefill and a decode step, and the effect of more of each resource."""
    known = {"prefill": answer.prefill, "decode": answer.decode}
    phases = {name: shares for name, shares in known.items() if shares is not None}
    phrases = [f"{name} is {largest_bound(shares)}-bound" for name, shares in phases.items()]
    bounds = Stack(
        name="bounds",
        title="Bottlenecks",
        alt=f"By share of time, {join_words(phrases)}.",
        data=units.read_series(phases.items(), "0", {bound: f"1.{bound}" for bound in BOUNDS}),
        unit=units.PERCENT_0,
        labels="phase",
        axis="% of the step",
    )
    metric = "TTFT" if answer.decode is None else "TPOT"
    measures = omit(MEASURES, *([] if answer.decode else ["TPOT"]))
    data = units.read_series(answer.responses, "label", measures)
    changes = data[metric]
    best = min(changes, key=changes.__getitem__)
    helped = Bars(
        name="what_would_help",
        title="Effect of faster hardware",
        alt=f"Largest effect on {metric}: {best}, {CHANGE.texts(changes[best])[0]}.",
        data=data,
        unit=CHANGE,
        labels="resource",
        axis="change, %",
    )
    return bounds, helped


def interval_view(answer: Attribution) -> View:
    """Return the view that shows the components of each interval, with known and with unknown server settings."""
    return View(
        explain_headline(answer), [block for each in answer.intervals for block in _interval_blocks(each)]
    )


def _interval_blocks(interval: ExplainedInterval) -> Iterator[Block]:
    value, within = units.LATENCY.texts(interval.predicted_s)
    wider = units.LATENCY.texts(interval.as_found_s)[1]
    yield _parts_table(f"{interval.metric} {value}", within, interval.parts)
    yield from (f"the interval also covers {what}" for what in interval.holds)
    title = f"{interval.metric} {value} if the server's settings and client are unknown"
    yield _parts_table(title, wider, interval.as_found_parts)


def _parts_table(title: str, within: str, parts: Sequence[IntervalPart]) -> Table:
    columns = [
        Column("part", "name"),
        Column("alone", lambda part: f"{part.low:+.0%} to {part.high:+.0%}", units.TEXT),
        Column("% of variance", "variance_share", units.PERCENT_0),
        Column("explanation", "what"),
        Column("narrowed by", "narrowed_by", Unit(left=True, none="")),
    ]
    return Table(title + phrase(", 90 % interval {}", within), parts, columns)
