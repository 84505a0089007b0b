"""A question as text to paste: a shell reads the words that were meant, Python the same values."""

from __future__ import annotations

import ast
import shlex

from hypothesis import given
from hypothesis import strategies as st

from capacity.base.command_text import LINE, command_line, python_call

LINES = st.characters(blacklist_characters="\n", blacklist_categories=("Cs",))
OPTIONS = st.dictionaries(
    st.sampled_from(("gpu", "model_name", "input_len", "seed")),
    st.none() | st.integers() | st.text(LINES, min_size=1, max_size=60),
)


@given(model=st.text(LINES, min_size=1, max_size=30), options=OPTIONS)
def test_a_shell_reads_the_words_that_were_meant(model: str, options: dict[str, object]) -> None:
    command = command_line("fit_grid", model, options)
    words = ["capacity", "fit-grid", model]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    assert shlex.split(command.replace("\\\n", "")) == words  # as a shell joins lines
    assert len(command) <= LINE or "\\\n" in command or len(words) == 3


@given(model=st.text(max_size=30), options=OPTIONS)
def test_python_reads_the_values_that_were_meant(model: str, options: dict[str, object]) -> None:
    (_, assignment) = ast.parse(python_call("fit", model, options)).body
    assert isinstance(assignment, ast.Assign)
    call = assignment.value
    assert isinstance(call, ast.Call)
    assert [ast.literal_eval(argument) for argument in call.args] == [model]
    values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert values == {name: value for name, value in options.items() if value is not None}


def test_a_switch_is_its_name_or_its_denial() -> None:
    assert command_line("fit", "m", {"enforce_eager": True, "async": False}) == (
        "capacity fit m --enforce-eager --no-async"
    )
