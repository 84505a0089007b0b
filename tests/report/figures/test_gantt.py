"""A run watched: lanes are the requests' lives, the panels the engine's state, the playhead stands where it says."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.report.figures.gantt import FRAMES, PHASES, engine_states, gantt_chart
from capacity.simulator.timeline import Timeline


@pytest.fixture(scope="module")
def watched() -> tuple[Any, list[dict[str, Any]]]:
    """A run of few KV blocks, so that requests are preempted."""
    observer = Timeline()
    answer = capacity.simulate(
        "llama-3.1-8b",
        gpu="h100",
        input_len=256,
        output_len=128,
        request_rate=40.0,
        num_prompts=40,
        max_model_len=1024,
        num_gpu_blocks_override=150,
        observer=observer,
    )
    return answer, observer.chrome_trace(answer.run.records)["traceEvents"]


def test_lanes_are_the_lives_of_the_requests(watched: Any) -> None:
    answer, events = watched
    chart = gantt_chart(answer, events)
    bars = {trace.name: trace for trace in chart.figure.data if trace.type == "bar"}
    assert list(bars) == list(PHASES)
    assert len(bars["preempted"].x)
    by_request: dict[int, float] = {}
    for bar in bars.values():
        for (request, _, _), seconds in zip(bar.customdata, bar.x, strict=True):
            by_request[int(request)] = by_request.get(int(request), 0.0) + seconds
    for record in answer.run.records:
        assert by_request[record.index] == pytest.approx(record.e2e_s, abs=1e-3)
    first = dict(zip((int(c[0]) for c in bars["prefill"].customdata), bars["prefill"].y, strict=True))
    arrivals = [record.arrival_s for record in sorted(answer.run.records, key=lambda r: first[r.index])]
    assert arrivals == sorted(arrivals)
    assert "40 requests" in chart.alt
    assert len(chart.rows) == sum(len(bar.x) for bar in bars.values())


def test_the_state_is_that_of_the_run(watched: Any) -> None:
    answer, events = watched
    moments = engine_states(answer, events)
    summary = answer.to_dict()
    assert len(moments) == answer.run.steps
    assert max(moment.kv_fraction for moment in moments) == pytest.approx(
        summary["kv_utilization_peak"], abs=0.02
    )
    assert max(moment.waiting for moment in moments) > 0
    assert moments[-1].waiting == 0
    finish_s = max(record.finish_s for record in answer.run.records)
    assert moments[-1].time_s == pytest.approx(finish_s, rel=0.01)


def test_the_playhead_goes_from_the_beginning_to_the_end_as_fast_as_the_run(watched: Any) -> None:
    answer, events = watched
    figure = gantt_chart(answer, events).figure
    end_s = engine_states(answer, events)[-1].time_s
    places = [frame.layout.shapes[0].x0 for frame in figure.frames]
    assert len(places) == len(figure.layout.sliders[0].steps) == FRAMES
    assert (places[0], places[-1]) == (0.0, pytest.approx(end_s))
    play = figure.layout.updatemenus[0].buttons[0].args[1]["frame"]["duration"]
    assert play * (FRAMES - 1) == pytest.approx(1e3 * end_s)
    words = [frame.layout.annotations[-1].text for frame in figure.frames]
    assert [float(text.partition(" s: ")[0]) for text in words] == pytest.approx(places, abs=0.051)
    moments = engine_states(answer, events)
    for at_s, text in list(zip(places, words, strict=True))[1:]:
        last = [moments[0], *(moment for moment in moments if moment.time_s <= at_s + 1e-9)][-1]
        assert f"{last.running:,} running, {last.waiting:,} waiting" in text


def test_a_run_that_took_no_step_has_no_playhead(watched: Any) -> None:
    answer, _ = watched
    figure = gantt_chart(answer, []).figure
    assert len(figure.frames) == 0
