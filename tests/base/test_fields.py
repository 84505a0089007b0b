"""Fields of a configuration: what is no value of a field is refused with its file, its key and itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import MalformedFile
from capacity.base.fields import MAX_COUNT, Fields, parse_json_object
from capacity.base.untrusted_text import printable_values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_an_object_is_read_as_json_reads_it(values: dict[str, object]) -> None:
    read = parse_json_object(json.dumps(values).encode(), "config.json")
    assert read == printable_values(values)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "the file is empty"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[1]", "not a list"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number is too long"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_what_is_no_object_is_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(MalformedFile, match=problem) as refused:
        parse_json_object(raw, "config.json")
    assert str(refused.value).startswith("config.json")


@given(value=VALUES, minimum=st.integers(0, 3))
def test_a_count_is_a_whole_number_in_its_range_or_refused(value: object, minimum: int) -> None:
    fields = Fields({"heads": value}, "config.json")
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is None:
        assert fields.optional_count("heads", minimum=minimum) is None
    elif whole and minimum <= int(str(value)) <= MAX_COUNT:
        assert fields.count("heads", minimum=minimum) == value
    else:
        with pytest.raises(MalformedFile, match="heads"):
            fields.count("heads", minimum=minimum)


def test_the_first_key_that_is_there_counts_and_a_section_names_its_place() -> None:
    fields = Fields({"n_layer": None, "num_layers": 4, "rope": {"factor": "x"}}, "config.json")
    assert fields.count("n_layer", "num_layers") == 4
    assert fields.count("heads", default=8) == 8
    section = fields.section("rope")
    assert section is not None
    with pytest.raises(MalformedFile, match=r"rope\.factor"):
        section.number("factor", default=1.0, minimum=0.0, maximum=10.0)
    with pytest.raises(MalformedFile, match="missing"):
        fields.count("heads")


@pytest.mark.parametrize("value", [1e308, -1, 10**400, float("inf"), float("nan"), 10.5])
def test_a_number_is_in_its_range_or_refused(value: float) -> None:
    with pytest.raises(MalformedFile, match=r"outside of 0..10"):
        Fields({"factor": value}, "origin").number("factor", default=1.0, minimum=0.0, maximum=10.0)
    assert Fields({"factor": 10}, "origin").number("factor", default=1.0, minimum=0.0, maximum=10.0) == 10.0
