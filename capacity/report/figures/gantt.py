"""Timeline of a run: one lane per request, below them batch size and KV use, and a line that marks a time."""

import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from capacity.answers.records import Simulation
from capacity.report.figures.chart import Chart, apply_layout, colour, listed, new_figure
from capacity.report.subject import describe_answer
from capacity.report.views.units import group_by, read_columns

PHASES = {"queued": 1, "prefill": 0, "decode": 2, "preempted": 5}  # index of the palette
# share of a lane, to distinguish phases without colour
HEIGHTS = {"queued": 0.35, "prefill": 0.9, "decode": 0.65, "preempted": 0.35}
MAX_LANES = 400
FRAMES = 120  # positions of the playhead
ENGINE, REQUESTS = 1, 2  # process numbers in the trace
PANELS = ("requests", "requests in the step and waiting", "KV cache in use")
SHARES = [0.62, 0.19, 0.19]  # of the height
TITLE, SLIDER, WORDS, ABOVE = 26, 34, 26, 165  # pixels above the panels: title, slider, its text, total
SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HOVER = ("request", "tokens in", "tokens out")
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """State of the engine at one time, in s since the start of the run."""

    time_s: float
    running: int
    waiting: int
    kv_fraction: float

    @property
    def text(self) -> str:
        """Return the state as one line of text."""
        return f"{self.time_s:,.1f} s: {self.running:,} running, {self.waiting:,} waiting, KV {self.kv_fraction:.0%}"


def gantt_chart(answer: Simulation, events: Sequence[Event]) -> Chart:
    """Return the timeline chart: each request's queue, prefill, decode and preemptions; batch size and KV use.

    `events` are the events of the run's Chrome trace (`simulator.timeline.Timeline.chrome_trace`). The slider moves a
    line through all panels and shows the engine state at that time; Play moves it in real time. The chart
    shows the first 400 requests.
    """
    lives = [_row(event) for event in events if event["ph"] == "X" and event["pid"] == REQUESTS]
    order = group_by(sorted(lives, key=itemgetter("from, s")), "request")
    lanes = {request: place for place, request in enumerate(list(order)[:MAX_LANES], start=1)}
    shown = [event for event in lives if event["request"] in lanes]
    moments = engine_states(answer, events)
    figure = new_figure(rows=3, vertical_spacing=0.06, row_heights=SHARES, subplot_titles=PANELS)
    phases = group_by(shown, "phase")
    for phase in PHASES:
        _draw_lanes(figure, phase, phases.get(phase, []), lanes)
    _draw_states(figure, moments)
    apply_layout(figure, x="", y="", height=720, barmode="overlay")
    figure.update_xaxes(title_text="s since the run began", row=len(PANELS), col=1)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", row=2, col=1)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%", row=3, col=1)
    _add_playhead(figure, moments)
    return Chart(
        name="requests_over_time",
        title="Requests from arrival to last token",
        alt=_caption(lanes, lives, moments),
        figure=figure,
        rows=tuple(shown),
        subject=describe_answer(answer),
    )


def engine_states(answer: Simulation, events: Sequence[Event]) -> list[EngineState]:
    """Return the engine state at the end of each step: running requests, waiting or preempted requests, and KV use."""
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == ENGINE]
    used = [event["args"]["used"] for event in events if event["ph"] == "C"]
    waits = [event for event in events if event["ph"] == "X" and event["name"] in ("queued", "preempted")]
    begun = sorted(float(event["ts"]) for event in waits)
    over = sorted(float(event["ts"] + event["dur"]) for event in waits)
    blocks = max(1, answer.kv_capacity_blocks)
    return [
        EngineState(
            time_s=(end_us := step["ts"] + step["dur"]) / 1e6,
            running=int(step["args"]["rows"]),
            waiting=bisect_right(begun, end_us) - bisect_right(over, end_us),
            kv_fraction=used_blocks / blocks,
        )
        for step, used_blocks in zip(steps, used, strict=True)
    ]


def _draw_lanes(figure: Any, phase: str, chosen: Sequence[Event], lanes: Mapping[int, int]) -> None:
    hue = colour(PHASES[phase])
    figure.add_bar(
        name=phase,
        orientation="h",
        y=[lanes[event["request"]] for event in chosen],
        **read_columns(chosen, base="from, s", x="lasts, s", customdata=itemgetter(*HOVER)),
        width=HEIGHTS[phase],
        marker={"color": hue, "line": {"width": 0}},
        hovertemplate=f"request %{{customdata[0]}}, {phase} from %{{base:,.3f}} s for %{{x:,.3f}} s: "
        "%{customdata[1]:,} tokens in, %{customdata[2]:,} out<extra></extra>",
        row=1,
        col=1,
    )


def _draw_states(figure: Any, moments: Sequence[EngineState]) -> None:
    series = (
        (2, "in the step", "running", colour(3), "solid"),
        (2, "waiting", "waiting", colour(1), "dash"),
        (3, "KV cache in use", "kv_fraction", colour(4), "solid"),
    )
    for row, name, field, hue, dash in series:
        figure.add_scatter(
            **read_columns(moments, x="time_s", y=field),
            mode="lines",
            name=name,
            line={"color": hue, "dash": dash, "width": 1.8, "shape": "hv"},
            row=row,
            col=1,
        )


def _add_playhead(figure: Any, moments: Sequence[EngineState]) -> None:
    """Add a line through all panels, a slider that moves it and shows the engine state, and a Play button."""
    if not moments:
        return
    end_s = moments[-1].time_s
    shown = [_state_at(moments, end_s * place / (FRAMES - 1)) for place in range(FRAMES)]
    titles = [note.to_plotly_json() for note in figure.layout.annotations]
    figure.update_layout(**_playhead_layout(shown[0], titles), margin={"t": ABOVE})
    figure.frames = [
        {"name": str(place), "layout": _playhead_layout(moment, titles)} for place, moment in enumerate(shown)
    ]
    still = {"mode": "immediate", "transition": {"duration": 0}}
    steps = [
        {
            "label": f"{moment.time_s:,.1f}",
            "method": "animate",
            "args": [[str(place)], {**still, "frame": {"duration": 0, "redraw": True}}],
        }
        for place, moment in enumerate(shown)
    ]
    slider = SETTINGS["slider"] | {"pad": {"b": TITLE, "t": 0}, "steps": steps}
    play = {**still, "fromcurrent": True, "frame": {"duration": 1e3 * end_s / (FRAMES - 1), "redraw": True}}
    pause = {**still, "frame": {"duration": 0, "redraw": False}}
    buttons = [
        {"label": "Play", "method": "animate", "args": [None, play]},
        {"label": "Pause", "method": "animate", "args": [[None], pause]},
    ]
    menu = SETTINGS["buttons"] | {"pad": {"b": TITLE + SLIDER + WORDS, "t": 0}, "buttons": buttons}
    figure.update_layout(sliders=[slider], updatemenus=[menu])


def _state_at(moments: Sequence[EngineState], at_s: float) -> EngineState:
    """Return the state after the last step that ended by `at_s`, or after the first step if none has ended by then."""
    place = bisect_right(moments, at_s, key=attrgetter("time_s")) - 1
    return replace(moments[max(place, 0)], time_s=at_s)


def _playhead_layout(moment: EngineState, titles: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the plotly layout at this state: the line that marks the time, its text, and the titles of the panels."""
    line = SETTINGS["line"] | {"x0": moment.time_s, "x1": moment.time_s}
    words = SETTINGS["words"] | {"text": moment.text, "yshift": TITLE + SLIDER}
    return {"shapes": [line], "annotations": [*titles, words]}


def _row(event: Event) -> dict[str, object]:
    return {
        "request": int(event["tid"]),
        "phase": event["name"],
        "from, s": event["ts"] / 1e6,
        "lasts, s": event["dur"] / 1e6,
        "tokens in": event["args"]["prompt_tokens"],
        "tokens out": event["args"]["output_tokens"],
    }


def _caption(lanes: Mapping[int, int], lives: Sequence[Event], moments: Sequence[EngineState]) -> str:
    paused = {event["request"] for event in lives if event["phase"] == "preempted"}
    running, waiting, kv = (
        max(map(attrgetter(name), moments), default=0) for name in ("running", "waiting", "kv_fraction")
    )
    peaks = [f"at most {running:,} requests in a step", f"{waiting:,} waiting", f"{kv:.0%} of the KV cache"]
    return f"{len(lanes):,} requests, {len(paused):,} of them preempted; {listed(peaks)}."
