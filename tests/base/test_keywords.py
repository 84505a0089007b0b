"""Options by the specs that declare them: each to its own, none twice, and an unknown one with the nearest."""

from __future__ import annotations

import inspect

import pytest

from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, fields_of, flags_of, split
from capacity.deployment import Cost, Pool, Traffic


def test_every_option_goes_to_the_spec_that_declares_it() -> None:
    options = dict.fromkeys(fields_of(Pool, Traffic, Cost), 1)
    parts = split(options, Pool, Traffic, Cost)
    assert [tuple(part) for part in parts] == [tuple(spec.model_fields) for spec in (Pool, Traffic, Cost)]
    assert sum(map(len, parts)) == len(options)


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'input_len'"):
        split({"inputlen": 3}, Pool, Traffic)
    with pytest.raises(InvalidInput, match="known: gpu, "):
        split({"zzz": 3}, Pool)


def test_a_functions_signature_shows_the_fields_as_keywords() -> None:
    @document_options(Traffic)
    def answer(model: str, input_len: int = 7, **options: object) -> tuple[str, int, object]:
        return model, input_len, options

    shown = inspect.signature(answer).parameters
    assert list(shown)[:2] == ["model", "input_len"]
    assert set(shown) == {"model", *Traffic.model_fields}
    assert shown["burstiness"].default == Traffic().burstiness
    assert shown["input_len"].default == 7  # its own stands


def test_further_spellings_are_those_of_the_field() -> None:
    assert flags_of(Pool.model_fields["tensor_parallel_size"]) == ["-tp", "--tp"]
    assert flags_of(Pool.model_fields["replicas"]) == []
