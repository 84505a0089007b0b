"""Animated results: a timeline of the first simulated minute, and the text speed of several deployments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from capacity.answers.records import Estimate
from capacity.hardware import profile_names
from capacity.report.display import time_and_interval
from capacity.report.figures.gantt import ENGINE, gantt_chart
from capacity.report.figures.runs import timeline_chart
from capacity.report.subject import describe_answer
from capacity.service.jobs import Task
from capacity_app import parts, state
from capacity_app.error_display import escape_markdown
from capacity_app.state import Inputs

MAX_REQUESTS = 200
MINUTE_S = 60.0
MAX_TOKENS = 600
NOTHING = "nothing"
DEFAULT_OTHER_GPUS = ("l40s-48gb", "h100-sxm-80gb")


def show_recording(inputs: Inputs, options: Mapping[str, Any], replicas: int) -> None:
    """Draw a button that simulates the first minute of a run, and the timeline of its requests, batches and steps."""
    st.subheader("Watch it run")
    if replicas > 1:
        st.caption("Only a run with one replica can be recorded. Set Replicas to 1.")
        return
    few, what = first_minute(options)
    st.caption(
        f"{what}, with every engine step. Drag over a chart to zoom. Move the slider to change the time."
    )
    task = Task(
        function="capacity_app.tasks:timeline", arguments={"model": inputs.model, **few}, reports=True
    )
    answer, events = parts.run_in_background(
        "timeline", task, doing="Recording steps", button="Record the steps"
    ).ready_value
    parts.draw_chart(gantt_chart(answer, events))
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == ENGINE]
    parts.draw_chart(timeline_chart(steps, inputs.units))


def first_minute(options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the options limited to one minute and `MAX_REQUESTS` requests, and a text that states this limit."""
    if "trace" in options:
        until_s = min(options["trace_until_s"], MINUTE_S)
        return {**options, "trace_until_s": until_s}, f"The trace's first {until_s:g} s"
    most = min(options["num_prompts"], MAX_REQUESTS)
    if rate := options.get("request_rate"):
        most = max(1, round(min(most, rate * MINUTE_S)))
    return {**options, "num_prompts": most}, f"The first {most:,} requests"


def estimate_of_other_gpu(inputs: Inputs, options: Mapping[str, Any]) -> Estimate | None:
    """Return an estimate for another GPU that the user selects; None without a selection or until it is computed."""
    others = tuple(name for name in profile_names() if name != inputs.pool["gpu"])
    usual = next((name for name in DEFAULT_OTHER_GPUS if name in others), others[0])
    gpu = state.choice("Compare with", "typing_gpu", (NOTHING, *others), usual)
    if gpu == NOTHING:
        return None
    task = Task(
        function="capacity_app.tasks:estimate_and_bounds",
        arguments={"model": inputs.model, "options": {**options, "gpu": gpu}, "cost": {}},
    )
    found = parts.run_in_background("typing_beside", task, doing=f"Estimating {gpu}").value
    return None if found is None else found[0]


def show_typing_speeds(answers: Mapping[str, Estimate], inputs: Inputs) -> None:
    """Animate text for each deployment: the first token after the mean TTFT, then one token per mean TPOT."""
    sides = []
    for name, answer in answers.items():
        if (side := typing_data(name, answer, inputs)) is not None:
            sides.append(side)
        else:
            st.caption(escape_markdown(f"{name} is not shown: {answer.verdict or 'a single output token'}"))
    if not sides:
        return
    st.caption(
        "A user's screen at the predicted mean TTFT and TPOT, in real time. The text is a sample; a token is about "
        "three quarters of a word."
    )
    draw_typing(sides)


def typing_data(name: str, answer: Estimate, inputs: Inputs) -> dict[str, Any] | None:
    """Return the data that `draw_typing` needs for one deployment; None if the estimate has no latencies."""
    if answer.ttft_s is None or answer.tpot_s is None:
        return None
    tokens = min(answer.output_len, MAX_TOKENS)
    ttft, tpot = (time_and_interval(quantity, inputs.units)[0] for quantity in (answer.ttft_s, answer.tpot_s))
    return {
        "name": f"{name}: {describe_answer(answer)}",
        "summary": f"first token after {ttft}, then one every {tpot}",
        "ttft_s": answer.ttft_s.value,
        "tpot_s": answer.tpot_s.value,
        "tokens": tokens,
        "end_s": answer.ttft_s.value + (tokens - 1) * answer.tpot_s.value,
    }


def typing_file(ending: str) -> str:
    """Return a file of the typing component by its ending: `html`, `css`, `js`, or the sample text `txt`."""
    return Path(__file__).with_name(f"typing.{ending}").read_text(encoding="utf-8")


def draw_typing(sides: Sequence[Mapping[str, Any]]) -> None:
    """Animate each deployment's text in real time in the browser: the first token after TTFT, then one token per TPOT.

    The component receives `text` and `sides` as data, and shows them as text, never as markup.
    """
    html, css, js, text = map(typing_file, ("html", "css", "js", "txt"))
    component = st.components.v2.component("capacity.typing", html=html, css=css, js=js)
    component(key="typing", data={"sides": sides, "text": text})
