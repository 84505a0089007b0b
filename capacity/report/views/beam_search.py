"""The view of `beam-search`: step time and KV cache by the number of beams and by implementation."""

from dataclasses import replace
from operator import attrgetter

from capacity.report.display import count_noun
from capacity.report.views import units
from capacity.report.views.units import Unit, mark_unless
from capacity.report.views.view import Column, Curves, Fact, Table, View, headline
from capacity.techniques.beam_search import BeamRow, BeamSearch

METHODS = {
    "engine": "in the engine, KV blocks shared",
    "resubmitted": "beams resubmitted each step, prefix cached",
    "recomputed": "beams resubmitted each step, no prefix cache",
    "reordered": "one full KV cache per beam, copied each step",
}


def beam_search_view(answer: BeamSearch) -> View:
    """Return the view of `beam-search`."""
    columns = [
        Column("beams", lambda row: f"{row.beam_width} {row.way}{' *' * (row.way == answer.engine_way)}"),
        Column("TPOT, {time}", "tpot_s", units.MS),
        Column("times greedy", "times_greedy", units.TIMES),
        Column("E2E, s", "e2e_s", replace(units.SECONDS, bare=True)),
        Column("requests/s", "requests_per_s", units.TIMES),
        Column("KV tokens", "kv_tokens", units.COUNT),
        Column("requests held", mark_unless("{0.most_requests:,}".format, "fits", " (too few)"), units.TEXT),
    ]
    at_once = count_noun(answer.batch_size, "request")
    title = (
        f"{at_once} at a time, {answer.input_len:,} tokens in, {answer.output_len:,} out; "
        f"*: method of {answer.engine}"
    )
    return View(headline(answer), [_chart(answer), Table(title, answer.rows, columns)])


def beam_search_facts(answer: BeamSearch) -> list[Fact]:
    """Return the metrics with the largest number of beams, compared with the smallest, in this engine."""
    own = _engine_rows(answer)
    first, last = own[0], own[-1]
    one = f"with {first.beam_width}"
    tpot, e2e = units.LATENCY.texts(first.tpot_s)[0], units.DURATION.texts(first.e2e_s)[0]
    few = "; too few for this batch" * (not last.fits)
    return [
        Fact("Beams", last.beam_width, note=METHODS[answer.engine_way]),
        Fact("TPOT", last.tpot_s, units.LATENCY, f"{tpot} {one}"),
        Fact(
            "Times greedy",
            last.times_greedy,
            units.TIMES,
            "step time relative to greedy decoding in the engine",
        ),
        Fact("E2E latency", last.e2e_s, units.DURATION, f"{e2e} {one}"),
        Fact("Requests/s", last.requests_per_s, units.RATE),
        Fact("KV of a request", last.kv_tokens, Unit(after=" tokens"), f"{first.kv_tokens:,} {one}"),
        Fact("Requests held", last.most_requests, note=f"{first.most_requests:,} {one}{few}"),
    ]


def _engine_rows(answer: BeamSearch) -> list[BeamRow]:
    """Return the rows of this engine's implementation, the fewest beams first."""
    own = (row for row in answer.rows if row.way == answer.engine_way)
    return sorted(own, key=attrgetter("beam_width"))


def _chart(answer: BeamSearch) -> Curves:
    """Return the chart of TPOT by number of beams, one line for each implementation."""
    last = _engine_rows(answer)[-1]
    tpot = " to ".join(filter(None, units.LATENCY.texts(last.tpot_s)))
    return Curves(
        name="beam_search",
        title="Time per output token by the number of beams",
        alt=(
            f"{last.beam_width} beams on {answer.engine} take {tpot} per token, {last.times_greedy:.2f} times one beam "
            "in the engine."
        ),
        data={
            f"{title}{' *' * (way == answer.engine_way)}": {
                row.beam_width: row.tpot_s for row in answer.rows if row.way == way
            }
            for way, title in METHODS.items()
        },
        unit=units.MS,
        labels=f"beams per request (*: method of {answer.engine})",
        axis="TPOT, {time}",
        log=True,
        note=f"*: method of {answer.engine}. Whiskers: 90 % intervals.",
    )
