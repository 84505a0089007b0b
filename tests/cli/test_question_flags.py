"""Flags from a signature: each kind of keyword by hand, and what is refused in its words."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter
from typing import Annotated

import pytest
from pydantic import Field

from capacity.base.errors import InvalidInput
from capacity.base.flags import Flag
from capacity.base.spec import Spec
from capacity.cli.question_flags import keywords_of, keywords_of_spec, parameter, token_list

Alias = Annotated[int, Flag("A name for an annotation.")]


class Asked(Spec):
    """Fields with and without a help text."""

    rates: tuple[int | float, ...] | None = Field(default=None, description="Rates, by commas.")
    share: int | float = Field(default=0.5, description="Whole or not.")
    silent: int = 3


def question(
    trace: Annotated[str, Flag("A trace.")],
    *,
    contexts: Annotated[Sequence[int], Flag("Tokens.", "--contexts --lengths")] = (1024, 1 << 20),
    gpus: Annotated[Sequence[str], Flag("GPUs.", "--gpu")] = (),
    tree: Annotated[bool, Flag("A tree.")] = True,
    chain: Annotated[bool, Flag("A chain.")] = False,
    tpot_s: Annotated[float | None, Flag("In ms.", "--tpot", milliseconds=True)] = None,
    order: Annotated[Sequence[str] | None, Flag("Names.", by_commas=True)] = None,
    count: Alias = 2,
    served_by: tuple[str, int] | None = None,
) -> None:
    """A question of every kind of keyword."""


def test_each_kind_of_keyword() -> None:
    keywords = {keyword.name: keyword for keyword in keywords_of(question)}
    assert set(keywords) == {"gpus", "trace", "contexts", "tree", "chain", "tpot_s", "order", "count"}
    assert keywords["trace"].is_argument
    assert keywords["tree"].spellings == ["--tree/--no-tree"]
    assert keywords["chain"].spellings == ["--chain"]
    assert parameter(keywords["contexts"]).default == "1K,1M"
    assert parameter(keywords["gpus"]).default is None
    assert parameter(keywords["trace"]).default is Parameter.empty
    assert parameter(keywords["trace"], optional=True).default is None


def test_values_are_in_the_questions_units() -> None:
    keywords = {keyword.name: keyword for keyword in keywords_of(question)}
    assert keywords["contexts"].value("4K") == [4096]
    assert keywords["tpot_s"].value(50.0) == 0.05
    assert keywords["gpus"].value(["h100"]) == ["h100"]
    assert keywords["order"].value("vllm, sglang") == ["vllm", "sglang"]
    with pytest.raises(InvalidInput, match="--lengths '0'"):
        keywords["contexts"].value("0")
    with pytest.raises(InvalidInput, match=r"--tpot .*: must be above 0 ms"):
        keywords["tpot_s"].value(-1.0)


def test_fields_of_a_spec_with_a_help_text_are_keywords() -> None:
    rates, share = keywords_of_spec(Asked)
    assert (rates.name, share.name) == ("rates", "share")
    assert rates.value("1,2.5") == [1.0, 2.5]
    assert parameter(rates).default is None
    assert (share.kind, parameter(share).default) == (float, 0.5)
    with pytest.raises(InvalidInput, match="--rates is 'x': give numbers"):
        rates.value("x")


def test_token_lists() -> None:
    assert token_list("1,4K, 1.5k,1M", "--contexts") == [1, 4096, 1500, 1 << 20]
    for wrong in ("", "0", "2048G", "1.5", "1,,2", "²", "9" * 5000):
        with pytest.raises(InvalidInput, match="--contexts"):
            token_list(wrong, "--contexts")
