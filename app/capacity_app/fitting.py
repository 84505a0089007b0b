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
from capacity_app.advice_buttons import draw_apply_button
from capacity_app.error_display import show_refusal
from capacity_app.state import Inputs
from capacity_app.what_if import field_text


@contextmanager
def show_ways_to_fit(inputs: Inputs) -> Iterator[None]:
    """If the block raises DoesNotFit, show the error, a button for each change that helps, and the memory chart."""
    try:
        yield
    except DoesNotFit as error:
        show_refusal(error)
        answer = capacity.fit(inputs.model, **inputs.pool)
        if not answer.fits:
            draw_change_buttons(inputs)
            parts.draw_chart(draw_chart(memory_chart(answer), answer, inputs.units))


def draw_change_buttons(inputs: Inputs) -> None:
    """Draw a button for each change that makes the model fit."""
    with st.container(horizontal=True):
        for way in ways_to_fit(inputs.model, **inputs.pool):
            draw_apply_button(" and ".join(field_text(*each) for each in way.items()), way)
