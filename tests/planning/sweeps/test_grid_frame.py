"""`grid`: the same numbers as single questions, in a table."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput

LENGTHS: Any = {"input_len": 512, "output_len": 64}


def test_grid_has_every_combination_with_the_numbers_of_its_own_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame = capacity.grid(
        "estimate", {"gpu": ["h100", "l40s"], "batch_size": range(1, 4)}, model="llama-3.1-8b", **LENGTHS
    )
    assert len(frame) == 6
    for row in frame.to_dict("records"):
        point: Any = {"gpu": row["option.gpu"], "batch_size": row["option.batch_size"]}
        own = capacity.estimate("llama-3.1-8b", **point, **LENGTHS)
        assert own.tpot_s is not None
        assert row["tpot_s.value"] == own.tpot_s.value
    assert capsys.readouterr().err == ""  # no bar, because this is no terminal


def test_a_bar_is_drawn_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("capacity.base.progress.time", type("Clock", (), {"monotonic": lambda: next(clock)}))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    capacity.grid("fit", {"gpu": ["h100", "l4"]}, model="llama-3.1-8b")
    assert "points" in capsys.readouterr().err


def test_models_vary_and_a_point_that_fails_has_its_reason() -> None:
    frame = capacity.grid("fit", {"model": ["llama-3.1-8b", "nonesuch"]}, gpu="h100")
    assert list(frame["status"]) == ["done", "failed"]
    assert "no model 'nonesuch'" in frame["reason"][1]


@pytest.mark.parametrize(
    ("verb", "vary", "fixed", "message"),
    [
        (
            "plan",
            {"gpu": ["h100"]},
            {},
            "no verb that a grid evaluates 'plan'.* Known: estimate, fit, simulate",
        ),
        ("fit", {"gpu": "h100"}, {}, "vary has 'h100' for gpu: it must be a list of values"),
        ("fit", {"gpux": ["h100"]}, {}, "unknown option 'gpux'; did you mean 'gpu'"),
        ("fit", {"gpu": []}, {}, "gpu has no values"),
        ("fit", {"gpu": ["h100"]}, {"gpu": "l4"}, "both under"),
        (
            "fit",
            {"gpu": ["nope"]},
            {},
            "no combination of values could be computed: .*no hardware profile 'nope'",
        ),
    ],
)
def test_wrong_grids_are_one_line(
    verb: str, vary: dict[str, Any], fixed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        capacity.grid(verb, vary, model="llama-3.1-8b", **fixed)
