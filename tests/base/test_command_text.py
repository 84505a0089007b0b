"""A question as text to paste: a shell reads the words that were meant, Python the same values."""

from __future__ import annotations

import ast
import shlex
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.base.command_text import LINE, command_line, python_call
from capacity.cli.main import main
from capacity.deployment import read_deployment

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


POOLS = st.fixed_dictionaries(
    {"gpu": st.sampled_from(("h100", "a100"))},
    optional={
        "tensor_parallel_size": st.integers(1, 16),
        "enable_expert_parallel": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "quantization": st.sampled_from(("fp8", "awq")),
        "gpu_memory_utilization": st.floats(0.01, 1),
        "max_model_len": st.integers(1, 10_000),
    },
)


@settings(max_examples=15)
@given(pool=POOLS)
def test_a_command_says_what_the_keywords_say(
    pool: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("command") / "written.toml"
    words = (
        command_line("fit", "llama-3.1-8b", pool | {"write_deployment": str(file)})
        .replace("\\\n", " ")
        .split()
    )
    before, sys.argv = sys.argv, words
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = before
    written = read_deployment(file)
    assert written.model == "llama-3.1-8b"
    assert {name: getattr(written.pools[0], name) for name in pool} == pytest.approx(pool)


def test_lists_and_odd_names_are_quoted_as_a_shell_reads_them() -> None:
    options = {
        "gpus": ("h100", "l40s"),
        "slo": ("ttft:p95:1s", "tpot:50"),
        "quantizations": (None, "fp8"),
        "seed": None,
    }
    command = command_line("plan", "my model.json", options)
    assert command.startswith("capacity plan 'my model.json'")
    assert "--gpus h100,l40s" in command
    assert "--slo ttft:p95:1s" in command
    assert "--slo tpot:50" in command
    assert "--quantizations default,fp8" in command
    assert "seed" not in command
    assert "    gpus=('h100', 'l40s'),\n" in python_call("plan", "my model.json", options)
