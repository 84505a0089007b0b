"""The view of `advise`: the changes that help, their effect on latency and cost, and the changes that do not help."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import wrap

from capacity.base.latency_metrics import METRICS
from capacity.base.quantity import Quantity
from capacity.planning.variations.advice import Advice, AdviceList
from capacity.report.display import money_phrase, phrase, round_like
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit, value_at
from capacity.report.views.view import Bars, Block, Column, Fact, Table, View, busiest_window_text

MAX_CHANGES = 12
NAME_WIDTH = 22  # characters of a label line, for a phone
MIN_CHANGE = 0.01  # smallest relative change that has a bar
CHANGES = {
    "p95 TTFT": "ttft_p95_change",
    "p95 TPOT": "tpot_p95_change",
    "p95 E2E": "e2e_p95_change",
    "$ per request at full load": "cost_change",
}
CHART_CHANGES = {name: path for name, path in CHANGES.items() if name != "p95 E2E"}
RECORD_COLUMNS = (  # for sortable tables
    *(Column("needs", "needs"), Column("change", "change"), Column("flags", "flags")),
    *(Column(f"{name}, %", f"effects.{path}", Unit(0, 100, significant=3)) for name, path in CHANGES.items()),
    Column("p95 TTFT, ms", "effects.ttft_p95_s", Unit(0, 1e3, significant=3)),
    Column("p95 TPOT, ms", "effects.tpot_p95_s", Unit(0, 1e3, significant=3)),
    Column("$/h", "effects.usd_per_hour", Unit(follows="money", significant=3)),
    Column("requests that fail", "failed", units.COUNT),
    *(Column("quality", "quality"), Column("note", "note")),
)
NO_WHISKERS_NOTE = (
    "Bars have no whiskers because both simulations use the same arrivals and step model, so most of the error "
    "cancels. A change of GPU, engine or format is less certain. The latencies above have intervals."
)
THIRD_DIGIT = units.usd(significant=3)


def _usd_difference(digits: int, requests: float = 1) -> Unit:
    """Return a display unit that multiplies a $ difference per request by a number of `requests`."""
    unit = Unit(digits, requests, follows="money", sign="+")
    return Unit(show=lambda number, _: (unit.texts(number)[0] if number.value else "0", ""))


def advice_facts(answer: AdviceList, predicted_ms: Mapping[str, Quantity]) -> Iterator[Fact]:
    """Return the metrics of the deployment before any change, with the intervals of latencies in `predicted_ms`."""
    base, full = answer.base, answer.base.usd_per_request_full
    for metric, seconds in (("ttft", base.ttft_p95_s), ("tpot", base.tpot_p95_s), ("e2el", base.e2e_p95_s)):
        known = predicted_ms.get(f"p95_{metric}_ms")
        alone = seconds and round_like(seconds)
        label = f"p95 {METRICS[metric].label}"
        yield Fact(label, alone if known is None else known.scale(1e-3), units.LATENCY)
    yield Fact("Requests/s", base.requests_per_s, units.TIMES, f"{base.failed:,} failed")
    yield Fact("$ per 1k requests", None if full is None else 1e3 * full, THIRD_DIGIT, "at full load")


def advice_view(answer: AdviceList, *, reasons: bool = False) -> View:
    """Return the view of `advise`; with `reasons`, a table states why changes are not possible."""
    base, full = answer.base, answer.base.usd_per_request_full
    paid = money_phrase(", {} per 1,000 requests at full load", full and 1e3 * full, ",.4f")
    return View(
        f"[bold]{answer.deployment}[/bold], {answer.workload}: p95 TTFT {base.ttft_p95_s * 1e3:,.0f} ms, "
        f"p95 E2E {base.e2e_p95_s * 1e3:,.0f} ms{paid}{busiest_window_text(answer.busiest_window)}",
        _blocks(answer, reasons),
    )


def _blocks(answer: AdviceList, reasons: bool) -> Iterator[Block]:
    yield _chart(answer)
    if not answer.advice:
        yield "no change on the checklist improves this deployment"
    yield Table(
        "Changes that help, simulated on the same arrivals (negative is better)",
        answer.advice,
        [
            Column("needs", "needs"),
            Column("change", _change_text),
            Column("TTFT, ms", _change_in_ms("ttft_p95"), units.TEXT),
            Column("TPOT, ms", _change_in_ms("tpot_p95"), units.TEXT),
            Column("E2E, ms", _change_in_ms("e2e_p95"), units.TEXT),
            Column("$/h", "effects.usd_per_hour", _usd_difference(2)),
            Column("$/1k full", "effects.usd_per_request_full", _usd_difference(4, 1000)),
            Column("quality", _loss_text),
        ],
        wrap=True,
        records=table_records(Table("", answer.advice, RECORD_COLUMNS)),
    )
    yield from (f"{line.change}: {line.note}" for line in answer.advice if line.note)
    yield from answer.observations
    yield f"simulated, but without benefit or with less than the changes above: {_change_names(answer.without_benefit)}"
    if reasons:
        columns = [Column("change", "change"), Column("reason", "refused")]
        yield Table("Changes that are not possible", answer.refused, columns)
        return
    yield f"not possible here: {_change_names(answer.refused)}; see the reasons in --format json"
    yield "`capacity stack` shows the effect of the techniques in use"


def _change_names(lines: Iterable[Advice]) -> str:
    return "; ".join(line.change for line in lines) or "none"


def _change_text(line: Advice) -> str:
    flags, failed = (
        phrase("\n[dim]{}[/dim]", line.flags),
        phrase("\n[red]{:,} requests fail[/red]", line.failed),
    )
    return f"{line.change}{flags}{failed}"


def _change_in_ms(name: str) -> Callable[[Advice], str]:
    """Return a function that takes a change and returns its effect on metric `name` in ms and %: `-12.3 (-8%)`."""

    def text(line: Advice) -> str:
        seconds, share = (value_at(line, f"effects.{name}_{end}") for end in ("s", "change"))
        if not seconds:
            return "-" if seconds is None else "0"
        return f"{seconds * 1e3:+,.1f} ({'-' if share is None else format(share, '+.0%')})"

    return text


def _loss_text(line: Advice) -> str:
    loss = line.quality_loss_change
    if loss is None:
        return "unknown"
    return f"up to {-loss:+.1%}" if loss else "same"


def _chart(answer: AdviceList) -> Bars:
    """Return the chart of the most beneficial changes: relative effect on latency and cost."""
    moving = [
        line
        for line in answer.advice
        if any(abs(value_at(line, f"effects.{path}") or 0.0) >= MIN_CHANGE for path in CHART_CHANGES.values())
    ]
    best = {"<br>".join(wrap(line.change, NAME_WIDTH)): line for line in moving[:MAX_CHANGES]}
    words = f"the most beneficial is to {moving[0].change}" if moving else "no change helps"
    return Bars(
        name="advice",
        title="Effect of changes",
        alt=f"{len(answer.advice)} changes simulated on the same arrivals: {words}.",
        data=units.read_series(
            best.items(), "0", {name: f"1.effects.{path}" for name, path in CHART_CHANGES.items()}
        ),
        unit=units.CHANGE,
        axis="change, % (negative is better)",
        note=NO_WHISKERS_NOTE,
        rows=table_records(Table("", answer.advice, RECORD_COLUMNS)),
        ends=(-100.0, 100.0),
    )
