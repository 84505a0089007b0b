"""Arguments are held against the words of the signature, and refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput

Progress = Callable[[int, int], None]
Lengths = Annotated[Sequence[int], "tokens"]


class Model:
    """Known by its name."""


class Larger(Model):
    """And so are those that are made of it."""


@validate_arguments
def asked(
    model: str | Path | Model = "m",  # noqa: ARG001
    *,
    count: int = 1,  # noqa: ARG001
    rate: float | None = None,  # noqa: ARG001
    on: bool = False,  # noqa: ARG001
    names: Sequence[str] | None = None,  # noqa: ARG001
    lengths: Lengths = (),  # noqa: ARG001
    pair: tuple[str, Model] | None = None,  # noqa: ARG001
    options: Mapping[str, int] | None = None,  # noqa: ARG001
    progress: Progress | None = None,  # noqa: ARG001
    **others: Any,  # noqa: ARG001
) -> str:
    return "answered"


@pytest.mark.parametrize(
    "given",
    [
        {"model": Path("m")}, {"model": Larger()}, {"count": np.int64(3)}, {"rate": 3}, {"rate": np.float32(0.5)},
        {"rate": math.inf}, {"names": ["a"]}, {"names": ()}, {"lengths": range(3)}, {"lengths": np.arange(3)},
        {"pair": ("a", Model())}, {"options": {"a": 1}}, {"progress": print}, {"unheard_of": object()},
    ],
)  # fmt: skip
def test_what_the_words_say_is_let_through(given: dict[str, Any]) -> None:
    assert asked(**given) == "answered"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": 3}, "model is 3: it must be text or a path or Model"),
        ({"model": "a\0"}, r"model is 'a\x00': it must be text"),
        ({"count": 1.0}, "count is 1.0: it must be a whole number"),
        ({"count": True}, "count is True: it must be a whole number"),
        ({"count": 1 << 70}, "it must be a whole number"),
        ({"rate": "1"}, "rate is '1': it must be a number or None"),
        ({"rate": math.nan}, "rate is nan: it must be a number"),
        ({"on": 1}, "on is 1: it must be True or False"),
        ({"names": "abc"}, "names is 'abc': it must be a sequence (Sequence[str]) or None"),
        ({"names": [None]}, "names is a list: it must be a sequence"),
        ({"names": (name for name in "ab")}, "names is a generator: it must be a sequence"),
        ({"lengths": ["a"]}, "lengths is a list: it must be a sequence"),
        ({"pair": ("a",)}, "pair is a tuple"),
        ({"options": [1]}, "options is a list"),
        ({"progress": 3}, "progress is 3"),
    ],
)
def test_what_they_do_not_say_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(**given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_missing_or_too_much_is_said() -> None:
    @validate_arguments
    def needs(model: str, *, gpu: str) -> None: ...

    with pytest.raises(InvalidInput, match="needs: missing a required argument: 'model'"):
        needs()  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="too many positional arguments"):
        needs("a", "b")  # type: ignore[misc]
