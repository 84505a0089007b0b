"""Models that do not fit: a memory chart, and a button for each change that makes them fit."""

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

import capacity
from capacity.answers.fit import ways_to_fit
from capacity.base.errors import DoesNotFit
from capacity.report.figures.drawing import draw_chart
from capacity.report.views.memory_parts import memory_chart
from capacity_app import parts
from capacity_app.error_display import show_refusal
from capacity_app.state import WIDGETS, Inputs


@contextmanager
def show_ways_to_fit(inputs: Inputs) -> Iterator[None]:
    """Context manager: if its block raises DoesNotFit, show the error, changes that help, and the memory chart."""
    try:
        yield
    except DoesNotFit as error:
        show_refusal(error)
        answer = capacity.fit(inputs.model, **inputs.pool)
        if not answer.fits:
            draw_change_buttons(inputs)
            parts.draw_chart(draw_chart(memory_chart(answer), answer, inputs.units))


def draw_change_buttons(inputs: Inputs) -> None:
    """Draw a button for each change that makes the model fit and that the sidebar has an input for."""
    ways = [way for way in ways_to_fit(inputs.model, **inputs.pool) if way.keys() <= WIDGETS.keys()]
    with st.container(horizontal=True):
        for number, way in enumerate(ways):
            st.button(
                " and ".join(f"{WIDGETS[name].label} {value}" for name, value in way.items()),
                key=f"way_out_{number}",
                icon=":material/build:",
                on_click=st.session_state.update,
                args=({WIDGETS[name].key: value for name, value in way.items()},),
                help="Apply this change to the sidebar, so that the model fits.",
            )
