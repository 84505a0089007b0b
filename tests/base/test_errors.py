"""The error tree: one line each, numbers as attributes, whole after a trip to another process."""

from __future__ import annotations

import pickle

import pytest

from capacity.base.errors import (
    CapacityError,
    DoesNotFit,
    InvalidInput,
    MalformedFile,
    OutsideValidity,
    UnknownName,
    UnsupportedModel,
)

ERRORS = [
    InvalidInput("a value"),
    UnknownName("GPU", "h10", ["h100", "h200"]),
    UnsupportedModel("nonesuch", "its layers are not known"),
    MalformedFile("a.csv", "is empty", where="line 3"),
    OutsideValidity("nothing supports it"),
    DoesNotFit("too large", needed_bytes=2.0, usable_bytes=1.0),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_text_and_numbers(error: CapacityError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert back.exit_code == error.exit_code


def test_what_does_not_fit_exits_1_and_bad_input_2() -> None:
    assert [error.exit_code for error in ERRORS] == [2, 2, 2, 2, 2, 1]


def test_a_near_name_is_suggested_and_a_far_one_is_not() -> None:
    assert UnknownName("GPU", "h10", ["h100", "mi300x"]).suggestions == ("h100",)
    assert UnknownName("GPU", "zzzz", ["h100", "mi300x"]).suggestions == ()
    assert "Did you mean" not in str(UnknownName("GPU", "zzzz", ["h100"]))
