"""Values as TOML: what is written reads back equal."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.toml_text import toml_key, toml_value

LEAVES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=("Cs",)), max_size=9)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(
    key=st.text(st.characters(blacklist_categories=("Cs",)), max_size=6),
    value=VALUES,
)
def test_a_value_reads_back_equal(key: str, value: object) -> None:
    assert tomllib.loads(f"{toml_key(key)} = {toml_value(value)}") == {key: value}


def test_what_is_none_is_left_out_of_a_table_and_has_no_form_of_its_own() -> None:
    assert toml_value({"a": None, "b": 1}) == "{ b = 1 }"
    with pytest.raises(TypeError, match="NoneType cannot be written as TOML"):
        toml_value(None)
