"""Widgets of fields: what a page shows of a field is what its flag says, in the page's unit and words."""

from __future__ import annotations

from typing import Any

import pytest
from capacity_app.error_display import replace_flags
from capacity_app.state import SHARED, WIDGETS
from capacity_app.widgets import find_field
from streamlit.testing.v1 import AppTest

import capacity
from capacity.base.keywords import fields_of
from capacity.deployment import Cost, Pool, Traffic

SPECS = fields_of(Pool, Traffic, Cost)


@pytest.mark.parametrize("name", [name for name in WIDGETS if name != "model"])
def test_sidebar_field_has_its_flags_help_and_limits(name: str) -> None:
    shown, declared = WIDGETS[name], SPECS[name]
    assert shown.help == declared.description
    assert shown.key in SHARED
    for entry in declared.metadata:
        if hasattr(entry, "ge"):
            assert shown.least is not None
            assert shown.least * shown.scale >= entry.ge
        if hasattr(entry, "le"):
            assert shown.most is not None
            assert shown.most * shown.scale <= entry.le


@pytest.mark.parametrize(
    ("function", "name", "kind", "many", "default", "least"),
    [
        (capacity.scale, "axis", str, False, "tensor", None),
        (capacity.scale, "tpot_s", float, False, None, None),
        (capacity.beam_search, "beam_widths", int, True, (1, 2, 4, 8), None),
        (capacity.beam_search, "batch_size", int, False, 1, 1),
        (capacity.fleet, "max_pools", int, False, 2, 1),
        (capacity.curve, "peak_to_mean", float, False, 1.6, 1),
        (capacity.simulate, "max_model_len", int, False, None, None),
        (capacity.cascade, "simulate", bool, False, False, None),
    ],
)
def test_field_is_read_from_signature_or_spec(
    function: Any, name: str, kind: type, many: bool, default: Any, least: Any
) -> None:
    found = find_field(function, name)
    assert found is not None
    assert (found.kind, found.many, found.default, found.least) == (kind, many, default, least)


def test_field_that_neither_declares_is_none() -> None:
    assert find_field(capacity.fit, "input_len") is None
    assert find_field((Pool,), "tensor_parallel") is None


def page(query: dict[str, str]) -> AppTest:
    """A page of four fields and a row that is off."""

    def drawn() -> None:
        import streamlit as st
        from capacity_app.widgets import draw_fields, show_field

        import capacity

        split = {"prompt": "its prompt", "request": "prompt and answer"}
        st.session_state.found = draw_fields(
            show_field(capacity.fleet, "max_pools", "pools", "Pools at most", most=3),
            show_field(capacity.fleet, "split_by", "by", "Told apart by", words=split),
            show_field(capacity.scale, "tpot_s", "tpot", "TPOT, ms", least=0.1, most=6e4, scale=1e-3),
            show_field(capacity.fleet, "gpus", "gpus", "GPUs", start=("l4-24gb",)),
        )
        st.session_state.off = draw_fields(
            show_field(capacity.fleet, "spare_replicas", "spare", "Spare", start=2), disabled=True
        )

    at = AppTest.from_function(drawn)
    for key, value in query.items():
        at.query_params[key] = value
    return at.run()


def test_drawn_fields_return_what_differs_from_the_library() -> None:
    at = page({})
    assert at.session_state.found == {"gpus": ("l4-24gb",)}
    assert at.session_state.off == {}
    assert at.number_input(key="spare").disabled
    assert at.number_input(key="pools").max == 3
    assert at.segmented_control(key="by").options == ["its prompt", "prompt and answer"]
    at.number_input(key="tpot").set_value(20.0)
    at.segmented_control(key="by").set_value("prompt and answer")
    at.number_input(key="pools").set_value(3).run()
    expected = {"max_pools": 3, "split_by": "request", "tpot_s": 0.02, "gpus": ("l4-24gb",)}
    assert at.session_state.found == expected


def test_link_sets_fields_by_their_keys() -> None:
    found = page({"by": "prompt and answer", "tpot": "5", "gpus": "h100-sxm-80gb"}).session_state.found
    assert found == {"split_by": "request", "tpot_s": 0.005, "gpus": ("h100-sxm-80gb",)}


def test_help_calls_other_flags_as_the_sidebar_calls_them() -> None:
    assert replace_flags("as --input-len and --kv-cache-dtype") == "as Input tokens and KV cache"
    assert "`capacity" not in page({}).multiselect(key="gpus").help
