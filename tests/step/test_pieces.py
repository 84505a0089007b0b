"""The straight lines between two knots of the context sums: what the simulator takes for the curve of decode times."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.step import StepShape

SEQUENCES = 64
# (low, width) of a piece: 4 leading bits make a knot, so an octave has 8
CONTEXT = (8 << 17, 1 << 17)
WINDOW = (8 << 10, 1 << 10)  # narrower: contexts of 16,384 tokens, of which windowed layers see 128


def shape(context: int, window: int) -> StepShape:
    return StepShape(
        decode_sequences=SEQUENCES,
        decode_context_tokens=context,
        decode_window_context_tokens=window,
    )


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gpt-oss-120b", "gemma-3-12b"])
def test_a_piece_meets_the_curve_at_its_knots_in_both_sums(model: str) -> None:
    """A line through two points of the curve: between them it is off by its slope's rounding to a picosecond alone."""
    own = steps(model)
    (low, width), (window_low, window_width) = CONTEXT, WINDOW
    here = own.step_seconds(shape(low, window_low)) * 1e12
    for one, grown, last, by in (
        (
            "window",
            shape(low, window_low + window_width),
            shape(low, window_low + window_width - 1),
            window_width,
        ),
        ("context", shape(low + width, window_low), shape(low + width - 1, window_low), width),
    ):
        there = own.step_seconds(grown) * 1e12
        assert there - here > 100 * by, f"the {one} must cost enough to show"
        chord = here + (there - here) * (by - 1) / by
        assert own.step_ps(last) == pytest.approx(chord, abs=0.5 * by + 1)
    assert own.step_ps(shape(low, window_low)) == pytest.approx(here, abs=1)
